"""The WebSocket adapter that hub and client share: AMQP bytes in binary messages.

    socket -> WebSocketAdapter -> websockets protocol -> frames -> AMQP connection
    socket <- WebSocketAdapter <- websockets protocol <- WebSocketTransport.write

The AMQP connection gets a `WebSocketTransport` in place of the socket's own transport and needs no
code for WebSocket. Received payloads are passed on as a stream of bytes, because AMQP frames need
not start or end where messages do. Back-pressure passes through in both directions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, cast

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import OPEN, SEND_EOF, Protocol
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

# The websockets package logs every connection at INFO; hub and client log theirs themselves.
library_log = logging.getLogger("pumphouse.websocket_transport")
library_log.setLevel(logging.WARNING)

AMQP = Subprotocol("amqp")
# Limit of one received frame, which is held in memory until it is complete. Clients put one AMQP
# frame (64 KiB) or one batch (1 MiB) into a WebSocket frame.
FRAME_BYTES_MAX = 4 << 20
# Limit of one message that we send. Some clients have a buffer of the size of an AMQP frame.
MESSAGE_BYTES = 64 * 1024
NORMAL, GOING_AWAY, UNSUPPORTED = 1000, 1001, 1003

Data = bytes | bytearray | memoryview


def make_client_protocol(url: str) -> ClientProtocol:
    """The client side of a WebSocket that requests the subprotocol amqp."""
    return ClientProtocol(
        parse_uri(url), subprotocols=[AMQP], max_size=(None, FRAME_BYTES_MAX), logger=library_log
    )


def payload_of(frame: Frame, protocol: Protocol) -> Data | None:
    """The AMQP bytes of a frame. None for a control frame, which the protocol has handled."""
    if frame.opcode is Opcode.TEXT:
        protocol.fail(UNSUPPORTED, "received a text message: send AMQP in binary messages")
    elif frame.opcode in (Opcode.BINARY, Opcode.CONT) and len(frame.data):
        return frame.data
    return None


def release(protocol: Protocol) -> None:
    """Break the reference cycles of a protocol that is not used any more: its parser and errors."""
    protocol.parser.close()
    protocol.parser_exc = protocol.handshake_exc = None


class WebSocketAdapter(asyncio.Protocol):
    """One WebSocket connection, on a plain or an encrypted socket.

    A subclass handles the handshake and calls `open` when it has succeeded.
    """

    transport: asyncio.Transport

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.inner: asyncio.Protocol | None = None  # the AMQP connection, after the handshake
        self.leaving = False  # our side has closed

    def open(self, inner: asyncio.Protocol) -> None:
        """Start the AMQP connection, after the handshake has succeeded."""
        self.inner = inner
        inner.connection_made(WebSocketTransport(self))

    def on_handshake(self, event: Request | Response) -> None:
        """Handle the peer's part of the handshake."""
        raise NotImplementedError

    def leave(self) -> None:
        """Close from our side."""
        raise NotImplementedError

    # -- called by the socket's transport ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        # Each refers to the other; without these references all are freed at once.
        inner, self.inner = self.inner, None
        if inner is not None:
            inner.connection_lost(exc)
        release(self.protocol)

    def data_received(self, data: bytes) -> None:
        self.receive(data)
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

    # -- received ---------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        # All at once: a peer may send AMQP in frames of one byte.
        self.pass_on(self.parse(data))

    def parse(self, data: Data) -> list[Data]:
        """The payloads of the frames that are complete with these bytes."""
        self.protocol.receive_data(cast(bytes, data))  # it copies any kind of bytes
        payloads: list[Data] = []
        for event in self.protocol.events_received():
            if isinstance(event, Frame):
                payload = payload_of(event, self.protocol)
                if payload is not None:
                    payloads.append(payload)
            else:
                self.on_handshake(event)
        return payloads

    def pass_on(self, payloads: list[Data]) -> None:
        """Pass the payloads of frames to the AMQP connection."""
        if self.inner is not None and payloads and not self.is_closing:
            self.inner.data_received(b"".join(payloads))

    def pause_reading(self) -> None:
        """The AMQP connection accepts no more bytes."""
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        self.transport.resume_reading()

    @property
    def is_closing(self) -> bool:
        return self.leaving or self.transport.is_closing()

    # -- sent -------------------------------------------------------------------------------------

    def send(self, data: Data) -> None:
        if self.protocol.state is not OPEN:
            return
        view = memoryview(data)
        for start in range(0, len(view), MESSAGE_BYTES):
            self.protocol.send_binary(view[start : start + MESSAGE_BYTES])
        self.flush()

    def send_close(self, code: int) -> None:
        """Send the close frame, unless the WebSocket is closing already."""
        if self.protocol.state is OPEN:
            self.protocol.send_close(code)
            self.flush()

    def flush(self) -> None:
        pieces = self.protocol.data_to_send()
        if not pieces or self.transport.is_closing():
            return
        # Not writelines: in some versions of Python it does not pause the writer (CVE-2024-12254).
        self.transport.write(b"".join(pieces))
        if SEND_EOF in pieces:
            self.transport.close()


class WebSocketTransport(asyncio.Transport):
    """The transport of an AMQP connection over WebSocket."""

    def __init__(self, adapter: WebSocketAdapter) -> None:
        super().__init__()
        self.adapter = adapter
        self.socket = adapter.transport

    def write(self, data: Data) -> None:
        self.adapter.send(data)

    def writelines(self, list_of_data: Iterable[Data]) -> None:
        self.adapter.send(b"".join(list_of_data))

    def close(self) -> None:
        self.adapter.leave()

    def abort(self) -> None:
        self.socket.abort()

    def is_closing(self) -> bool:
        return self.adapter.is_closing

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
        self.adapter.pause_reading()

    def resume_reading(self) -> None:
        self.adapter.resume_reading()
