"""The tokens of one connection: sent before a path is used, and renewed before they expire.

    Credential -> Tokens -> put-token on $cbs
                  ^^^^^^ this module

A failed renewal is retried while the old token is valid, so a short failure of the token issuer
breaks no link. After the expiry the hub closes the links of the path, so the failure is raised.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pumphouse.amqp.types import Timestamp
from pumphouse.client.connection_string import ConnectionString
from pumphouse.client.credentials import SAS_TOKEN, TOKEN_S, Credential, Token, renewal_at
from pumphouse.clock import Clock
from pumphouse.errors import AuthError, PumphouseError
from pumphouse.logs import line

__all__ = ["RENEW_S", "SAS_TOKEN", "TOKEN_S", "Tokens"]

log = logging.getLogger("pumphouse.client")

RENEW_S = 0.9 * TOKEN_S  # of tokens that we sign: six minutes before the expiry
CHECK_S = 60.0  # longest pause between checks: tokens may expire while the machine sleeps
CHECK_AT_MOST_EVERY_S = 0.2  # shortest pause, for tokens with a very short validity
RETRY_S = 5.0  # after a failed renewal
NEVER = Timestamp((1 << 63) - 1)

PutToken = Callable[[Mapping[str, Any], Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class PlacedToken:
    """A token that the hub has accepted."""

    expires_at: float
    renew_at: float


class Tokens:
    """The authorized paths and the expiry of their tokens."""

    def __init__(
        self,
        put_token: PutToken,
        connection_string: ConnectionString,
        credential: Credential,
        clock: Clock,
    ) -> None:
        self.put_token = put_token
        self.connection_string = connection_string
        self.credential = credential
        self.clock = clock
        self._placed: dict[str, PlacedToken] = {}  # by path
        self._lock = asyncio.Lock()  # concurrent callers put one token per path

    def __repr__(self) -> str:
        return f"<Tokens {self.connection_string.address} {len(self._placed)} paths>"

    async def ensure(self, path: str) -> None:
        """Put a token for a path unless the hub has a valid one."""
        async with self._lock:
            placed = self._placed.get(path)
            if placed is None or placed.expires_at <= self.clock.now():
                await self.put(path)

    def invalidate(self, path: str) -> None:
        """Forget the token of a path after the hub has refused it."""
        self._placed.pop(path, None)

    async def put(self, path: str) -> None:
        now = self.clock.now()
        resource = self.connection_string.resource(path)
        token = await self.credential.token(resource, now)
        request = {
            "operation": "put-token",
            "type": token.kind,
            "name": resource,
            "expiration": expiration(token),
        }
        try:
            await self.put_token(request, token.text)
        except AuthError as refused:
            raise self.refused_error(refused) from None
        self._placed[path] = PlacedToken(token.expires_at, renewal_at(now, token.expires_at))

    def refused_error(self, refused: AuthError) -> AuthError:
        """The refusal, with the address and the kind of credential."""
        text = f"{self.connection_string.address} does not accept the {self.credential.name}"
        return AuthError(f"{text}: {refused.description}", refused.status)

    async def renew_forever(self) -> None:
        """Renew tokens while the connection is open; raises after a token has expired."""
        while self.credential.renews:
            await self.clock.sleep(self.pause_s())
            for path, placed in list(self._placed.items()):
                if self.clock.now() >= placed.renew_at:
                    await self.renew(path, placed)

    def pause_s(self) -> float:
        """The time until the next renewal, within limits."""
        due = min((placed.renew_at for placed in self._placed.values()), default=float("inf"))
        return min(CHECK_S, max(CHECK_AT_MOST_EVERY_S, due - self.clock.now()))

    async def renew(self, path: str, placed: PlacedToken) -> None:
        try:
            await self.put(path)
        except PumphouseError as failed:
            now = self.clock.now()
            remaining_s = placed.expires_at - now
            if remaining_s <= 0:
                raise
            self._placed[path] = replace(placed, renew_at=now + min(RETRY_S, remaining_s))
            log.warning(
                "%s",
                line(
                    "token_renewal_failed",
                    path=path,
                    expires_in_s=remaining_s,
                    cause=failed,
                    todo="check the credential and the token issuer; retried until the expiry",
                ),
            )


def expiration(token: Token) -> Timestamp:
    """The expiry of a token for put-token."""
    return NEVER if token.expires_at == float("inf") else Timestamp(int(token.expires_at) * 1000)
