"""The listeners of a hub besides plain AMQP: TLS, WebSocket and HTTP, each on its own port.

    plain port (server.py)    AMQP
    tls_port                  AMQP over TLS
    ws_port                   AMQP over WebSocket; over TLS too (wss), if the hub has a certificate
    http_port                 the HTTP API, on loopback only

An AMQP connection behaves the same on each port. It belongs to the server, which also closes it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pumphouse.hub.access.http_callers import LOOPBACK_NAMES, as_host
from pumphouse.hub.limits.admission import Admission, Slot
from pumphouse.hub.listeners.listener import PLAIN, RESERVE, Factory, Listener, Transport
from pumphouse.hub.listeners.tls import Tls, development_tls, tls_from_files
from pumphouse.hub.options import ListenerOptions
from pumphouse.hub.server import HubServer, cannot_listen
from pumphouse.logs import line

if TYPE_CHECKING:
    from pumphouse.hub.listeners.websocket import ServerWebSocket

log = logging.getLogger("pumphouse.hub")

HANDSHAKE_S = 10.0  # for TLS
HTTP_RESERVE = RESERVE // 2  # descriptors that are left for segments on disk


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
        listener = self.amqp_listener("tls", self.server.make_connection, self.tls_transport())
        return await self.listen(listener, host, port, "tls")

    async def start_websocket(self, host: str, port: int) -> int:
        # Imported here: most hubs have no such listener, and start faster without its packages.
        from pumphouse.hub.listeners.websocket import ServerWebSocket

        names = own_names(host, self.options.host_names)
        handshaking: set[ServerWebSocket] = set()
        self._ports.callback(abort_all, handshaking)

        def factory(slot: Slot) -> ServerWebSocket:
            return ServerWebSocket(self.server, slot, names, handshaking)

        if self.tls is None:
            return await self.listen(self.amqp_listener("ws", factory, PLAIN), host, port, "ws")
        transport = self.tls_transport(plain_too=True)
        return await self.listen(self.amqp_listener("ws", factory, transport), host, port, "ws,wss")

    async def start_http(self, host: str, port: int) -> int:
        from pumphouse.hub.listeners.admin_api import AdminApi
        from pumphouse.hub.listeners.http import LIMITS, HttpConnection, HttpTurns
        from pumphouse.hub.rates import SAMPLE_EVERY_S

        names = [*LOOPBACK_NAMES, as_host(host), *map(as_host, self.options.host_names)]
        api = AdminApi(self.server.namespace, names)
        admission = Admission(LIMITS)
        self._ports.callback(shut_all, admission)
        turns = HttpTurns(self.server.loop)
        listener = Listener(
            lambda slot: HttpConnection(api, slot, turns), admission, reserve=HTTP_RESERVE
        )
        api.port = await self.listen(listener, host, port, "http")
        sampling = self.server.loop.create_task(
            repeat(api.sample, SAMPLE_EVERY_S), name="hub rates"
        )
        self._ports.callback(sampling.cancel)
        return api.port

    # -- ports ------------------------------------------------------------------------------------

    def amqp_listener(self, kind: str, factory: Factory, transport: Transport) -> Listener:
        """A listener whose connections count with those of the server's own port."""
        return Listener(factory, self.server.admission, transport, kind=kind)

    def tls_transport(self, plain_too: bool = False) -> Transport:
        assert self.tls is not None
        return Transport(self.tls.context, plain_too, HANDSHAKE_S)

    async def listen(self, listener: Listener, host: str, port: int, kind: str) -> int:
        """Listen on a port until `stop`; returns the port."""
        try:
            await listener.start(host, port)
        except OSError as failure:
            raise cannot_listen(host, port, failure) from None
        self._ports.push_async_callback(listener.stop)
        return log_started(host, listener.port, kind)


def own_names(host: str, more: Iterable[str]) -> frozenset[str]:
    """The names and addresses of a hub that listens on `host`, as in a Host header."""
    return frozenset({*LOOPBACK_NAMES, *map(as_host, (host, socket.gethostname(), *more))})


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


def shut_all(admission: Admission) -> None:
    for slot in list(admission.slots):
        admission.shut(slot, "the hub is shutting down")


def loopback(host: str) -> str:
    """The address for the HTTP API: the hub's own if that is loopback, else 127.0.0.1."""
    try:
        return host if ipaddress.ip_address(host).is_loopback else "127.0.0.1"
    except ValueError:
        return "127.0.0.1"
