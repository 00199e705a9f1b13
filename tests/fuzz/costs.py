"""What a stream costs a hub: CPU time, memory, and how long other clients wait.

The hub runs in this thread without a socket (OfflineConnection), so its CPU time is that of the
thread, and a busy machine changes it little. A suspicious stream is measured again, and the least
of all runs counts.

Fixed prices are allowed besides those per byte: a link, a session or an event takes memory whatever
its size, and their numbers have limits of their own (docs/security.md).
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from pumphouse.amqp.frames import HEAD
from tests.fuzz.offline_connection import Loop, OfflineConnection, Transport
from tests.fuzz.offline_listeners import LISTENERS
from tests.fuzz.streams import Stream

MORE_RUNS = 5  # of a suspicious stream
TRANSFER, ATTACH = 0x14, 0x12
SOME_WORK_S = 0.0012  # of `some_work`, on a core of 2024
SLOWNESS_MAX = 3.0  # beyond it a machine is too slow, or too busy, to measure costs


@dataclass(frozen=True, slots=True)
class Prices:
    """What a stream may cost."""

    fixed_cpu_s: float = 0.001
    byte_cpu_s: float = 1e-6
    read_cpu_s: float = 1e-5  # a read of the socket costs this much, for a single byte too
    delivery_cpu_s: float = 1e-5  # an event without content is stored, or refused with a text
    attach_cpu_s: float = 5e-6  # of 20 bytes: it is refused with two frames and a text
    # A WebSocket frame without content; a request of a few bytes, to the HTTP API and to the page.
    frame_cpu_s: float = 1e-5
    http_cpu_s: float = 2e-4
    page_cpu_s: float = 5e-4
    turn_s: float = 0.1  # the longest time in which the hub serves one client only
    fixed_bytes: int = 1 << 20
    byte_bytes: float = 8.0
    connection_bytes: int = 32 * 1024  # before its first byte
    link_bytes: int = 4096
    session_bytes: int = 2048
    event_bytes: int = 512

    def times(self, factor: float) -> Prices:
        """The prices of a machine that is slower by a factor."""
        return replace(
            self,
            fixed_cpu_s=self.fixed_cpu_s * factor,
            byte_cpu_s=self.byte_cpu_s * factor,
            read_cpu_s=self.read_cpu_s * factor,
            delivery_cpu_s=self.delivery_cpu_s * factor,
            attach_cpu_s=self.attach_cpu_s * factor,
            frame_cpu_s=self.frame_cpu_s * factor,
            http_cpu_s=self.http_cpu_s * factor,
            page_cpu_s=self.page_cpu_s * factor,
            turn_s=self.turn_s * factor,
        )

    def unit_cpu_s(self, listener: str) -> float:
        """The price of a WebSocket frame or a request."""
        units = {"websocket": self.frame_cpu_s, "http": self.http_cpu_s, "page": self.page_cpu_s}
        return units.get(listener, 0.0)


@dataclass(frozen=True, slots=True)
class Cost:
    """The measured cost of one stream."""

    size: int
    reads: int
    cpu_s: float
    turn_s: float
    peak_bytes: int = 0
    links: int = 0
    sessions: int = 0
    events: int = 0
    deliveries: int = 0  # transfers that have arrived, whatever became of them
    attaches: int = 0  # the same of attaches
    units: int = 0  # WebSocket frames or HTTP requests
    listener: str = ""

    def excess(self, prices: Prices) -> list[str]:
        """What is above the prices."""
        cpu_s = prices.fixed_cpu_s + prices.byte_cpu_s * self.size
        cpu_s += prices.read_cpu_s * (self.reads - 1)
        cpu_s += prices.delivery_cpu_s * self.deliveries + prices.attach_cpu_s * self.attaches
        cpu_s += prices.unit_cpu_s(self.listener) * self.units
        memory = (
            prices.fixed_bytes
            + prices.byte_bytes * self.size
            + prices.link_bytes * self.links
            + prices.session_bytes * self.sessions
            + prices.event_bytes * self.events
        )
        found = []
        if self.cpu_s > cpu_s:
            found.append(f"{self.cpu_s * 1e3:.2f} ms of CPU, {cpu_s * 1e3:.2f} are allowed")
        if self.turn_s > prices.turn_s:
            found.append(f"{self.turn_s * 1e3:.0f} ms in one turn of the event loop")
        if self.peak_bytes > memory:
            found.append(f"{self.peak_bytes} bytes of memory, {memory:.0f} are allowed")
        return found


class MeasuredLoop(Loop):
    """Measures each call of the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def reset(self) -> None:
        self.turns = 0
        self.total_s = self.longest_s = 0.0

    def time(self) -> float:
        return time.monotonic()

    def run(self) -> None:
        while self.calls:
            self.measure(self.calls.popleft())

    def measure(self, call: Callable[[], None]) -> None:
        start = time.thread_time()
        call()
        seconds = time.thread_time() - start
        self.turns += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)


