"""Readings to a hub, at the pace of a clock: steady, in order per home, and honest when behind.

    SimulatorSource, ReplaySource -> TimeSlice (what is due at one moment) -> Pacer -> lanes -> hub
                                                                     ^^^^ this module

With our own client there is a lane per partition: a slice is cut into one batch for each, every
event with its home's key, as the hub itself would have placed it (see partitions.py). With any
other client events go out one key at a time, and the hub places them.

Order is kept because a lane has one batch under way. A hub that throttles fills the lanes, whose
bound makes the source wait; what was missed is made up for as soon as the hub takes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from pumphouse.client.base import HubClient, Payload, Sender, prepared_batch
from pumphouse.clock import Clock
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import home_id
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.record_encoding import DUPLICATE, LATE, MALFORMED, PackedRecords
from pumphouse.homes.simulator.time_slices import SliceSource, TimeSlice

WAITING_MAX: Final = 4  # batches, or slices, that wait in a lane
BATCH_BYTES_MAX: Final = 240 * 1024  # below the 256 KB of the smallest tier
OPENING_S: Final = 30.0  # if it is longer ago that the readings began, somebody wants old ones
STOP_S: Final = 10.0  # for what is under way when somebody says stop
BEHIND_S: Final = 5.0  # from then on it is worth a word


@dataclass(slots=True)
class SendTotals:
    """What has been sent so far."""

    sent: int = 0
    late: int = 0
    duplicates: int = 0
    malformed: int = 0
    seconds: float = 0.0
    behind_s_max: float = 0.0
    event_ms: int = 0  # up to which moment of the readings' time

    def count(self, part: TimeSlice) -> None:
        for bit, name in ((LATE, "late"), (DUPLICATE, "duplicates"), (MALFORMED, "malformed")):
            setattr(self, name, getattr(self, name) + int(np.count_nonzero(part.mark & bit)))
        self.event_ms = part.due_ms


@dataclass(frozen=True, slots=True)
class Progress:
    """Told about often: how many more were taken, and how late the last slice went out."""

    taken: int
    behind_s: float


class Pacer:
    """Lets each slice go at its moment; `speed` times as fast as the readings, or at once."""

    def __init__(self, start_ms: int, speed: float | None, clock: Clock) -> None:
        self.start_ms, self.speed, self.clock = start_ms, speed, clock
        self.since = clock.monotonic()
        if speed == 1.0:
            # In real time the readings' clock is everybody's: opening the connection took its time.
            self.since -= since_start(start_ms, clock)
        self.behind_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.clock.monotonic() - self.since

    async def wait(self, due_ms: int, stop: asyncio.Event) -> None:
        """Until a slice is due, or somebody says stop. What is overdue is let go at once."""
        if self.speed is None:
            await asyncio.sleep(0)  # so that the lanes get their turn
            return
        early_s = (due_ms - self.start_ms) / 1000 / self.speed - self.elapsed_s
        self.behind_s = max(0.0, -early_s)
        if early_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(early_s):
                    await stop.wait()


def since_start(start_ms: int, clock: Clock) -> float:
    """How long the readings have been due already; 0 if they are of another time."""
    late_s = clock.now() - start_ms / 1000
    return late_s if 0 < late_s < OPENING_S else 0.0


async def send(
    client: HubClient,
    source: SliceSource,
    speed: float | None,
    clock: Clock,
    stop: asyncio.Event,
    report: Callable[[Progress], None] = lambda progress: None,
) -> SendTotals:
    """Send all that a source has, until it ends or somebody says stop; what came of it."""
    partitions = (await client.properties()).partitions
    partition_of = partitions_of(np.arange(source.homes, dtype=np.int32), len(partitions))
    tally = SendTotals()
    try:
        async with open_queues(client, partitions, partition_of, stop) as lanes:
            pace = Pacer(source.start_ms, speed, clock)
            for part in source.slices(partition_of):
                await pace.wait(part.due_ms, stop)
                if stop.is_set():
                    break
                await lanes.put(part)
                tally.count(part)
                tally.behind_s_max = max(tally.behind_s_max, pace.behind_s)
                report(Progress(lanes.accepted - tally.sent, pace.behind_s))
                tally.sent = lanes.accepted
    except* PumphouseError as failed:
        raise failed.exceptions[0] from None
    report(Progress(lanes.accepted - tally.sent, 0.0))
    tally.sent, tally.seconds = lanes.accepted, pace.elapsed_s
    return tally


# -- lanes


class SendQueue:
    """One batch after the other to one sender."""

    def __init__(self, deliver: Callable[[Any], Awaitable[int]]) -> None:
        self.deliver = deliver
        self.queue: asyncio.Queue[Any] = asyncio.Queue(WAITING_MAX)

    async def run(self) -> None:
        while (parcel := await self.queue.get()) is not None:
            await self.deliver(parcel)

    def abandon(self) -> None:
        """Forget what waits; whoever waits to put something more may go on."""
        while not self.queue.empty():
            self.queue.get_nowait()


class SendQueues:
    """Where slices go out: a lane per partition, or one for a hub that places events itself."""

    def __init__(
        self,
        senders: Sequence[Sender],
        lanes: Sequence[SendQueue],
        cut: Callable[
            [TimeSlice], Iterator[tuple[int, Any]]
        ],  # which lane, and what its sender takes
    ) -> None:
        self.senders, self.lanes, self.cut = senders, lanes, cut

    @property
    def accepted(self) -> int:
        """Events that the hub has taken."""
        return sum(sender.accepted for sender in self.senders)

    async def put(self, part: TimeSlice) -> None:
        """Take a slice; waits while too much is under way."""
        for place, parcel in self.cut(part):
            await self.lanes[place].queue.put(parcel)

    async def close(self) -> None:
        for lane in self.lanes:
            await lane.queue.put(None)

    def abandon(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for lane in self.lanes:
            lane.abandon()


@asynccontextmanager
async def open_queues(
    client: HubClient, partitions: Sequence[str], partition_of: Ints, stop: asyncio.Event
) -> AsyncIterator[SendQueues]:
    """Queues to a hub. At the end everything put has been sent, unless `stop` was set long ago."""
    lanes = await queues_to(client, partitions, partition_of)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(lane.run()) for lane in lanes.lanes]
        impatient = group.create_task(hurry(lanes, running, stop))
        try:
            yield lanes
            await lanes.close()
            await asyncio.wait(running)
        finally:
            impatient.cancel()
    for sender in lanes.senders:
        await sender.close()


async def hurry(
    lanes: SendQueues, running: Sequence[asyncio.Task[None]], stop: asyncio.Event
) -> None:
    await stop.wait()
    await asyncio.sleep(STOP_S)
    lanes.abandon(running)


async def queues_to(client: HubClient, partitions: Sequence[str], partition_of: Ints) -> SendQueues:
    if not client.has_batch_sender:
        sender = await client.sender()
        return SendQueues([sender], [SendQueue(sender.send)], as_plain_events)
    senders = [await client.batch_sender(partition) for partition in partitions]
    size_max = min(BATCH_BYTES_MAX, *(sender.size_max for sender in senders))
    cut = partial(
        split_by_partition, partition_of=partition_of, lanes=len(senders), size_max=size_max
    )
    return SendQueues(senders, [SendQueue(sender.deliver) for sender in senders], cut)


def split_by_partition(
    part: TimeSlice, partition_of: Ints, lanes: int, size_max: int
) -> Iterator[tuple[int, Payload]]:
    """A slice as batches for partitions, each below a size."""
    bounds = np.searchsorted(partition_of[part.homes], np.arange(lanes + 1))
    for place, (first, last) in enumerate(pairwise(bounds.tolist())):
        while first < last:
            until = last_fitting(part.packed, first, last, size_max)
            yield place, prepared_batch(part.packed.records(first, until), until - first)
            first = until


def last_fitting(records: PackedRecords, first: int, last: int, size_max: int) -> int:
    """Up to which record a batch may go: the last, or as far as the size allows; at least one."""
    limit = records.starts[first] + size_max
    fits = int(np.searchsorted(records.starts[first : last + 1], limit, side="right")) - 1
    return first + max(1, fits)


def as_plain_events(part: TimeSlice) -> Iterator[tuple[int, list[Event]]]:
    """A slice as events, for a sender that puts batches together itself."""
    bodies = map(part.packed.body, range(len(part)))
    homes = map(home_id, part.homes.tolist())
    yield 0, [Event(body, partition_key=home) for body, home in zip(bodies, homes, strict=True)]
