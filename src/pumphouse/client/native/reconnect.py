"""The connection of a client, reopened whenever it breaks.

A client has one ReconnectingConnection, shared by its readers, senders and management calls. An
AuthorizedConnection is one open connection with its tokens. If there is none, the first caller
opens one for all callers that wait, with back-off and as `RetryOptions` allows.

    NativeReader, NativeSender, NativeManagement -> ReconnectingConnection -> AuthorizedConnection
                                                    ^^^^^^^^^^^^^^^^^^^^^^ this module ^^^^^^^^^^^
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar

from pumphouse.client.base import RetryOptions
from pumphouse.client.connection_string import ConnectionString
from pumphouse.client.credentials import Credential
from pumphouse.client.native.connection import Connection, ConnectionOptions, connect
from pumphouse.client.native.requests import RequestClient
from pumphouse.client.native.tokens import Tokens
from pumphouse.client.native.transports import tls_context
from pumphouse.client.retries import delay_s, failure_to_raise, longest_wait_s
from pumphouse.client.routes import Route
from pumphouse.errors import ConnectionFailed, LocalProtocolError, PumphouseError
from pumphouse.logs import line

log = logging.getLogger("pumphouse.client")

TODO = "check the address and that the hub is running; further attempts follow"
CBS, MANAGEMENT = "$cbs", "$management"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """The address, credential, timeouts and retries of a connection."""

    connection_string: ConnectionString
    route: Route
    credential: Credential
    ca_file: str | Path | None = None
    context: ssl.SSLContext | None = None  # replaces `ca_file`
    options: ConnectionOptions = field(default_factory=ConnectionOptions)
    retry: RetryOptions = field(default_factory=RetryOptions)


class AuthorizedConnection:
    """One open connection with its tokens and request clients. Made by `open`."""

    def __init__(self, connection: Connection, settings: ConnectionSettings) -> None:
        self.connection = connection
        self.tokens = Tokens(
            self.put_token, settings.connection_string, settings.credential, settings.options.clock
        )
        self._request_clients: dict[str, RequestClient] = {}
        self._opening = asyncio.Lock()  # concurrent callers share one request client
        self._renewal = asyncio.create_task(self.renew_tokens(), name="token renewal")

    def __repr__(self) -> str:
        return f"<AuthorizedConnection {self.connection!r}>"

    @classmethod
    async def open(cls, settings: ConnectionSettings, context: ssl.SSLContext | None) -> Self:
        connection = await connect(settings.route, settings.options, context)
        authorized = cls(connection, settings)
        try:
            await authorized.request_client(CBS)
        except BaseException:
            await authorized.close()
            raise
        return authorized

    @property
    def alive(self) -> bool:
        return self.connection.failure is None

    async def request_client(self, node: str) -> RequestClient:
        """The links to $cbs or $management, reopened if the hub has closed them."""
        async with self._opening:
            client = self._request_clients.get(node)
            if client is None or client.broken:
                client = self._request_clients[node] = await RequestClient.open(
                    self.connection, node
                )
        return client

    async def put_token(self, request: Mapping[str, Any], token: Any) -> None:
        await (await self.request_client(CBS)).request(request, token)

    async def renew_tokens(self) -> None:
        """Renew tokens. A final failure breaks the connection, because the hub would close it."""
        try:
            await self.tokens.renew_forever()
        except PumphouseError as failed:
            self.connection.fail(failed)

    async def close(self) -> None:
        self._renewal.cancel()
        try:
            # Not `await self._renewal`: its cancellation would look like our own.
            await asyncio.wait([self._renewal])
        finally:
            await self.connection.close()


class ReconnectingConnection:
    """A connection to a hub that is reopened when it breaks."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self._context = settings.context
        self._current: AuthorizedConnection | None = None
        self._connecting: asyncio.Task[AuthorizedConnection] | None = None
        self._closed = asyncio.Event()
        self._has_opened = False

    def __repr__(self) -> str:
        state = "closed" if self._closed.is_set() else "up" if self.current is not None else "down"
        return f"<ReconnectingConnection {self.settings.route.address} {state}>"

    @property
    def current(self) -> AuthorizedConnection | None:
        """The open connection, if there is one."""
        return self._current if self._current is not None and self._current.alive else None

    async def connect(self, retry: RetryOptions | None = None) -> AuthorizedConnection:
        """The open connection; a new one is opened if there is none, as `retry` allows."""
        if self._closed.is_set():
            raise self.closed_error()
        self.check_process()
        if (current := self.current) is not None:
            return current
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(
                self.connect_with_retries(retry or self.settings.retry), name="connecting"
            )
            # Retrieve the exception also if all callers were cancelled meanwhile.
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self.wait_for(self._connecting)

    async def wait_for(
        self, connecting: asyncio.Task[AuthorizedConnection]
    ) -> AuthorizedConnection:
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._closed.is_set() and caller is not None and not caller.cancelling():
                raise self.closed_error() from None
            raise

    async def connect_with_retries(self, retry: RetryOptions) -> AuthorizedConnection:
        failures = 0
        while True:
            try:
                authorized = await self.connect_once()
                self.log_opened(failures)
                return authorized
            except PumphouseError as failed:
                failures += 1
                if (error := failure_to_raise(failed, failures, retry)) is not None:
                    raise error from failed
                self.log_failed_attempt(failures, failed, retry)
            await self.settings.options.clock.sleep(
                delay_s(failures, retry, self.settings.options.rng)
            )

    async def connect_once(self) -> AuthorizedConnection:
        if self.settings.route.tls and self._context is None:
            # Loading the certificate authorities of the machine reads the disk.
            self._context = await asyncio.to_thread(tls_context, self.settings.ca_file)
        if self._current is not None:
            await self._current.close()
        self._current = await AuthorizedConnection.open(self.settings, self._context)
        return self._current

    def log_opened(self, failures: int) -> None:
        """INFO if warnings have been logged about this connection."""
        level = logging.INFO if failures and not self._has_opened else logging.DEBUG
        self._has_opened = True
        address = self.settings.route.address
        log.log(level, "%s", line("connection_opened", address=address, failures=failures or None))

    def log_failed_attempt(
        self, failures: int, failed: PumphouseError, retry: RetryOptions
    ) -> None:
        """A warning for the first attempt of a client: its caller waits and has no error yet."""
        if self._has_opened or failures > 1:
            self.log_retry("connect_failed", failures, failed)
            return
        fields: dict[str, object] = {"address": self.settings.route.address, "failures": failures}
        fields |= {"retries": retry.attempts, "retries_wait_s": longest_wait_s(failures, retry)}
        log.warning("%s", line("connect_failed", **fields, cause=failed, todo=TODO))

    async def run_with_retries(
        self,
        call: Callable[[AuthorizedConnection], Awaitable[T]],
        *,
        failures: int = 0,
        resumed: bool = False,
    ) -> T:
        """Run a call over the connection, and retry transient failures.

        `failures` is the number of earlier failures of the same call. `resumed` marks a call that
        has succeeded before: see `retries.is_transient`.
        """
        retry = self.settings.retry
        while True:
            if failures:
                await self.pause(delay_s(failures, retry, self.settings.options.rng))
            authorized = await self.connect()
            try:
                return await call(authorized)
            except PumphouseError as failed:
                if isinstance(failed, ConnectionFailed):
                    # The hub did not respond in time: the connection counts as dead.
                    authorized.connection.fail(failed)
                failures += 1
                error = failure_to_raise(failed, failures, retry, resumed=resumed)
                if error is not None:
                    raise error from failed
                self.log_retry("call_failed", failures, failed)

    def log_retry(self, event: str, failures: int, failed: PumphouseError) -> None:
        address = self.settings.route.address
        log.debug("%s", line(event, address=address, failures=failures, cause=failed))

    async def pause(self, seconds: float) -> None:
        """Wait; return early if the client is closed."""
        sleeping = asyncio.create_task(self.settings.options.clock.sleep(seconds), name="pause")
        closing = asyncio.create_task(self._closed.wait(), name="pause")
        try:
            await asyncio.wait([sleeping, closing], return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            closing.cancel()

    def closed_error(self) -> LocalProtocolError:
        return LocalProtocolError(f"the client of {self.settings.route.address} has been closed")

    @property
    def is_inherited(self) -> bool:
        """Whether a forked child would use the connection of its parent."""
        return self._current is not None and self._current.connection.is_inherited

    def check_process(self) -> None:
        if self._current is not None and self._current.connection.is_inherited:
            raise LocalProtocolError(
                f"the client of {self.settings.route.address} was opened in process "
                f"{self._current.connection.process}: a forked child cannot use it; open a client "
                "in the child"
            )

    async def close(self) -> None:
        """Close the connection, within its timeouts."""
        if self.is_inherited:
            return
        self._closed.set()
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        if self._current is not None:
            await self._current.close()
