"""The listeners of a hub besides plain AMQP: TLS, WebSocket and HTTP, each on its own port.

    plain port (server.py)    AMQP
    tls_port                  AMQP over TLS
    ws_port                   AMQP over WebSocket; over TLS too (wss), if the hub has a certificate
    http_port                 the HTTP API, on loopback only

An AMQP connection is the same behind each of them and belongs to the server, which also ends it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pumphouse.hub.connection import HubConnection
from pumphouse.hub.listeners.tls import Tls, development_tls, tls_from_files
from pumphouse.hub.listeners.tls_listener import TlsListener
from pumphouse.hub.options import ListenerOptions
from pumphouse.hub.server import HubServer, cannot_listen, close_port
from pumphouse.logs import line

if TYPE_CHECKING:
    from pumphouse.hub.listeners.http import HttpConnection
    from pumphouse.hub.listeners.websocket import ServerWebSocket

log = logging.getLogger("pumphouse.hub")

HANDSHAKE_S = 10.0  # for TLS

Factory = Callable[[], asyncio.Protocol]


class Listeners:
    """The running listeners of one hub."""

    def __init__(self, server: HubServer, options: ListenerOptions) -> None:
        self.server = server
        self.options = options
        self.tls: Tls | None = None
        self.tls_port: int | None = None
        self.ws_port: int | None = None
        self.http_port: int | None = None
        self._ports = AsyncExitStack()
        self._cleanup = ExitStack()

    @property
    def ca_file(self) -> Path | None:
        """The authority for clients to trust; None without TLS or with the user's certificate."""
        return self.tls.ca_file if self.tls is not None else None

    async def start(self, host: str) -> None:
        """Start all listeners, or none."""
        try:
            await self.start_each(host)
        except BaseException:
            await self.close()
            raise

    async def start_each(self, host: str) -> None:
        options = self.options
        if options.has_tls:
            self.tls = self.prepare_tls(host)
        if options.tls_port is not None:
            self.tls_port = await self.start_tls(host, options.tls_port)
        if options.ws_port is not None:
            self.ws_port = await self.start_websocket(host, options.ws_port)
        if options.http_port is not None:
            self.http_port = await self.start_http(loopback(host), options.http_port)

    async def stop(self) -> None:
        """Accept no more connections. The server ends the existing ones."""
        await self._ports.aclose()

    async def close(self) -> None:
        """Stop, and remove a temporary certificate authority."""
        await self.stop()
        self._cleanup.close()

    def prepare_tls(self, host: str) -> Tls:
        if self.options.certificate is not None:
            return tls_from_files(self.options.certificate)
        if self.options.tls_dir is not None:
            return development_tls(host, Path(self.options.tls_dir))
        directory = Path(tempfile.mkdtemp(prefix="pumphouse-tls-"))
        self._cleanup.callback(shutil.rmtree, directory, ignore_errors=True)
        return development_tls(host, directory)

    # -- one listener each ------------------------------------------------------------------------

    async def start_tls(self, host: str, port: int) -> int:
        return await self.listen_for_tls(self.make_connection, host, port, "tls")

    async def start_websocket(self, host: str, port: int) -> int:
        # Imported here: most hubs have no such listener, and start faster without its packages.
        from pumphouse.hub.listeners.websocket import ServerWebSocket

        handshaking: set[ServerWebSocket] = set()
        self._ports.callback(abort_all, handshaking)

        def factory() -> ServerWebSocket:
            return ServerWebSocket(self.make_connection, handshaking)

        if self.tls is not None:
            return await self.listen_for_tls(factory, host, port, "ws,wss", plain_too=True)
        return await self.listen(factory, host, port, "ws")

    async def start_http(self, host: str, port: int) -> int:
        from pumphouse.hub.listeners.admin_api import AdminApi
        from pumphouse.hub.listeners.http import HttpConnection
        from pumphouse.hub.rates import EVERY_S

        api = AdminApi(self.server.namespace)
        connections: set[HttpConnection] = set()
        self._ports.callback(abort_all, connections)
        api.port = await self.listen(lambda: HttpConnection(api, connections), host, port, "http")
        sampling = self.server.loop.create_task(repeat(api.sample, EVERY_S), name="hub rates")
        self._ports.callback(sampling.cancel)
        return api.port

    def make_connection(self) -> HubConnection:
        return HubConnection(self.server)

    # -- ports ------------------------------------------------------------------------------------

    async def listen(self, factory: Factory, host: str, port: int, kind: str) -> int:
        """Listen on a port until `stop`; returns the port."""
        try:
            listening = await self.server.loop.create_server(factory, host, port)
        except OSError as failure:
            raise cannot_listen(host, port, failure) from None
        self._ports.push_async_callback(close_port, listening)
        return log_started(host, listening.sockets[0].getsockname()[1], kind)

    async def listen_for_tls(
        self, factory: Factory, host: str, port: int, kind: str, plain_too: bool = False
    ) -> int:
        """Listen for TLS on a port until `stop`; returns the port."""
        assert self.tls is not None
        listener = TlsListener(
            factory, self.tls.context, handshake_s=HANDSHAKE_S, plain_too=plain_too
        )
        try:
            await listener.start(host, port)
        except OSError as failure:
            raise cannot_listen(host, port, failure) from None
        self._ports.push_async_callback(listener.stop)
        return log_started(host, listener.port, kind)


def log_started(host: str, port: int, kind: str) -> int:
    log.info("%s", line("listener_started", address=f"{host}:{port}", kind=kind))
    return port


async def repeat(action: Callable[[], None], every_s: float) -> None:
    while True:
        action()
        await asyncio.sleep(every_s)


class Abortable(Protocol):
    """A connection with a transport that can be aborted."""

    transport: asyncio.Transport


def abort_all(connections: Iterable[Abortable]) -> None:
    for connection in list(connections):
        connection.transport.abort()


def loopback(host: str) -> str:
    """The address for the HTTP API: the hub's own if that is loopback, else 127.0.0.1."""
    try:
        return host if ipaddress.ip_address(host).is_loopback else "127.0.0.1"
    except ValueError:
        return "127.0.0.1"
