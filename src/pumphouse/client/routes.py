"""The network route to a hub: host, port, TLS and WebSocket.

    connection string, transport, endpoint -> route_for -> Route -> transports.py
                                              ^^^^^^^^^ this module

A connection string holds the host and whether TLS is used. Without a port, AMQP uses 5671 (5672
without TLS) and WebSocket 443 (80). An `endpoint` replaces the address, for a gateway or a second
listener of the embedded hub. Tokens are still issued for the host of the connection string.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from pumphouse.client.connection_string import ConnectionString
from pumphouse.errors import OptionError

Transport = Literal["tcp", "websocket"]

TRANSPORTS: tuple[Transport, ...] = ("tcp", "websocket")
WEBSOCKET_PATH = "/$servicebus/websocket"
WS_PORT, WSS_PORT = 80, 443


@dataclass(frozen=True, slots=True)
class Route:
    """The network route to a hub."""

    host: str
    port: int
    hostname: str  # the host of the connection string, sent in the AMQP open frame
    tls: bool = False
    websocket: bool = False
    path: str = WEBSOCKET_PATH

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL of a WebSocket."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'wss' if self.tls else 'ws'}://{host}:{self.port}{self.path}"


def route_for(
    connection: ConnectionString, transport: str = "tcp", endpoint: str | None = None
) -> Route:
    """The route of a connection string, transport and endpoint; OptionError if invalid."""
    if transport not in TRANSPORTS:
        raise OptionError(f"transport must be one of {', '.join(TRANSPORTS)} (got {transport!r})")
    websocket = transport == "websocket"
    host, port, path = connection.host, explicit_port(connection.authority), ""
    if endpoint is not None:
        host, port, path = read_endpoint(endpoint)
    if port is None:
        port = default_port(connection, websocket)
    path = path if path.strip("/") else WEBSOCKET_PATH
    return Route(host, port, connection.host, connection.tls, websocket, path)


def default_port(connection: ConnectionString, websocket: bool) -> int:
    if websocket:
        return WSS_PORT if connection.tls else WS_PORT
    return connection.port


def explicit_port(authority: str) -> int | None:
    """The port in a connection string, if it has one."""
    return urlsplit(f"//{authority}").port


def read_endpoint(text: str) -> tuple[str, int | None, str]:
    """Host, port and path of `[scheme://]host[:port][/path]`."""
    try:
        address = urlsplit(text if "://" in text else f"//{text}")
        host, port = address.hostname, address.port
    except ValueError:
        host = None
    if not host:
        raise OptionError(f"endpoint must be HOST[:PORT] (got {text!r:.80})")
    return host, port, address.path
