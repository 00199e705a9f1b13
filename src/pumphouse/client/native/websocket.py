"""AMQP over WebSocket, from our side: a wire that does not know it is not on a plain socket.

    socket -> WebSocketDoor -> websockets.ClientProtocol -> frames -> Wire.data_received
    socket <- WebSocketDoor <- websockets.ClientProtocol <- WebSocketTransport.write
              ^^^^^^^^^^^^^ this module                      ^^^^^^^^^^^^^^^^^^

The wire is given its transport once the handshake is done. Pausing and resuming are passed through
in both directions: what the socket does not take, the wire does not write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import OPEN, SEND_EOF
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from pumphouse.client.routes import Route
from pumphouse.errors import ConnectionFailed

# The library's own: it tells of every connection, which we do ourselves.
quiet = logging.getLogger("pumphouse.client.native.websocket")
quiet.setLevel(logging.WARNING)

AMQP = Subprotocol("amqp")
FRAME_BYTES_MAX = 4 << 20  # of one frame from the hub: it is held in memory until it is whole
MESSAGE_BYTES = 64 * 1024  # what we put into one message, as the hub does
NORMAL, UNSUPPORTED = 1000, 1003

Data = bytes | bytearray | memoryview


class WebSocketDoor(asyncio.Protocol):
    """One WebSocket connection of ours, on a socket that may or may not be encrypted."""

    transport: asyncio.Transport

    def __init__(self, route: Route, inner: asyncio.Protocol) -> None:
        self.place = route.place
        self.path = route.path
        self.inner = inner
        self.open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.protocol = ClientProtocol(
            parse_uri(route.url),
            subprotocols=[AMQP],
            max_size=(None, FRAME_BYTES_MAX),
            logger=quiet,
        )

    @property
    def is_open(self) -> bool:
        """Whether the wire has been given its transport."""
        return self.open.done() and not self.open.cancelled() and self.open.exception() is None

    # -- the socket's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.protocol.send_request(self.protocol.connect())
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.is_open:
            self.inner.connection_lost(exc)
        else:
            self.refuse("hung up during the handshake")

    def data_received(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Response):
                self.shake_hands(event)
            elif isinstance(event, Frame):
                self.take(event)
        if self.protocol.handshake_exc is not None:
            self.refuse(f"does not: {self.protocol.handshake_exc}")
        self.flush()

    def eof_received(self) -> bool:
        self.protocol.receive_eof()
        return False

    def pause_writing(self) -> None:
        if self.is_open:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.is_open:
            self.inner.resume_writing()

    # -- what arrives -----------------------------------------------------------------------------

    def shake_hands(self, response: Response) -> None:
        if self.protocol.state is not OPEN:
            self.refuse(f"answers with {response.status_code} {response.reason_phrase}")
        elif self.protocol.subprotocol != AMQP:
            self.refuse("speaks no AMQP there")
        elif not self.open.done():
            self.open.set_result(None)
            self.inner.connection_made(WebSocketTransport(self))

    def refuse(self, what: str) -> None:
        """Tell whoever waits for the handshake that it has failed."""
        if not self.open.done():
            self.open.set_exception(
                ConnectionFailed(
                    f"{self.place} is to speak AMQP over WebSocket at {self.path}, and {what}"
                )
            )
            self.open.exception()  # whoever waited may have been cancelled
            self.transport.abort()

    def take(self, frame: Frame) -> None:
        """Hand a frame's bytes on. Pings and farewells have been answered by the protocol."""
        if not self.is_open or self.transport.is_closing():
            return
        if frame.opcode is Opcode.TEXT:
            self.protocol.fail(UNSUPPORTED, "AMQP is sent in binary messages")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT) and frame.data:
            self.inner.data_received(bytes(frame.data))

    # -- what leaves ------------------------------------------------------------------------------

    def send(self, data: Data) -> None:
        if self.protocol.state is not OPEN:
            return
        whole = memoryview(data)
        for start in range(0, len(whole), MESSAGE_BYTES):
            self.protocol.send_binary(whole[start : start + MESSAGE_BYTES])
        self.flush()

    def flush(self) -> None:
        out = self.protocol.data_to_send()
        if not out or self.transport.is_closing():
            return
        # Not writelines: in some versions of Python it does not pause the writer (CVE-2024-12254).
        self.transport.write(b"".join(out))
        if SEND_EOF in out:
            self.transport.close()

    def leave(self) -> None:
        """Close from our side. AMQP has said its farewells, so nobody waits for another."""
        if self.protocol.state is OPEN:
            self.protocol.send_close(NORMAL)
            self.flush()
        self.transport.close()


class WebSocketTransport(asyncio.Transport):
    """The transport that a wire over WebSocket is given."""

    def __init__(self, door: WebSocketDoor) -> None:
        super().__init__()
        self.door = door
        self.socket = door.transport

    def write(self, data: Data) -> None:
        self.door.send(data)

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        self.door.send(b"".join(list_of_data))

    def close(self) -> None:
        self.door.leave()

    def abort(self) -> None:
        self.socket.abort()

    def is_closing(self) -> bool:
        return self.socket.is_closing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.socket.get_write_buffer_size()

    def pause_reading(self) -> None:
        self.socket.pause_reading()

    def resume_reading(self) -> None:
        self.socket.resume_reading()
