"""A port for TLS, or for both: the first byte tells whether a client speaks it.

A TLS client opens with a handshake record, whose first byte no HTTP method begins with. The byte is
looked at and left where it is; then the connection goes on as if it had been accepted for TLS, or
for plain bytes, from the start.

asyncio's own listener is not used because it forgets about a connection until its handshake is
done: a hub that stops meanwhile could not close it.
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
UNDECIDED_MAX = 500  # connections that may be at their first byte or their handshake at once
RETRY_S = 0.2  # after the system had no room for another connection
GOODBYE_S = 1.0  # for a TLS client to answer our farewell


class TlsListener:
    """A listening port for TLS and, if `plain_too`, for those who do not speak it."""

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

    async def start(self, host: str, port: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.socket = await listening_socket(host, port)
        self.port: int = self.socket.getsockname()[1]
        self._accepting = self.loop.create_task(self.accept_forever(), name="tls port")

    async def stop(self) -> None:
        self._accepting.cancel()
        with suppress(asyncio.CancelledError):
            await self._accepting
        self.socket.close()

    async def accept_forever(self) -> None:
        room = asyncio.Semaphore(UNDECIDED_MAX)
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
                await self.let_in(connection, await self.speaks_tls(connection))
        except (OSError, TimeoutError) as failed:  # a failed TLS handshake is an OSError
            log.info("refuse port=%d %s", self.port, failed or "no handshake in time")
            connection.close()
        except BaseException:
            connection.close()
            raise

    async def speaks_tls(self, connection: socket.socket) -> bool:
        return not self.plain_too or await self.first_byte(connection) == TLS_HANDSHAKE

    async def first_byte(self, connection: socket.socket) -> bytes:
        """The first byte that arrives; nothing if the client left. It can still be read."""
        arrived = asyncio.Event()
        self.loop.add_reader(connection, arrived.set)
        try:
            await arrived.wait()
            return connection.recv(1, socket.MSG_PEEK)
        finally:
            self.loop.remove_reader(connection)

    async def let_in(self, connection: socket.socket, tls: bool) -> None:
        if tls:
            await self.loop.connect_accepted_socket(
                self.factory,
                connection,
                ssl=self.context,
                ssl_handshake_timeout=self.handshake_s,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        else:
            await self.loop.connect_accepted_socket(self.factory, connection)


async def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens, on the first address that the host name stands for."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, _, _, _, address = found[0]
    listening = socket.create_server(address, family=family, backlog=BACKLOG)
    listening.setblocking(False)
    return listening
