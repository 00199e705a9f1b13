"""The client's side of AMQP over WebSocket: the handshake, and the close."""

from __future__ import annotations

import asyncio

from websockets.client import ClientProtocol
from websockets.http11 import Request, Response
from websockets.protocol import OPEN

from pumphouse.client.errors import shortened
from pumphouse.client.routes import Route
from pumphouse.errors import ConnectionFailed
from pumphouse.websocket_transport import AMQP, NORMAL, WebSocketAdapter, make_client_protocol

SWITCHING = 101  # the status of a successful handshake
# Bytes in the buffer of the socket, pongs included. The same limit as in native/connection.py.
UNSENT_BYTES_MAX = 64 << 20


class ClientWebSocket(WebSocketAdapter):
    """One WebSocket connection to a hub. `opened` completes with the handshake."""

    protocol: ClientProtocol

    def __init__(self, route: Route, connection: asyncio.Protocol) -> None:
        super().__init__(make_client_protocol(route.url))
        self.route = route
        self.connection = connection
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.problem: Exception | None = None  # why we have closed the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.protocol.send_request(self.protocol.connect())
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(self.problem or exc)
        self.fail("the connection was closed")

    def data_received(self, data: bytes) -> None:
        self.receive(data)
        if self.protocol.handshake_exc is not None:
            self.fail(f"{self.protocol.handshake_exc}")
        self.flush()
        # A server that has broken the rules, or has closed, need not close the socket.
        if self.inner is not None and not self.leaving and self.protocol.state is not OPEN:
            self.break_off(reason_of_close(self.protocol))

    def flush(self) -> None:
        super().flush()
        # Pongs are sent whether or not the server reads them.
        if self.transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self.break_off("the server does not read what we send")

    def break_off(self, problem: str) -> None:
        self.problem = self.problem or ConnectionError(problem)
        self.transport.abort()

    def on_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Response)
        if event.status_code == SWITCHING and self.protocol.state is not OPEN:
            self.fail(reason_of_close(self.protocol))  # closed by frames right after the response
        elif self.protocol.state is not OPEN:
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
        self.leaving = True
        self.send_close(NORMAL)
        self.transport.close()


def reason_of_close(protocol: ClientProtocol) -> str:
    """Why a WebSocket is no longer open."""
    if protocol.parser_exc is not None:
        return f"invalid WebSocket data: {shortened(str(protocol.parser_exc))}"
    received = protocol.close_rcvd
    if received is not None:
        return f"the server closed the WebSocket: {received.code} {received.reason}".rstrip()
    sent = protocol.close_sent
    return f"invalid WebSocket data: {sent.reason}" if sent is not None else "it was closed"


def handshake_failed(route: Route, problem: str) -> ConnectionFailed:
    return ConnectionFailed(
        f"the WebSocket handshake with {route.address} at {route.path} failed: {problem}"
    )
