"""A listener for TLS, or for TLS and plain connections on one port.

A TLS client starts with a handshake record, whose first byte is not the first of any HTTP method.
The listener peeks at that byte and then continues as if the connection had been accepted for TLS,
or for plain bytes, from the start.

asyncio's own server is not used: it does not know a connection until its TLS handshake is done, so
a hub that stops during the handshake could not close it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from pumphouse.logs import RepeatedFailures, line

log = logging.getLogger("pumphouse.hub")

TLS_HANDSHAKE = b"\x16"
BACKLOG = 100
HANDSHAKES_MAX = 500  # connections that may be before or in their handshake at once
RETRY_S = 0.2  # after the system could not accept another connection
SHUTDOWN_S = 1.0  # for a TLS client to respond to the end of the session


class TlsListener:
    """A listening port for TLS and, with `plain_too`, for plain connections."""

    def __init__(
        self,
        factory: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext,
        *,
        handshake_s: float,
        plain_too: bool = False,
    ) -> None:
        self.factory = factory
        self.context = context
        self.handshake_s = handshake_s
        self.plain_too = plain_too
        self._failures = RepeatedFailures()

    async def start(self, host: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.socket = await listening_socket(host, port)
        self.port: int = self.socket.getsockname()[1]
        self._accepting = self.loop.create_task(self.accept_forever(), name="tls listener")

    async def stop(self) -> None:
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        self.socket.close()

    async def accept_forever(self) -> None:
        slots = asyncio.Semaphore(HANDSHAKES_MAX)
        async with asyncio.TaskGroup() as handshakes:
            while True:
                await slots.acquire()
                connection = await self.accept()
                handshake = handshakes.create_task(self.handshake(connection))
                handshake.add_done_callback(lambda done: slots.release())

    async def accept(self) -> socket.socket:
        while True:
            try:
                connection, _ = await self.loop.sock_accept(self.socket)
            except OSError as failure:
                self.log_failure(failure)
                await asyncio.sleep(RETRY_S)
            else:
                if count := self._failures.succeeded("accept"):
                    log.info("%s", line("accept_recovered", port=self.port, count=count))
                return connection

    def log_failure(self, failure: OSError) -> None:
        count = self._failures.failed("accept", failure)
        if count is not None:
            todo = "raise the limit of open files, or close connections"
            log.warning(
                "%s", line("accept_failed", port=self.port, error=failure, count=count, todo=todo)
            )

    async def handshake(self, connection: socket.socket) -> None:
        """Find out whether a client uses TLS, and connect it to a protocol."""
        connection.setblocking(False)
        try:
            async with asyncio.timeout(self.handshake_s):
                await self.connect(connection, await self.uses_tls(connection))
        except (OSError, TimeoutError) as failure:  # a failed TLS handshake is an OSError
            cause = str(failure) or "timed out"
            log.info("%s", line("handshake_failed", port=self.port, error=cause))
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def uses_tls(self, connection: socket.socket) -> bool:
        return not self.plain_too or await self.first_byte(connection) == TLS_HANDSHAKE

    async def first_byte(self, connection: socket.socket) -> bytes:
        """The first received byte, left in the socket; empty if the client has closed."""
        arrived = asyncio.Event()
        self.loop.add_reader(connection, arrived.set)
        try:
            await arrived.wait()
            return connection.recv(1, socket.MSG_PEEK)
        finally:
            self.loop.remove_reader(connection)

    async def connect(self, connection: socket.socket, tls: bool) -> None:
        if tls:
            await self.loop.connect_accepted_socket(
                self.factory,
                connection,
                ssl=self.context,
                ssl_handshake_timeout=self.handshake_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        else:
            await self.loop.connect_accepted_socket(self.factory, connection)


async def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on the first address of a host name."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = addresses[0]
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening
