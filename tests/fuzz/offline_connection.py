"""A connection of the hub without a socket and without an event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar, cast

from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, ByteReader, encode_frame
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
)
from pumphouse.amqp.sasl import plain_response
from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.connection import HubConnection
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.server import HubServer
from tests.hub.events import batch_of
from tests.hub.peer import Clock

HUB, RULE, KEY = "eh", "root", "no secret"
PAGE_TOKEN = "token-of-the-page"
FRAME_MAX = 4096
BATCHES = [batch_of([b"%d" % number, b"x" * 2000]) for number in range(3)]
LOGIN = (
    SASL_HEADER
    + encode_frame(
        SaslInit(mechanism="PLAIN", initial_response=plain_response(RULE, KEY)), kind=SASL_FRAME
    )
    + AMQP_HEADER
)
BEGUN = (
    LOGIN
    + encode_frame(Open(container_id="fuzz", max_frame_size=FRAME_MAX))
    + encode_frame(Begin(next_outgoing_id=0, incoming_window=100, outgoing_window=100))
)


def attached(handle: int, role: bool, address: str) -> bytes:
    """An attach, and credit if we receive."""
    source, target = Source(address=address), Target(address=address)
    flow = Flow(
        incoming_window=100, next_outgoing_id=0, outgoing_window=9, handle=handle, link_credit=50
    )
    frames = encode_frame(
        Attach(name=f"{handle}", handle=handle, role=role, source=source, target=target)
    )
    return frames + encode_frame(flow) if role == RECEIVER else frames


class Loop:
    """The part of an event loop that a connection uses."""

    def __init__(self) -> None:
        self.calls: deque[Callable[[], None]] = deque()

    def time(self) -> float:
        return 1000.0

    def call_soon(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def call_later(self, seconds: float, call: Callable[..., None], *args: Any) -> None:
        self.call_soon(lambda: call(*args))

    def run(self) -> None:
        for _ in range(10_000):
            if not self.calls:
                return
            self.calls.popleft()()
        raise AssertionError("the hub calls itself without end")


class Transport:
    """Records what is written to it."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written += data

    def writelines(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def get_extra_info(self, name: str) -> Any:
        return ("fuzz", 0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return (0, 1 << 20)

    def get_write_buffer_size(self) -> int:
        return 0


class OfflineConnection:
    """One connection to a hub of two partitions, one of which has a few events."""

    ATTACHED: ClassVar[bytes] = (
        BEGUN
        + attached(0, SENDER, HUB)
        + attached(1, RECEIVER, f"{HUB}/ConsumerGroups/$Default/Partitions/0")
        + attached(2, SENDER, "$cbs")
        + attached(3, RECEIVER, "$cbs")
        + attached(4, SENDER, "$management")
        + attached(5, RECEIVER, "$management")
    )

    def __init__(self, loop: Loop | None = None, transport: Transport | None = None) -> None:
        namespace = Namespace([AccessRule(RULE, KEY)], clock=Clock())
        self.entity = namespace.create_hub(HUB, 2)
        for batch in BATCHES:
            namespace.publish(self.entity.partitions[0], batch, None, lambda failure: None)
        self.server = HubServer(namespace)
        self.loop = loop or Loop()
        self.server.loop = cast(asyncio.AbstractEventLoop, self.loop)
        self.transport = transport or Transport()
        slot = self.server.admission.admit("fuzz", self.loop.time())
        assert slot is not None
        self.connection = HubConnection(self.server, slot)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def play(self, before: bytes, data: bytes) -> None:
        """Receive `before`, then `data` in two pieces, then the end; check what the hub did."""
        self.receive(before)
        assert not self.transport.closed
        cut = len(data) * (data[0] if data else 0) // 256
        for piece in (data[:cut], data[cut:]):
            if not self.transport.closed:
                self.receive(piece)
        amqp = self.connection.amqp
        assert amqp.held_bytes <= amqp.limits.held_bytes_max + amqp.limits.max_frame_size
        assert amqp._reader.pending <= amqp.limits.max_frame_size
        self.connection.tick(1001.0)
        self.loop.run()
        self.check_written(len(before) + len(data))
        self.connection.connection_lost(None)
        assert not self.server.connections
        assert (len(self.server.admission), self.server.admission.total.held) == (0, 0)
        assert not self.entity.senders
        assert not [*self.entity.readers()]

    def receive(self, data: bytes) -> None:
        self.connection.data_received(data)
        self.loop.run()

    def check_written(self, received: int) -> None:
        """The hub has written complete AMQP frames within our limit, and not too many bytes."""
        written = bytes(self.transport.written)
        assert len(written) < 100 * received + (1 << 16)
        reader = ByteReader(1 << 20)
        reader.feed(written)
        opened = False
        while reader.pending:
            if written[len(written) - reader.pending :][:4] == b"AMQP":
                assert reader.header() is not None
                continue
            start = reader.pending
            frame = reader.frame()
            assert frame is not None, "an incomplete frame"
            if frame.start == frame.end:
                continue  # a heartbeat
            performative, _ = decode_performative(frame.data, frame.start, frame.end)
            if opened and self.connection.amqp.remote is not None:
                assert start - reader.pending <= self.connection.amqp.remote.max_frame_size
            opened = opened or isinstance(performative, Open)
