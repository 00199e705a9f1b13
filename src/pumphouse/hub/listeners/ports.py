"""Every way into the hub besides plain AMQP: TLS, WebSocket and HTTP, each on a port of its own.

    plain port (server.py)    AMQP
    tls_port                  AMQP over TLS
    ws_port                   AMQP over WebSocket; over TLS too (wss), if the hub has a certificate
    http_port                 the HTTP API, on loopback only

A conversation is the same behind each of them, and the server that owns it ends it; here are only
the ports, and what stands between a port and a conversation.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pumphouse.hub.connection import Conversation
from pumphouse.hub.listeners.tls import (
    CertificateFiles,
    Tls,
    development_certificate,
    own_certificate,
)
from pumphouse.hub.listeners.tls_listener import TlsListener
from pumphouse.hub.server import HubServer, cannot_listen, close_port

if TYPE_CHECKING:
    from pumphouse.hub.listeners.http import HttpConversation
    from pumphouse.hub.listeners.websocket import ServerWebSocket

log = logging.getLogger("pumphouse.hub")

HANDSHAKE_S = 10.0  # for TLS

Factory = Callable[[], asyncio.Protocol]


@dataclass(frozen=True, slots=True)
class DoorOptions:
    """Which doors there are. A port of 0 is a free one; None is no such door."""

    tls_port: int | None = None
    ws_port: int | None = None
    http_port: int | None = None
    certificate: CertificateFiles | None = None  # files of the user's; None: one is made
    tls_dir: Path | None = None  # where the authority is kept; None: gone when the hub stops

    @property
    def has_tls(self) -> bool:
        return self.tls_port is not None or self.certificate is not None


class Doors:
    """The open doors of one hub."""

    def __init__(self, server: HubServer, options: DoorOptions) -> None:
        self.server = server
        self.options = options
        self.tls: Tls | None = None
        self.tls_port: int | None = None
        self.ws_port: int | None = None
        self.http_port: int | None = None
        self._ports = AsyncExitStack()
        self._rest = ExitStack()

    @property
    def ca_file(self) -> Path | None:
        """What clients are to trust; None without TLS, or with a certificate of the user's."""
        return self.tls.ca_file if self.tls is not None else None

    async def open(self, host: str) -> None:
        """Open them all, or none."""
        try:
            await self.open_each(host)
        except BaseException:
            await self.close()
            raise

    async def open_each(self, host: str) -> None:
        options = self.options
        if options.has_tls:
            self.tls = self.prepare_tls(host)
        if options.tls_port is not None:
            self.tls_port = await self.open_tls(host, options.tls_port)
        if options.ws_port is not None:
            self.ws_port = await self.open_websocket(host, options.ws_port)
        if options.http_port is not None:
            self.http_port = await self.open_http(loopback(host), options.http_port)

    async def shut(self) -> None:
        """Let nobody in any more. Those who are in are the server's to see out."""
        await self._ports.aclose()

    async def close(self) -> None:
        await self.shut()
        self._rest.close()

    def prepare_tls(self, host: str) -> Tls:
        if self.options.certificate is not None:
            return own_certificate(self.options.certificate)
        directory = self.options.tls_dir
        if directory is None:
            directory = Path(tempfile.mkdtemp(prefix="pumphouse-tls-"))
            self._rest.callback(shutil.rmtree, directory, ignore_errors=True)
        return development_certificate(host, directory)

    # -- the doors --------------------------------------------------------------------------------

    async def open_tls(self, host: str, port: int) -> int:
        return await self.listen_for_tls(self.converse, host, port, "tls")

    async def open_websocket(self, host: str, port: int) -> int:
        # Imported here: most hubs have no such door, and should not wait for its packages.
        from pumphouse.hub.listeners.websocket import ServerWebSocket

        waiting: set[ServerWebSocket] = set()
        self._ports.callback(abort_all, waiting)

        def factory() -> ServerWebSocket:
            return ServerWebSocket(self.converse, waiting)

        if self.tls is not None:
            return await self.listen_for_tls(factory, host, port, "ws,wss", plain_too=True)
        return await self.listen(factory, host, port, "ws")

    async def open_http(self, host: str, port: int) -> int:
        from pumphouse.hub.listeners.admin_api import Admin
        from pumphouse.hub.listeners.http import HttpConversation
        from pumphouse.hub.rates import EVERY_S

        admin = Admin(self.server.namespace)
        talking: set[HttpConversation] = set()
        self._ports.callback(abort_all, talking)
        admin.port = await self.listen(lambda: HttpConversation(admin, talking), host, port, "http")
        sampling = self.server.loop.create_task(repeat(admin.sample, EVERY_S), name="hub rates")
        self._ports.callback(sampling.cancel)
        return admin.port

    def converse(self) -> Conversation:
        return Conversation(self.server)

    # -- ports ------------------------------------------------------------------------------------

    async def listen(self, factory: Factory, host: str, port: int, door: str) -> int:
        """Open a port, and remember to close it; which one it is."""
        try:
            listening = await self.server.loop.create_server(factory, host, port)
        except OSError as failed:
            raise cannot_listen(host, port, failed) from None
        self._ports.push_async_callback(close_port, listening)
        return opened(host, listening.sockets[0].getsockname()[1], door)

    async def listen_for_tls(
        self, factory: Factory, host: str, port: int, door: str, plain_too: bool = False
    ) -> int:
        """The same for TLS."""
        assert self.tls is not None
        listener = TlsListener(
            factory, self.tls.context, handshake_s=HANDSHAKE_S, plain_too=plain_too
        )
        try:
            await listener.start(host, port)
        except OSError as failed:
            raise cannot_listen(host, port, failed) from None
        self._ports.push_async_callback(listener.stop)
        return opened(host, listener.port, door)


def opened(host: str, port: int, door: str) -> int:
    log.info("listen address=%s:%d door=%s", host, port, door)
    return port


async def repeat(action: Callable[[], None], every_s: float) -> None:
    while True:
        action()
        await asyncio.sleep(every_s)


class Connected(Protocol):
    """A connection that can be broken."""

    transport: asyncio.Transport


def abort_all(connections: Iterable[Connected]) -> None:
    for connection in list(connections):
        connection.transport.abort()


def loopback(host: str) -> str:
    """The address for the HTTP API: the hub's own if that is on loopback."""
    try:
        return host if ipaddress.ip_address(host).is_loopback else "127.0.0.1"
    except ValueError:
        return "127.0.0.1"
