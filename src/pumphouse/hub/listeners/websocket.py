"""AMQP over WebSocket: a connection that looks like any other to those who speak on it.

    socket -> WebSocketDoor -> websockets.ServerProtocol -> frames -> Conversation.data_received
    socket <- WebSocketDoor <- websockets.ServerProtocol <- WebSocketTransport.write

The conversation is given a transport of ours in place of the socket's, and does not know. What it
writes goes out in binary messages; what arrives is handed on frame by frame, as a stream of bytes,
because AMQP frames need not begin or end where messages do.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, cast

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN, SEND_EOF
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

log = logging.getLogger("pumphouse.hub")
# The library's own: it tells of every connection, which we do ourselves.
quiet = logging.getLogger("pumphouse.hub.listeners.websocket")
quiet.setLevel(logging.WARNING)

PATH = "/$servicebus/websocket"
# The name that is registered, and the one that Microsoft's .NET and JavaScript clients use.
SUBPROTOCOLS = (Subprotocol("amqp"), Subprotocol("AMQPWSB10"))
# Of one frame from a client: it is held in memory until it is whole. Clients put one AMQP frame
# (64 KiB) or one batch (1 MiB) into it.
FRAME_BYTES_MAX = 4 << 20
# What we put into one message. Some clients have a buffer of the size of an AMQP frame.
MESSAGE_BYTES = 64 * 1024
HANDSHAKE_S = 10.0
CLOSE_S = 0.5  # for a client to answer our farewell; an idle one is not listening and never will
GOING_AWAY, UNSUPPORTED = 1001, 1003

Factory = Callable[[], asyncio.Protocol]


class WebSocketDoor(asyncio.Protocol):
    """One WebSocket connection, on a socket that may or may not be encrypted."""

    transport: asyncio.Transport

    def __init__(self, factory: Factory, waiting: set[WebSocketDoor]) -> None:
        self.factory = factory
        self.waiting = waiting  # those whose handshake is not done
        self.inner: asyncio.Protocol | None = None  # known once the handshake is done
        self.leaving = False  # our side has closed
        self.protocol = ServerProtocol(
            subprotocols=SUBPROTOCOLS, max_size=(None, FRAME_BYTES_MAX), logger=quiet
        )

    # -- the socket's side ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.waiting.add(self)
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(HANDSHAKE_S, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        self.waiting.discard(self)
        if self.inner is not None:
            self.inner.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.protocol.receive_data(data)
        for event in self.protocol.events_received():
            if isinstance(event, Request):
                self.shake_hands(event)
            elif isinstance(event, Frame):
                self.take(event)
        self.flush()

    def eof_received(self) -> bool:
        self.protocol.receive_eof()
        self.flush()
        return False

    def pause_writing(self) -> None:
        if self.inner is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.inner is not None:
            self.inner.resume_writing()

    # -- what arrives -----------------------------------------------------------------------------

    def shake_hands(self, request: Request) -> None:
        if self.protocol.eof_sent:  # what came right behind the request was no frame
            self.flush()
            return
        path = request.path.partition("?")[0]
        if path.rstrip("/").lower() == PATH:
            response = self.protocol.accept(request)
        else:
            response = self.protocol.reject(404, f"AMQP over WebSocket is spoken at {PATH}.\n")
        self.protocol.send_response(response)
        # Its bytes go first: the conversation may speak as soon as it is there.
        self.flush()
        if self.protocol.state is OPEN:
            self.deadline.cancel()
            self.waiting.discard(self)
            self.inner = self.factory()
            self.inner.connection_made(WebSocketTransport(self))
        else:
            log.info("refuse websocket path=%r status=%d", path[:80], response.status_code)

    def take(self, frame: Frame) -> None:
        """Hand a frame's bytes on. Pings and farewells have been answered by the protocol."""
        if self.inner is None or self.leaving or self.transport.is_closing():
            return
        if frame.opcode is Opcode.TEXT:
            self.protocol.fail(UNSUPPORTED, "AMQP is sent in binary messages")
        elif frame.opcode in (Opcode.BINARY, Opcode.CONT) and frame.data:
            self.inner.data_received(bytes(frame.data))

    # -- what leaves ------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray | memoryview) -> None:
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
        """Close from our side; a client that is listening has a moment to answer."""
        if self.leaving:
            return
        self.leaving = True
        if self.protocol.state is OPEN:
            self.protocol.send_close(GOING_AWAY)
            self.flush()
        loop = asyncio.get_running_loop()
        self.deadline = loop.call_later(CLOSE_S, self.transport.close)


class WebSocketTransport(asyncio.Transport):
    """The transport that a conversation over WebSocket is given."""

    def __init__(self, door: WebSocketDoor) -> None:
        super().__init__()
        self.door = door
        self.socket = door.transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.door.send(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.door.send(b"".join(list_of_data))

    def close(self) -> None:
        self.door.leave()

    def abort(self) -> None:
        self.socket.abort()

    def is_closing(self) -> bool:
        return self.door.leaving or self.socket.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.socket.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self.socket.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self.socket.get_write_buffer_limits()

    def is_reading(self) -> bool:
        return self.socket.is_reading()

    def pause_reading(self) -> None:
        self.socket.pause_reading()

    def resume_reading(self) -> None:
        self.socket.resume_reading()
