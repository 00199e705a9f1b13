"""The tokens of one connection: put before a path is used, and again before they run out.

    Credential -> Tokens -> put-token on $cbs
                  ^^^^^^ this module

A renewal that fails is tried again while the old token lives: nobody is cut off before its time
because the place that makes tokens had a bad minute. Once it has run out, the hub closes the links
of that path anyway, so everybody is told why.
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

__all__ = ["RENEW_S", "SAS_TOKEN", "TOKEN_S", "Tokens"]

log = logging.getLogger("pumphouse.client")

RENEW_S = 0.9 * TOKEN_S  # of those that we sign: six minutes to spare
CHECK_S = 60.0  # at the longest: a machine that slept finds its tokens old
CHECK_AT_MOST_EVERY_S = 0.2  # whatever a credential says of how short its tokens live
AGAIN_S = 5.0  # after a renewal that failed
NEVER = Timestamp((1 << 63) - 1)

Ask = Callable[[Mapping[str, Any], Any], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Held:
    """A token that the hub has."""

    expires_at: float
    renew_at: float


class Tokens:
    """Which paths are open, and until when."""

    def __init__(
        self, ask: Ask, connection: ConnectionString, credential: Credential, clock: Clock
    ) -> None:
        self.ask = ask
        self.connection = connection
        self.credential = credential
        self.clock = clock
        self._held: dict[str, Held] = {}  # by path
        self._putting = asyncio.Lock()  # so that many who need a path at once put one token

    def __repr__(self) -> str:
        return f"<Tokens {self.connection.place} {len(self._held)} paths>"

    async def cover(self, path: str) -> None:
        """Make sure that a token for this path is with the hub."""
        async with self._putting:
            held = self._held.get(path)
            if held is None or held.expires_at <= self.clock.now():
                await self.put(path)

    def forget(self, path: str) -> None:
        """The hub says that the token for this path is not good, or not any more."""
        self._held.pop(path, None)

    async def put(self, path: str) -> None:
        now = self.clock.now()
        resource = self.connection.resource(path)
        token = await self.credential.token(resource, now)
        asked = {
            "operation": "put-token",
            "type": token.kind,
            "name": resource,
            "expiration": expiration(token),
        }
        try:
            await self.ask(asked, token.text)
        except AuthError as refused:
            raise self.not_opened(refused) from None
        self._held[path] = Held(token.expires_at, renewal_at(now, token.expires_at))

    def not_opened(self, refused: AuthError) -> AuthError:
        """The refusal, with what it was that did not open."""
        text = f"{self.connection.place} does not take the {self.credential.name}"
        return AuthError(f"{text}: {refused.description}", refused.status)

    async def keep(self) -> None:
        """Renew for as long as the connection lives; raises once a path is closed for good."""
        while self.credential.renews:
            await self.clock.sleep(self.pause_s())
            for path, held in list(self._held.items()):
                if self.clock.now() >= held.renew_at:
                    await self.renew(path, held)

    def pause_s(self) -> float:
        """Until the next token is due, within reason."""
        due = min((held.renew_at for held in self._held.values()), default=float("inf"))
        return min(CHECK_S, max(CHECK_AT_MOST_EVERY_S, due - self.clock.now()))

    async def renew(self, path: str, held: Held) -> None:
        try:
            await self.put(path)
        except PumphouseError as failed:
            now = self.clock.now()
            left_s = held.expires_at - now
            if left_s <= 0:
                raise
            self._held[path] = replace(held, renew_at=now + min(AGAIN_S, left_s))
            log.warning("renew token path=%s left_s=%.0f failed: %s", path, left_s, failed)


def expiration(token: Token) -> Timestamp:
    """When a token runs out, as put-token wants to hear it."""
    return NEVER if token.expires_at == float("inf") else Timestamp(int(token.expires_at) * 1000)