class DiscardingTransport(Transport):
    """Counts what is written to it, as a client that reads at once."""

    def write(self, data: bytes) -> None:
        assert not self.closed


class MeasuredConnection(OfflineConnection):
    """A connection whose calls are measured."""

    loop: MeasuredLoop

    def __init__(self) -> None:
        super().__init__(MeasuredLoop(), DiscardingTransport())

    @property
    def total_s(self) -> float:
        return self.loop.total_s

    @property
    def longest_s(self) -> float:
        return self.loop.longest_s

    def reset(self) -> None:
        self.loop.reset()

    def receive(self, data: bytes) -> None:
        self.loop.measure(lambda: self.connection.data_received(data))
        self.loop.run()

    def receive_all(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            if not self.transport.closed:
                self.receive(piece)

    def counts(self) -> tuple[int, int, int]:
        sessions = self.connection.amqp.sessions
        links = sum(len(session.links) for session in sessions.values())
        events = sum(partition.log.next_sequence for partition in self.entity.partitions)
        return links, len(sessions), events

    def end(self) -> None:
        self.connection.connection_lost(None)


class Measured(Protocol):
    """A connection to a listener, without a socket."""

    @property
    def total_s(self) -> float:
        """CPU time since the last `reset`."""

    @property
    def longest_s(self) -> float:
        """The longest turn of the event loop since the last `reset`."""

    def reset(self) -> None: ...

    def receive_all(self, pieces: Iterable[bytes]) -> None: ...

    def counts(self) -> tuple[int, int, int]:
        """The numbers of links, sessions and stored events."""

    def end(self) -> None: ...


CONNECTIONS: dict[str, Callable[[], Measured]] = {
    "": MeasuredConnection,
    "anonymous": MeasuredConnection,
    **LISTENERS,
}


def prepared(stream: Stream) -> Measured:
    connection = CONNECTIONS[stream.listener]()
    login = b"" if stream.listener else OfflineConnection.ATTACHED
    connection.receive_all([each for each in (login, stream.setup) if each])
    gc.collect()
    connection.reset()
    return connection


def measure_cpu(stream: Stream) -> Cost:
    """The CPU time of one run."""
    connection = prepared(stream)
    connection.receive_all(stream.pieces)
    total_s, longest_s = connection.total_s, connection.longest_s
    connection.end()
    transfers, attaches = (count_frames(stream.amqp, code) for code in (TRANSFER, ATTACH))
    return Cost(
        stream.size,
        len(stream.pieces),
        total_s,
        longest_s,
        deliveries=transfers,
        attaches=attaches,
        units=stream.units,
        listener=stream.listener,
    )


def measure_memory(stream: Stream) -> Cost:
    """The largest memory during one run, without its CPU time: tracing slows it down."""
    connection = prepared(stream)
    before = connection.counts()
    tracemalloc.start()
    try:
        connection.receive_all(stream.pieces)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    links, sessions, events = (
        max(0, now - then) for now, then in zip(connection.counts(), before, strict=True)
    )
    connection.end()
    return Cost(stream.size, len(stream.pieces), 0.0, 0.0, peak, links, sessions, events)


def count_frames(data: bytes, code: int) -> int:
    """The number of AMQP frames of one kind in a stream."""
    starts = (bytes((0, 0x53, code)), bytes((0, 0x80, *bytes(7), code)))
    pos, count = (8 if data.startswith(b"AMQP") else 0), 0
    while len(data) - pos >= HEAD.size:
        size, doff, _, _ = HEAD.unpack_from(data, pos)
        count += data.startswith(starts, pos + 4 * doff)
        pos += max(size, HEAD.size)
    return count


def least(costs: list[Cost]) -> Cost:
    """The least CPU time and the shortest turn of several runs of one stream."""
    cpu_s, turn_s = min(cost.cpu_s for cost in costs), min(cost.turn_s for cost in costs)
    return replace(costs[0], cpu_s=cpu_s, turn_s=turn_s)


def slowness() -> float:
    """How many times slower this machine is now than the one for which the prices are.

    Programs on the same core slow each other down, also in CPU time. The factor is from 1 to
    SLOWNESS_MAX, so that a busy machine does not hide a cost.
    """
    times = []
    for _ in range(MORE_RUNS):
        start = time.thread_time()
        some_work()
        times.append(time.thread_time() - start)
    return min(max(1.0, min(times) / SOME_WORK_S), SLOWNESS_MAX)


def some_work() -> None:
    table: dict[int, tuple[int, str]] = {}
    for number in range(20_000):
        table[number & 255] = number, str(number)


def excess_of(stream: Stream, prices: Prices) -> list[str]:
    """What a stream costs above the prices, after repeating a suspicious one."""
    costs = [measure_cpu(stream)]
    if costs[0].excess(prices):
        costs += [measure_cpu(stream) for _ in range(MORE_RUNS)]
        prices = prices.times(slowness())
    return least(costs).excess(prices) + measure_memory(stream).excess(prices)
