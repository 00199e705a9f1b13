"""A scripted hub on loopback that breaks one rule at a time, for the tests of our clients.

`PoliteHub` behaves as a hub does. A hostile hub is a subclass that replaces one method. Each
connection is served by a thread with a blocking socket, so that asyncio and blocking clients meet
the same peer.
"""

from __future__ import annotations

import base64
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pumphouse.amqp.connection import SERVER, Connection
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.events import AttachAsked, Delivered
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, Properties, decode_message, encode_message
from pumphouse.amqp.performatives import Attach, Open
from pumphouse.amqp.types import Symbol, Timestamp, array_of

DEADLINE_S = 30.0
WEBSOCKET_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
PARTITION = {
    "name": "eh",
    "partition": "0",
    "begin_sequence_number": 0,
    "last_enqueued_sequence_number": 99,
    "last_enqueued_offset": "990",
    "last_enqueued_time_utc": Timestamp(1_763_000_000_000),
    "is_partition_empty": False,
}


def message(sequence: Any, body: bytes = b"x", **notes: Any) -> bytes:
    """A stored event, as a hub sends it."""
    annotations = {
        Symbol("x-opt-sequence-number"): sequence,
        Symbol("x-opt-offset"): str(sequence),
        Symbol("x-opt-enqueued-time"): Timestamp(1_763_000_000_000),
    }
    annotations |= {
        Symbol(f"x-opt-{name.replace('_', '-')}"): value for name, value in notes.items()
    }
    return encode_message(Message(annotations=annotations, data=(body,)))


class PoliteHub:
    """One connection: answers every request, accepts every batch, and sends no events."""

    ends_by_deadline = False  # whether only a deadline of the client ends its call
    replies: dict[str, SenderLink]  # by node

    def __init__(self, sock: socket.socket, stop: threading.Event) -> None:
        self.socket, self.stop = sock, stop
        opening = Open(container_id="hostile", max_frame_size=1 << 20)
        self.amqp = Connection(SERVER, opening, limits=Limits(max_frame_size=1 << 20))
        self.replies = {}

    # -- bytes ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve the connection until the client closes it."""
        self.serve()

    def serve(self) -> None:
        while not self.stop.is_set() and (data := self.receive()):
            for event in self.amqp.receive(data):
                self.handle(event)
            self.flush()

    def receive(self) -> bytes:
        return self.socket.recv(1 << 16)

    def flush(self) -> None:
        for piece in self.amqp.data_to_send():
            self.send(bytes(piece))

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_until_closed(self, data: bytes) -> None:
        """Send the same bytes until the client closes, as fast as it takes them."""
        while not self.stop.is_set():
            self.send(data)

    def wait(self) -> None:
        """Keep the connection open, and do nothing."""
        self.stop.wait(DEADLINE_S)

    # -- AMQP -------------------------------------------------------------------------------------

    def handle(self, event: Any) -> None:
        if isinstance(event, AttachAsked):
            self.on_attach(event.link, event.attach)
        elif isinstance(event, Delivered):
            node = event.link.user
            if node in ("$cbs", "$management"):
                self.on_request(node, decode_message(event.payload))
            else:
                self.on_batch(event)

    def on_attach(self, link: Link, attach: Attach) -> None:
        self.answer(link, attach)
        if isinstance(link, ReceiverLink):
            link.user = attach.target.address
            link.grant(100)
        elif attach.source.address in ("$cbs", "$management"):
            assert isinstance(link, SenderLink)
            self.replies[attach.source.address] = link
        else:
            assert isinstance(link, SenderLink)
            self.on_reader(link)

    def answer(self, link: Link, attach: Attach, **fields: Any) -> None:
        response = {"source": attach.source, "target": attach.target, "initial_delivery_count": 0}
        link.send_attach(
            Attach(name=link.name, handle=link.handle, role=link.role, **(response | fields))
        )

    def on_reader(self, link: SenderLink) -> None:
        """A reader has attached."""

    def on_request(self, node: str, request: Message) -> None:
        value = None if node == "$cbs" else self.reply_value(request)
        self.reply(node, request, {"status-code": 202 if node == "$cbs" else 200}, value)

    def reply_value(self, request: Message) -> Any:
        if "partition" in request.application:
            return PARTITION
        ids = array_of(str, ["0"])
        return {"name": "eh", "created_at": Timestamp(0), "partition_ids": ids}

    def reply(self, node: str, request: Message, fields: dict[str, Any], value: Any = None) -> None:
        assert request.properties is not None
        properties = Properties(correlation_id=request.properties.message_id)
        reply = Message(properties=properties, application=fields, value=value)
        self.replies[node].send(encode_message(reply))

    def on_batch(self, delivered: Delivered) -> None:
        delivered.link.session.accept(delivered.delivery_id)


class WebSocketHub(PoliteHub):
    """A hub behind a WebSocket. After the handshake `serve_frames` is called."""

    status = b"101 Switching Protocols"
    headers = b""

    def run(self) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += self.receive()
        (key,) = re.findall(rb"Sec-WebSocket-Key: (\S+)", request, re.IGNORECASE)
        accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_KEY).digest())
        self.send(
            b"HTTP/1.1 " + self.status + b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\nSec-WebSocket-Protocol: amqp\r\n"
            + self.headers + b"\r\n"
        )  # fmt: skip
        self.serve_frames()

    def serve_frames(self) -> None:
        self.wait()


@contextmanager
def running(hub: type[PoliteHub]) -> Iterator[int]:
    """The port of a hub whose connections behave like this class."""
    stop, sockets = threading.Event(), list[socket.socket]()
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                accepted, _ = listener.accept()
                accepted.settimeout(DEADLINE_S)
                sockets.append(accepted)
                threading.Thread(target=serve, args=(accepted,), daemon=True).start()

    def serve(accepted: socket.socket) -> None:
        # The client hangs up, or the test ends. Errors of the hub show up as a missing response.
        with suppress(OSError, Exception), accepted:
            hub(accepted, stop).run()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        listener.close()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def connection_string(port: int) -> str:
    key = "SharedAccessKeyName=a;SharedAccessKey=b"
    return f"Endpoint=sb://127.0.0.1:{port};{key};UseDevelopmentEmulator=true"
