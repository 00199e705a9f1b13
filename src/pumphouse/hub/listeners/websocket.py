"""The hub's side of AMQP over WebSocket: the handshake, and the close."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from websockets.http11 import Request, Response
from websockets.protocol import OPEN
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pumphouse.logs import line
from pumphouse.websocket_transport import (
    AMQP,
    FRAME_BYTES_MAX,
    GOING_AWAY,
    WebSocketAdapter,
    library_log,
)

log = logging.getLogger("pumphouse.hub")

PATH = "/$servicebus/websocket"
# The registered name, and the one that Microsoft's .NET and JavaScript clients use.
SUBPROTOCOLS = (AMQP, Subprotocol("AMQPWSB10"))
HANDSHAKE_S = 10.0
CLOSE_S = 0.5  # for a client to respond to our close frame; an idle client does not read it

Factory = Callable[[], asyncio.Protocol]


class ServerWebSocket(WebSocketAdapter):
    """One WebSocket connection of a client. The AMQP connection is made after the handshake."""

    protocol: ServerProtocol

    def __init__(self, factory: Factory, handshaking: set[ServerWebSocket]) -> None:
        super().__init__(
            ServerProtocol(
                subprotocols=SUBPROTOCOLS, max_size=(None, FRAME_BYTES_MAX), logger=library_log
            )
        )
        self.factory = factory
        self.handshaking = handshaking  # connections whose handshake is not complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.handshaking.add(self)
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(HANDSHAKE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        self.handshaking.discard(self)
        super().connection_lost(exc)

    def on_handshake(self, event: Request | Response) -> None:
        assert isinstance(event, Request)
        if self.protocol.eof_sent:  # the bytes after the request were not a valid frame
            self.flush()
            return
        path = event.path.partition("?")[0]
        if path.rstrip("/").lower() == PATH:
            response = self.protocol.accept(event)
        else:
            response = self.protocol.reject(404, f"AMQP over WebSocket is served at {PATH}.\n")
        self.protocol.send_response(response)
        # The response goes first: the AMQP connection may send as soon as it is connected.
        self.flush()
        if self.protocol.state is OPEN:
            self.deadline.cancel()
            self.handshaking.discard(self)
            self.open(self.factory())
        else:
            refusal = line("websocket_refused", path=path[:80], status=response.status_code)
            log.info("%s", refusal)

    def leave(self) -> None:
        """Send the close frame and give the client a moment to respond."""
        if self.leaving:
            return
        self.leaving = True
        self.send_close(GOING_AWAY)
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(CLOSE_S, self.transport.close)
