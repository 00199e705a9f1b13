"""AMQP over WebSocket on a blocking socket, plain or TLS.

    socket -> WebSocketStream.recv_into -> BlockingConnection
              ^^^^^^^^^^^^^^^ this module

The blocking counterpart of native/websocket.py. The payload of each frame is copied once, into the
buffer of the caller.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from contextlib import suppress

from websockets.frames import Frame
from websockets.protocol import CONNECTING, OPEN

from pumphouse.client.native.websocket import handshake_failed, reason_of_close
from pumphouse.client.routes import Route
from pumphouse.errors import ConnectionFailed
from pumphouse.websocket_transport import AMQP, NORMAL, make_client_protocol, payload_of

READ_BYTES = 1 << 18  # read from the socket at once


class WebSocketStream:
    """A stream of bytes inside WebSocket frames."""

    def __init__(self, opened: socket.socket, route: Route) -> None:
        self.socket = opened
        self.route = route
        self.protocol = make_client_protocol(route.url)
        self._waiting: deque[memoryview] = deque()  # payloads that `recv_into` has not returned yet

    def shake_hands(self, timeout_s: float) -> None:
        """Open the WebSocket. The timeout bounds the whole handshake, not each read."""
        until_s = time.monotonic() + timeout_s
        self.protocol.send_request(self.protocol.connect())
        try:
            self.flush()
            while self.protocol.state is CONNECTING and self.protocol.handshake_exc is None:
                # A timeout of zero would mean a socket that does not block.
                self.socket.settimeout(max(0.001, until_s - time.monotonic()))
                self.read_socket()
        except TimeoutError:
            raise self.handshake_error("no response in time") from None
        except OSError as failed:
            raise self.handshake_error(
                f"the connection broke ({failed.strerror or failed})"
            ) from None
        if self.protocol.handshake_exc is not None:
            raise self.handshake_error(f"{self.protocol.handshake_exc}")
        if self.protocol.state is not OPEN:
            raise self.handshake_error(reason_of_close(self.protocol))
        if self.protocol.subprotocol != AMQP:
            raise self.handshake_error("the server does not offer the subprotocol amqp")

    def handshake_error(self, problem: str) -> ConnectionFailed:
        return handshake_failed(self.route, problem)

    # -- the Stream protocol ----------------------------------------------------------------------

    def settimeout(self, seconds: float, /) -> None:
        self.socket.settimeout(seconds)

    def recv_into(self, buffer: memoryview, /) -> int:
        if not self._waiting:
            if not self.read_socket():
                return 0
            if not self._waiting:
                self.check_open()
                # Only a part of a frame or a ping arrived: the caller retries until its deadline.
                raise TimeoutError
        filled = 0
        while self._waiting and filled < len(buffer):
            piece = self._waiting.popleft()
            count = min(len(piece), len(buffer) - filled)
            buffer[filled : filled + count] = piece[:count]
            filled += count
            if count < len(piece):
                self._waiting.appendleft(piece[count:])
        return filled

    def check_open(self) -> None:
        """Raise if the server violated the protocol, or closed the WebSocket but not the socket."""
        if self.protocol.state is not OPEN:
            reason = reason_of_close(self.protocol)
            raise ConnectionFailed(f"the connection to {self.route.address} broke ({reason})")

    def sendall(self, data: bytes, /) -> None:
        if self.protocol.state is not OPEN:
            raise ConnectionResetError("the WebSocket is closed")
        self.protocol.send_binary(data)
        self.flush()

    def close(self) -> None:
        try:
            if self.protocol.state is OPEN:
                self.protocol.send_close(NORMAL)
                with suppress(OSError):  # it may be closed already
                    self.flush()
        finally:
            self.socket.close()

    # -- frames -----------------------------------------------------------------------------------

    def read_socket(self) -> bool:
        """Read once from the socket and queue the payloads; False after the peer has closed."""
        data = self.socket.recv(READ_BYTES)
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        for event in self.protocol.events_received():
            if isinstance(event, Frame):
                self.queue_payload(event)
        self.flush()
        return bool(data)

    def queue_payload(self, frame: Frame) -> None:
        payload = payload_of(frame, self.protocol)
        if payload is not None:
            self._waiting.append(memoryview(payload))

    def flush(self) -> None:
        if out := b"".join(self.protocol.data_to_send()):
            self.socket.sendall(out)
