"""Opens blocking streams to a hub: plain TCP, TLS, or WebSocket.

    Route -> open_stream -> Stream -> BlockingConnection
             ^^^^^^^^^^^ this module

The blocking counterpart of native/transports.py, with the same error messages.
"""

from __future__ import annotations

import socket
import ssl
from typing import Protocol

from pumphouse.client.native.transports import connection_error
from pumphouse.client.routes import Route


class Stream(Protocol):
    """The methods of a socket that a blocking connection uses."""

    def settimeout(self, seconds: float, /) -> None:
        """Set how long `recv_into` and `sendall` may take before they raise TimeoutError."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Receive into the start of a buffer; returns 0 after the peer has closed."""

    def sendall(self, data: bytes, /) -> None:
        """Send all bytes."""

    def close(self) -> None:
        """Close the stream."""


def open_stream(route: Route, timeout_s: float, context: ssl.SSLContext | None = None) -> Stream:
    """Open a stream along a route. Each step may take `timeout_s`."""
    try:
        connected = open_socket(route, timeout_s, context)
    except OSError as failed:
        raise connection_error(route, failed) from None
    if not route.websocket:
        return connected
    # Imported here because most connections use no WebSocket.
    from pumphouse.client.bulk.websocket_stream import WebSocketStream

    stream = WebSocketStream(connected, route)
    try:
        stream.shake_hands(timeout_s)
    except BaseException:
        connected.close()
        raise
    return stream


def open_socket(route: Route, timeout_s: float, context: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection((route.host, route.port), timeout_s)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not route.tls:
        return plain
    assert context is not None, "TLS needs a context"
    try:
        return context.wrap_socket(plain, server_hostname=route.host)
    except BaseException:
        plain.close()
        raise
