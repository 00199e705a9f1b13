"""The token of a blocking connection: sent when it opens, and renewed before it expires.

    Credential -> request_token -> BlockingToken.put, renew -> put-token on $cbs
                  ^^^^^^^^^^^^^ this module ^^^^^^^^^^^^^^^^

The blocking counterpart of native/tokens.py. A renewal does not wait: it is sent while a range is
read, and its reply is checked later.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from typing import Any

from pumphouse.client.bulk.blocking_connection import BlockingConnection
from pumphouse.client.credentials import TOKEN_REQUEST_S, Credential, Token, renewal_at
from pumphouse.client.native.tokens import expiration
from pumphouse.clock import Clock
from pumphouse.errors import AuthError, OptionError

CBS = "$cbs"


class BlockingToken:
    """A token for one resource."""

    def __init__(self, credential: Credential, resource: str, clock: Clock) -> None:
        self.credential = credential
        self.resource = resource
        self.clock = clock
        self.renew_at = 0.0
        self._renewal: str | None = None  # id of the pending renewal request

    def put(self, connection: BlockingConnection) -> None:
        """Put a token on a new connection, and wait until the hub accepts it."""
        self._renewal = None
        self.settle(connection, self.send(connection))

    def renew(self, connection: BlockingConnection) -> None:
        """Renew the token when it is due, if the credential can issue another one."""
        if self._renewal is not None and connection.has_reply(self._renewal):
            self.settle(connection, self._renewal)
            self._renewal = None
        due = self.credential.renews and self.clock.now() >= self.renew_at
        if due and self._renewal is None:
            self._renewal = self.send(connection)

    def send(self, connection: BlockingConnection) -> str:
        """Send a new token; returns the id of the request."""
        now = self.clock.now()
        token = request_token(self.credential, self.resource, now)
        self.renew_at = renewal_at(now, token.expires_at)
        request = {
            "operation": "put-token",
            "type": token.kind,
            "name": self.resource,
            "expiration": expiration(token),
        }
        return connection.request(CBS, request, token.text)

    def settle(self, connection: BlockingConnection, request_id: str) -> None:
        """Wait for the reply; AuthError if the hub refuses the token."""
        try:
            connection.reply(request_id, CBS)
        except AuthError as refused:
            text = f"{connection.address} does not accept the {self.credential.name}"
            raise AuthError(f"{text}: {refused.description}", refused.status) from None


def check_blocking(credential: Any) -> None:
    """Refuse a credential for asyncio."""
    if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
        raise OptionError(
            f"{type(credential).__name__} is a credential for asyncio, which needs an event loop; "
            "use the one of azure.identity, not of azure.identity.aio"
        )


def request_token(credential: Credential, resource: str, now: float) -> Token:
    """A token. It is requested in another thread, because this one may run an event loop."""
    future: Future[Token] = Future()

    def request() -> None:
        try:
            future.set_result(asyncio.run(credential.token(resource, now)))
        except BaseException as failed:
            future.set_exception(failed)

    threading.Thread(target=request, name="token", daemon=True).start()
    try:
        return future.result(TOKEN_REQUEST_S + 5)
    except TimeoutError:
        raise AuthError(
            f"the {credential.name} did not arrive within {TOKEN_REQUEST_S:g} s"
        ) from None
