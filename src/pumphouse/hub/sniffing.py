"""One port for both: the first byte tells whether a client speaks TLS.

A TLS client opens with a handshake record, whose first byte no HTTP method begins with. The byte is
looked at and left where it is; then the connection goes on as if it had been accepted for TLS, or
for plain bytes, from the start.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("pumphouse.hub")

TLS_HANDSHAKE = b"\x16"
BACKLOG = 100
SILENT_MAX = 500  # connections that may wait for their first byte or for TLS at once
RETRY_S = 0.2  # after the system had no room for another connection


class SniffingListener:
    """A listening socket whose connections may be encrypted or not."""

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], context: ssl.SSLContext, handshake_s: float
    ) -> None:
        self.factory = factory
        self.context = context
        self.handshake_s = handshake_s

    async def start(self, host: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.socket = await listening_socket(host, port)
        self.port: int = self.socket.getsockname()[1]
        self._accepting = self.loop.create_task(self.accept_forever(), name="websocket port")

    async def stop(self) -> None:
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        self.socket.close()

    async def accept_forever(self) -> None:
        room = asyncio.Semaphore(SILENT_MAX)
        async with asyncio.TaskGroup() as welcomes:
            while True:
                await room.acquire()
                connection = await self.accept()
                welcome = welcomes.create_task(self.welcome(connection))
                welcome.add_done_callback(lambda done: room.release())

    async def accept(self) -> socket.socket:
        while True:
            try:
                connection, _ = await self.loop.sock_accept(self.socket)
                return connection
            except OSError as failed:
                log.warning("accept failed: %s", failed.strerror)
                await asyncio.sleep(RETRY_S)

    async def welcome(self, connection: socket.socket) -> None:
        """Find out how a client speaks, and let it in."""
        connection.setblocking(False)
        try:
            async with asyncio.timeout(self.handshake_s):
                first = await self.first_byte(connection)
                await self.let_in(connection, encrypted=first == TLS_HANDSHAKE)
        except (OSError, TimeoutError) as failed:  # a failed TLS handshake is an OSError
            log.info("a connection was not opened: %s", failed)
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def first_byte(self, connection: socket.socket) -> bytes:
        """The first byte that arrives; nothing if the client left. It can still be read."""
        arrived = self.loop.create_future()
        self.loop.add_reader(connection, lambda: arrived.done() or arrived.set_result(None))
        try:
            await arrived
        finally:
            self.loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)

    async def let_in(self, connection: socket.socket, encrypted: bool) -> None:
        if encrypted:
            await self.loop.connect_accepted_socket(
                self.factory,
                connection,
                ssl=self.context,
                ssl_handshake_timeout=self.handshake_s,
                ssl_shutdown_timeout=1.0,
            )
        else:
            await self.loop.connect_accepted_socket(self.factory, connection)


async def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens, as asyncio would have made it."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening
