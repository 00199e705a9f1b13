"""The token of a blocking connection: put when it opens, and again before it runs out.

    Credential -> ask_for_token -> BlockingToken.put, keep -> put-token on $cbs
                  ^^^^^^^^^^^^^ this module ^^^^^^^^^^^^^^

The twin of tokens.py for code that runs no event loop. Nobody waits for a renewal: it is sent while
a range is read, and its answer is looked at when it has come.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import Future
from typing import Any

from pumphouse.client.bulk.blocking_connection import BlockingConnection
from pumphouse.client.credentials import ASK_S, Credential, Token, renewal_at
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
        self._renewal: str | None = None  # the call that puts the next one

    def put(self, wire: BlockingConnection) -> None:
        """Show a token on a connection that has none, and wait until it is taken."""
        self._renewal = None
        self.settle(wire, self.send(wire))

    def keep(self, wire: BlockingConnection) -> None:
        """Renew the token in time. One that someone else made cannot be renewed: it just ends."""
        if self._renewal is not None and wire.replied(self._renewal):
            self.settle(wire, self._renewal)
            self._renewal = None
        due = self.credential.renews and self.clock.now() >= self.renew_at
        if due and self._renewal is None:
            self._renewal = self.send(wire)

    def send(self, wire: BlockingConnection) -> str:
        """Send a new token; the number of the call."""
        now = self.clock.now()
        token = ask_for_token(self.credential, self.resource, now)
        self.renew_at = renewal_at(now, token.expires_at)
        asked = {
            "operation": "put-token",
            "type": token.kind,
            "name": self.resource,
            "expiration": expiration(token),
        }
        return wire.ask(CBS, asked, token.text)

    def settle(self, wire: BlockingConnection, number: str) -> None:
        try:
            wire.reply(number, CBS)
        except AuthError as refused:
            text = f"{wire.place} does not take the {self.credential.name}"
            raise AuthError(f"{text}: {refused.description}", refused.status) from None


def check_blocking(credential: Any) -> None:
    """Refuse a credential that only an event loop can ask."""
    if inspect.iscoroutinefunction(getattr(credential, "get_token", None)):
        raise OptionError(
            f"{type(credential).__name__} is a credential for asyncio, and there is no event loop "
            "here; give the one of azure.identity, not of azure.identity.aio"
        )


def ask_for_token(credential: Credential, resource: str, now: float) -> Token:
    """A token, waited for. In a thread of its own, because this one may run an event loop."""
    made: Future[Token] = Future()

    def make() -> None:
        try:
            made.set_result(asyncio.run(credential.token(resource, now)))
        except BaseException as failed:
            made.set_exception(failed)

    threading.Thread(target=make, name="token", daemon=True).start()
    try:
        return made.result(ASK_S + 5)
    except TimeoutError:
        raise AuthError(f"the {credential.name} was not there within {ASK_S:g} s") from None
