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
from collections.abc import Callable
from dataclasses import dataclass, replace

from pumphouse.amqp.frames import HEAD
from tests.fuzz.offline_connection import Loop, OfflineConnection, Transport
from tests.fuzz.streams import Stream

MORE_RUNS = 5  # of a suspicious stream
TRANSFER, ATTACH = 0x14, 0x12
SOME_WORK_S = 0.0012  # of `some_work`, on a core of 2024


@dataclass(frozen=True, slots=True)
class Prices:
    """What a stream may cost."""

    fixed_cpu_s: float = 0.001
    byte_cpu_s: float = 1e-6
    read_cpu_s: float = 1e-5  # a read of the socket costs this much, for a single byte too
    delivery_cpu_s: float = 1e-5  # an event without content is stored, or refused with a text
    attach_cpu_s: float = 5e-6  # of 20 bytes: it is refused with two frames and a text
    turn_s: float = 0.1  # the longest time in which the hub serves one client only
    fixed_bytes: int = 1 << 20
    byte_bytes: float = 8.0
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
            turn_s=self.turn_s * factor,
        )


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

    def excess(self, prices: Prices) -> list[str]:
        """What is above the prices."""
        cpu_s = prices.fixed_cpu_s + prices.byte_cpu_s * self.size
        cpu_s += prices.read_cpu_s * (self.reads - 1)
        cpu_s += prices.delivery_cpu_s * self.deliveries + prices.attach_cpu_s * self.attaches
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

    def receive(self, data: bytes) -> None:
        self.loop.measure(lambda: self.connection.data_received(data))
        self.loop.run()

    def receive_all(self, stream: Stream) -> None:
        for piece in stream.pieces:
            if not self.transport.closed:
                self.receive(piece)


def prepared(stream: Stream) -> MeasuredConnection:
    connection = MeasuredConnection()
    connection.receive(OfflineConnection.ATTACHED)
    if stream.setup:
        connection.receive(stream.setup)
    gc.collect()
    connection.loop.reset()
    return connection


def measure_cpu(stream: Stream) -> Cost:
    """The CPU time of one run."""
    connection = prepared(stream)
    connection.receive_all(stream)
    loop = connection.loop
    connection.connection.connection_lost(None)
    transfers, attaches = (count_frames(stream, code) for code in (TRANSFER, ATTACH))
    return Cost(
        stream.size,
        len(stream.pieces),
        loop.total_s,
        loop.longest_s,
        deliveries=transfers,
        attaches=attaches,
    )


def measure_memory(stream: Stream) -> Cost:
    """The largest memory during one run, without its CPU time: tracing slows it down."""
    connection = prepared(stream)
    before = counts(connection)
    tracemalloc.start()
    try:
        connection.receive_all(stream)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    links, sessions, events = (
        max(0, now - then) for now, then in zip(counts(connection), before, strict=True)
    )
    connection.connection.connection_lost(None)
    return Cost(stream.size, len(stream.pieces), 0.0, 0.0, peak, links, sessions, events)


def counts(connection: MeasuredConnection) -> tuple[int, int, int]:
    """The numbers of links, sessions and stored events."""
    sessions = connection.connection.amqp.sessions
    links = sum(len(session.links) for session in sessions.values())
    events = sum(partition.log.next_sequence for partition in connection.entity.partitions)
    return links, len(sessions), events


def count_frames(stream: Stream, code: int) -> int:
    """The number of frames of one kind in a stream."""
    starts = (bytes((0, 0x53, code)), bytes((0, 0x80, *bytes(7), code)))
    data, pos, count = b"".join(stream.pieces), 0, 0
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
    """How many times slower this machine is now than the one for which the prices are, at least 1.

    Programs on the same core slow each other down, also in CPU time.
    """
    times = []
    for _ in range(MORE_RUNS):
        start = time.thread_time()
        some_work()
        times.append(time.thread_time() - start)
    return max(1.0, min(times) / SOME_WORK_S)


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
