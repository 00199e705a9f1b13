"""The client's side of AMQP over WebSocket: the handshake, and the close."""

from __future__ import annotations

import asyncio

from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.protocol import OPEN

from pumphouse.client.routes import Route
from pumphouse.errors import ConnectionFailed
from pumphouse.websocket_transport import AMQP, NORMAL, WebSocketAdapter, make_client_protocol


class ClientWebSocket(WebSocketAdapter):
    """One WebSocket connection to a hub. `opened` is done when the handshake is."""

    protocol: ClientProtocol

    def __init__(self, route: Route, connection: asyncio.Protocol) -> None:
        super().__init__(make_client_protocol(route.url))
        self.route = route
        self.connection = connection
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.protocol.send_request(self.protocol.connect())
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.fail("the connection was closed")

    def data_received(self, data: bytes) -> None:
        self.receive(data)
        if self.protocol.handshake_exc is not None:
            self.fail(f"{self.protocol.handshake_exc}")
        self.flush()

    def on_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Response)
        if self.protocol.state is not OPEN:
            self.fail(f"the response was {event.status_code} {event.reason_phrase}")
        elif self.protocol.subprotocol != AMQP:
            self.fail("the server does not offer the subprotocol amqp")
        elif not self.opened.done():
            self.opened.set_result(None)
            self.open(self.connection)

    def fail(self, problem: str) -> None:
        """End the handshake with an error. Ignored after the handshake."""
        if not self.opened.done():
            self.opened.set_exception(handshake_failed(self.route, problem))
            self.opened.exception()  # marks it as retrieved: the waiting task may be cancelled
            self.transport.abort()

    def leave(self) -> None:
        """Close at once: the AMQP connection is closed already, so no response is needed."""
        self.send_close(NORMAL)
        self.transport.close()


def handshake_failed(route: Route, problem: str) -> ConnectionFailed:
    return ConnectionFailed(
        f"the WebSocket handshake with {route.address} at {route.path} failed: {problem}"
    )
