"""Blocking sockets to a hub: plain, encrypted, or inside a WebSocket.

    Route -> open_stream -> Stream -> BlockingConnection
             ^^^^^^^^^^^ this module

The twin of transports.py for code that runs no event loop; what goes wrong is told in the same
words.
"""

from __future__ import annotations

import socket
import ssl
from typing import Protocol

from pumphouse.client.native.transports import not_connected
from pumphouse.client.routes import Route


class Stream(Protocol):
    """What we need of a socket."""

    def settimeout(self, seconds: float, /) -> None:
        """How long `recv_into` and `sendall` may take before they raise TimeoutError."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Fill the start of a buffer with what there is; 0 once the other side has hung up."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""

    def close(self) -> None:
        """Hang up."""


def open_stream(route: Route, timeout_s: float, context: ssl.SSLContext | None = None) -> Stream:
    """Connect to a hub by the way that is given; each step may take so long."""
    try:
        opened = open_socket(route, timeout_s, context)
    except OSError as failed:
        raise not_connected(route, failed) from None
    if not route.websocket:
        return opened
    # Imported where it is needed: most connections are none.
    from pumphouse.client.bulk.websocket_stream import WebSocketStream

    stream = WebSocketStream(opened, route)
    try:
        stream.shake_hands()
    except BaseException:
        opened.close()
        raise
    return stream


def open_socket(route: Route, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection((route.host, route.port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not route.tls:
        return plain
    assert context is not None, "whoever asks for TLS says whom to trust"
    try:
        return context.wrap_socket(plain, server_hostname=route.host)
    except BaseException:
        plain.close()
        raise
