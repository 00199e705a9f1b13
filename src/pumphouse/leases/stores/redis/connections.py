"""The connections of one store: opened when they are needed, each used by one call at a time.

A call has a deadline that includes the wait for a connection, its opening and the response. A
connection whose call failed, timed out or was cancelled is closed: its response may still arrive.
Nothing is repeated: a repeated write would find its own etag and look refused.

    RedisStore -> Connections.run -> redis.asyncio.Connection
                  ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from redis.asyncio import Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError

from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.stores.redis.address import Address
from pumphouse.leases.stores.redis.errors import first_line, store_error
from pumphouse.leases.stores.redis.scripts import Script

CLOSE_S = 2.0
Argument = str | bytes | int | float


class Connections:
    """At most `most` connections to the database of an address."""

    def __init__(self, address: Address, deadline_s: float, most: int) -> None:
        self.name = address.name
        self.deadline_s = deadline_s
        self._address = address
        self._free = asyncio.Semaphore(most)
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._process = os.getpid()
        self.is_closed = False

    def __repr__(self) -> str:
        return f"<Connections {self.name} | {len(self._in_use)} in use, {len(self._idle)} idle>"

    async def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """The result of a script, within the deadline."""
        self._check()
        async with self.reported(), asyncio.timeout(self.deadline_s), self._free:
            connection = self._idle.pop() if self._idle else self._new()
            self._in_use.add(connection)
            try:
                response = await evaluate(connection, script, keys, arguments)
            except BaseException:
                # The others are probably broken too, or lead to a server that is replica by now.
                await self._drop(connection, *self._idle)
                raise
            finally:
                self._in_use.discard(connection)
            await self._give_back(connection)
            return response

    async def open(self) -> Connection:
        """A connection for one user, who closes it."""
        self._check()
        connection = self._new()
        try:
            async with self.reported(), asyncio.timeout(self.deadline_s):
                await connection.connect()  # type: ignore[no-untyped-call]
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        return connection

    @asynccontextmanager
    async def reported(self) -> AsyncGenerator[None, None]:
        """Errors of redis, and timeouts, as errors of the store."""
        try:
            yield
        except RedisError as error:
            raise store_error(self.name, error) from None
        except TimeoutError:
            raise StoreUnavailable(
                f"{self.name} did not respond within {self.deadline_s:g} s"
            ) from None
        except OSError as error:
            raise StoreUnavailable(f"{self.name}: {first_line(error)}") from None

    def _check(self) -> None:
        if self.is_closed:
            raise StoreError(f"{self.name} is not open; use `async with`")
        if self._process != os.getpid():
            raise StoreError(
                f"{self.name} was opened before this process was forked; open a separate store "
                "in each process"
            )

    def _new(self) -> Connection:
        address = self._address
        options: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "db": address.database,
            "username": address.user or None,
            "password": address.password or None,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            # The deadline of the call bounds everything.
            "socket_timeout": None,
            "socket_connect_timeout": None,
            "socket_keepalive": True,
        }
        if address.tls:
            return SSLConnection(
                ssl_ca_certs=address.ca_file or None, ssl_check_hostname=True, **options
            )
        return Connection(**options)

    async def _give_back(self, connection: Connection) -> None:
        if self.is_closed:
            await self._drop(connection)
        else:
            self._idle.append(connection)

    async def _drop(self, *connections: Connection) -> None:
        for connection in connections:
            if connection in self._idle:
                self._idle.remove(connection)
            with suppress(RedisError, OSError):
                await connection.disconnect(nowait=True)

    async def close(self) -> None:
        """Close everything; calls that still run fail."""
        self.is_closed = True
        await self._drop(*self._in_use, *self._idle)


async def evaluate(
    connection: Connection, script: Script, keys: Sequence[str], arguments: Sequence[Argument]
) -> Any:
    """Run a script that the server may know already. One that it does not know has not run."""
    rest = (len(keys), *keys, *arguments)
    try:
        return await exchange(connection, "EVALSHA", script.digest, *rest)
    except NoScriptError:
        return await exchange(connection, "EVAL", script.text, *rest)


async def exchange(connection: Connection, *command: Argument) -> Any:
    await connection.connect()  # type: ignore[no-untyped-call]
    await connection.send_command(*command)
    return await connection.read_response()
