"""The connection of a client, made anew whenever it is broken.

A client has one line, shared by all its readers, senders and questions. A *contact* is one living
connection on it, with its tokens. Whoever needs the hub asks for the contact; if there is none, one
is dialled, once for all who wait, with back-off and within the patience that `RetryOptions` gives.

    NativeReader, NativeSender, NativeManagement -> ReconnectingConnection -> AuthorizedConnection
                                                    ^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Self, TypeVar

from pumphouse.client.base import RetryOptions
from pumphouse.client.connection_string import ConnectionString
from pumphouse.client.credentials import Credential
from pumphouse.client.native.connection import Connection, ConnectionOptions, connect
from pumphouse.client.native.requests import RequestClient
from pumphouse.client.native.tokens import Tokens
from pumphouse.client.native.transports import tls_context
from pumphouse.client.retries import delay_s, judge
from pumphouse.client.routes import Route
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import ConnectionFailed, LocalProtocolError, PumphouseError

log = logging.getLogger("pumphouse.client")

CBS, MANAGEMENT = "$cbs", "$management"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Where a line leads, what opens it, and how patient it is."""

    connection: ConnectionString
    route: Route
    credential: Credential
    ca_file: str | Path | None = None
    context: ssl.SSLContext | None = None  # in place of `ca_file`, for whoever wants to choose all
    waits: ConnectionOptions = field(default_factory=ConnectionOptions)
    retry: RetryOptions = field(default_factory=RetryOptions)
    clock: Clock = field(default_factory=SystemClock)
    rng: Random = field(default_factory=Random)


class AuthorizedConnection:
    """One connection, from its first word to its end. Made by `open`."""

    def __init__(self, wire: Connection, options: ConnectionSettings) -> None:
        self.wire = wire
        self.tokens = Tokens(self.put, options.connection, options.credential, options.clock)
        self._calls: dict[str, RequestClient] = {}
        self._opening = asyncio.Lock()  # so that two who ask at once open it once
        self._keeping = asyncio.create_task(self.keep_tokens(), name="token renewal")

    def __repr__(self) -> str:
        return f"<AuthorizedConnection {self.wire!r}>"

    @classmethod
    async def open(cls, options: ConnectionSettings, context: ssl.SSLContext | None) -> Self:
        wire = await connect(options.route, options.waits, context)
        contact = cls(wire, options)
        try:
            await contact.calls(CBS)
        except BaseException:
            await contact.close()
            raise
        return contact

    @property
    def alive(self) -> bool:
        return self.wire.failure is None

    async def calls(self, node: str) -> RequestClient:
        """The links to $cbs or $management; made anew if the hub has closed them."""
        async with self._opening:
            found = self._calls.get(node)
            if found is None or found.broken:
                found = self._calls[node] = await RequestClient.open(self.wire, node)
        return found

    async def put(self, asked: Mapping[str, Any], token: Any) -> None:
        await (await self.calls(CBS)).ask(asked, token)

    async def keep_tokens(self) -> None:
        """Renew tokens. If that fails the links are about to be cut, so everybody hears why."""
        try:
            await self.tokens.keep()
        except PumphouseError as failed:
            self.wire.fail(failed)

    async def close(self) -> None:
        self._keeping.cancel()
        try:
            # Not `await self._keeping`: its being cancelled could not be told from our own.
            await asyncio.wait([self._keeping])
        finally:
            await self.wire.close()


class ReconnectingConnection:
    """The way to a hub, whatever happens to the connection."""

    def __init__(self, options: ConnectionSettings) -> None:
        self.options = options
        self._context = options.context
        self._contact: AuthorizedConnection | None = None
        self._dialling: asyncio.Task[AuthorizedConnection] | None = None
        self._closed = asyncio.Event()

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "up" if self.current is not None else "down"
        return f"<ReconnectingConnection {self.options.route.place} {state}>"

    @property
    def current(self) -> AuthorizedConnection | None:
        """The living connection, if there is one."""
        return self._contact if self._contact is not None and self._contact.alive else None

    async def contact(self, retry: RetryOptions | None = None) -> AuthorizedConnection:
        """The living connection; one is made if there is none, within the line's patience."""
        if self._closed.is_set():
            raise self.hung_up()
        if (current := self.current) is not None:
            return current
        if self._dialling is None or self._dialling.done():
            self._dialling = asyncio.create_task(
                self.dial(retry or self.options.retry), name="dialling"
            )
            # Those who wait are told; if all of them have gone, nobody is.
            self._dialling.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self.wait_for(self._dialling)

    async def wait_for(self, dialling: asyncio.Task[AuthorizedConnection]) -> AuthorizedConnection:
        try:
            return await asyncio.shield(dialling)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if self._closed.is_set() and here is not None and not here.cancelling():
                raise self.hung_up() from None
            raise

    async def dial(self, retry: RetryOptions) -> AuthorizedConnection:
        """Connect, as often as patience allows."""
        failures = 0
        while True:
            try:
                return await self.dial_once()
            except PumphouseError as failed:
                failures += 1
                if (verdict := judge(failed, failures, retry)) is not None:
                    raise verdict from failed
                log.debug("dial again failures=%d why=%s", failures, failed)
            await self.options.clock.sleep(delay_s(failures, retry, self.options.rng))

    async def dial_once(self) -> AuthorizedConnection:
        if self.options.route.tls and self._context is None:
            # Reading what a machine trusts takes a while, and happens on the disk.
            self._context = await asyncio.to_thread(tls_context, self.options.ca_file)
        if self._contact is not None:
            await self._contact.close()
        self._contact = await AuthorizedConnection.open(self.options, self._context)
        log.debug("connect place=%s", self.options.route.place)
        return self._contact

    async def persist(
        self,
        ask: Callable[[AuthorizedConnection], Awaitable[T]],
        *,
        failures: int = 0,
        again: bool = False,
    ) -> T:
        """Do something over the line; what passes by itself is tried again, within patience.

        `failures` is how often it has failed before this call. `again` is for what had succeeded
        once: see `retries.passes`.
        """
        retry = self.options.retry
        while True:
            if failures:
                await self.pause(delay_s(failures, retry, self.options.rng))
            contact = await self.contact()
            try:
                return await ask(contact)
            except PumphouseError as failed:
                if isinstance(failed, ConnectionFailed):
                    # A hub that owes us an answer for so long is taken for dead.
                    contact.wire.fail(failed)
                failures += 1
                if (verdict := judge(failed, failures, retry, again=again)) is not None:
                    raise verdict from failed
                log.debug("try again failures=%d why=%s", failures, failed)

    async def pause(self, seconds: float) -> None:
        """Wait for so long, but not if the client is closed meanwhile."""
        sleeping = asyncio.create_task(self.options.clock.sleep(seconds), name="pause")
        closing = asyncio.create_task(self._closed.wait(), name="pause")
        try:
            await asyncio.wait([sleeping, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            closing.cancel()

    def hung_up(self) -> LocalProtocolError:
        return LocalProtocolError(f"the client of {self.options.route.place} has been closed")

    async def close(self) -> None:
        """Hang up. Bounded, whatever the hub does."""
        self._closed.set()
        if self._dialling is not None:
            self._dialling.cancel()
            await asyncio.wait([self._dialling])
        if self._contact is not None:
            await self._contact.close()
