"""The connections of one store: opened when they are needed, each used by one call at a time.

A call has a deadline that includes the wait for a connection, its opening and the statements. If it
passes, or the caller is cancelled, the socket of the connection is shut down: nothing waits for a
server that does not respond.

    PostgresStore -> Connections.run -> psycopg.AsyncConnection
                     ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.stores.postgres.errors import database_name, store_error

T = TypeVar("T")
Connection = psycopg.AsyncConnection[Any]

# Notices a dead peer even while nothing is sent. The URL may have other values.
KEEPALIVE = {"keepalives_idle": "10", "keepalives_interval": "5", "keepalives_count": "3"}
APPLICATION = "pumphouse"
CLOSE_S = 2.0


class Connections:
    """At most `most` connections to the database of `url`."""

    def __init__(self, url: str, deadline_s: float, most: int) -> None:
        self.name = database_name(url)
        self.deadline_s = deadline_s
        self._url = url
        self._free = asyncio.Semaphore(most)
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._process = os.getpid()
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<Connections {self.name} | {len(self._in_use)} in use, {len(self._idle)} idle>"

    async def run(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """The result of `work` with a connection, within the deadline."""
        self._check()
        async with (
            self.reported(),
            asyncio.timeout(self.deadline_s),
            self.lease() as connection,
        ):
            return await interruptible(connection, work(connection))

    @asynccontextmanager
    async def reported(self) -> AsyncGenerator[None, None]:
        """Errors of psycopg, and timeouts, as errors of the store."""
        try:
            yield
        except (psycopg.Error, UnicodeError) as error:
            raise store_error(self.name, error) from None
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.name} did not respond within {self.deadline_s:g} s"
            ) from None
        except OSError as error:
            raise StoreUnavailable(f"{self.name}: {error.strerror or error!r}") from None

    @asynccontextmanager
    async def lease(self) -> AsyncGenerator[Connection, None]:
        """A connection for one caller, which bounds the time itself."""
        async with self._free:
            connection = self._take() or await self.connect()
            self._in_use.add(connection)
            try:
                yield connection
            finally:
                self._in_use.discard(connection)
                self._give_back(connection)

    def _check(self) -> None:
        if self.is_closed:
            raise StoreError(f"{self.name} is not open; use `async with`")
        if self._process != os.getpid():
            raise StoreError(
                f"{self.name} was opened before this process was forked; open a separate store "
                "in each process"
            )

    async def connect(self) -> Connection:
        """A new connection, in autocommit mode."""
        settings = {key: value for key, value in KEEPALIVE.items() if f"{key}=" not in self._url}
        connection = await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            # Prepared statements do not survive a pooler that shares connections.
            prepare_threshold=None,
            **settings,  # type: ignore[arg-type]
            fallback_application_name=APPLICATION,
        )
        try:
            await interruptible(connection, self._prepare(connection))
        except BaseException:
            self.discard(connection)
            raise
        return connection

    async def _prepare(self, connection: Connection) -> None:
        """Settings of the session: not options of the start, which poolers refuse."""
        timeout_ms = max(1, int(self.deadline_s * 1000))
        # A granted lease must survive a crash of the server: its epoch may be in use.
        await connection.execute(
            "SELECT set_config('statement_timeout', %s, false), set_config('synchronous_commit', "
            "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
            "ELSE current_setting('synchronous_commit') END, false)",
            (str(timeout_ms),),
        )

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not _has_input(connection):
                return connection
            self.discard(connection)  # the server has closed it
        return None

    def _give_back(self, connection: Connection) -> None:
        usable = connection.pgconn.transaction_status == TransactionStatus.IDLE
        if usable and not connection.closed and not self.is_closed:
            self._idle.append(connection)
            return
        self.discard(connection)
        # The idle ones are probably broken too. If one is intact, replacing it costs little.
        while self._idle:
            self.discard(self._idle.pop())

    def discard(self, connection: Connection) -> None:
        """Close a connection without waiting for the server."""
        shut_down(connection)
        closing = asyncio.get_running_loop().create_task(_close(connection))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close everything; calls that still run fail."""
        self.is_closed = True
        for connection in list(self._in_use):
            shut_down(connection)
        while self._idle:
            self.discard(self._idle.pop())
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSE_S)


async def interruptible(connection: Connection, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`. If cancelled, it ends at once, and the connection is broken."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            shut_down(connection)  # psycopg would wait for the server for up to ten seconds
            await asyncio.wait([task], timeout=CLOSE_S)
        if not task.cancelled():
            task.exception()
        raise
    return task.result()


def shut_down(connection: Connection) -> None:
    """End both directions of the socket: what waits for it fails."""
    with (
        suppress(psycopg.Error, OSError),
        # A duplicate: the connection itself closes its own descriptor.
        socket.socket(fileno=os.dup(connection.pgconn.socket)) as peer,
    ):
        peer.shutdown(socket.SHUT_RDWR)


async def _close(connection: Connection) -> None:
    with suppress(psycopg.Error, OSError):
        await connection.close()


def _has_input(connection: Connection) -> bool:
    """Whether an idle connection has something to read: the server has ended it."""
    if connection.closed:
        return True
    poll = select.poll()
    try:
        poll.register(connection.pgconn.socket, select.POLLIN)
        return bool(poll.poll(0))
    except (psycopg.Error, OSError, ValueError):
        return True
