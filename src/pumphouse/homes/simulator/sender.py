"""Sends readings to a hub at the pace of a clock, in order per home.

    SimulatorSource, ReplaySource -> TimeSlice -> Pacer -> SendQueues -> hub
                                                  ^^^^^^^^^^^^^^^^^^^ this module

A client with batch senders gets one queue per partition: a slice is split into one batch for each
partition, every event with its home's key, in the partition that the hub itself would choose (see
partition_hash.py). Any other client gets one queue of plain events, and the hub chooses.

Order is kept because a queue sends one batch at a time. A hub that throttles fills the queues, and
full queues make the source wait; delayed slices are sent as soon as the hub accepts them.
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

from pumphouse.client.base import (
    HubClient,
    Payload,
    Sender,
    batch_section,
    encode_event,
    prepared_batch,
)
from pumphouse.clock import Clock
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from pumphouse.homes.partition_hash import partitions_of
from pumphouse.homes.schema import home_id
from pumphouse.homes.simulator.hashed_random import Ints
from pumphouse.homes.simulator.record_encoding import (
    DUPLICATE,
    LATE,
    MALFORMED,
    PackedRecords,
    with_records,
)
from pumphouse.homes.simulator.time_slices import SliceSource, TimeSlice
from pumphouse.homes.trace_text import trace_properties

WAITING_MAX: Final = 4  # batches that wait in a queue
BATCH_BYTES_MAX: Final = 240 * 1024  # below the 256 KB of the smallest tier
OPENING_S: Final = 30.0  # connecting takes less; an earlier start was chosen with --from
STOP_S: Final = 10.0  # for batches in flight after a stop
BEHIND_S: Final = 5.0  # a longer delay is reported to the user


@dataclass(slots=True)
class SendTotals:
    """The totals of one run."""

    sent: int = 0
    late: int = 0
    duplicates: int = 0
    malformed: int = 0
    seconds: float = 0.0
    behind_s_max: float = 0.0
    event_ms: int = 0  # event time of the last slice

    def count(self, time_slice: TimeSlice) -> None:
        for bit, name in ((LATE, "late"), (DUPLICATE, "duplicates"), (MALFORMED, "malformed")):
            flagged = int(np.count_nonzero(time_slice.flags & bit))
            setattr(self, name, getattr(self, name) + flagged)
        self.event_ms = time_slice.due_ms


@dataclass(frozen=True, slots=True)
class Progress:
    """Reported after each slice: newly acknowledged events, and the delay of the slice."""

    acknowledged: int
    behind_s: float


class Pacer:
    """Releases each slice when it is due, at `speed` times event time; None: at once."""

    def __init__(self, start_ms: int, speed: float | None, clock: Clock) -> None:
        self.start_ms, self.speed, self.clock = start_ms, speed, clock
        self.since = clock.monotonic()
        if speed == 1.0:
            # Event time is the time of the clock, so the time spent on connecting has passed.
            self.since -= since_start(start_ms, clock)
        self.behind_s = 0.0

    @property
    def elapsed_s(self) -> float:
        return self.clock.monotonic() - self.since

    async def wait(self, due_ms: int, stop: asyncio.Event) -> None:
        """Wait until a slice is due or `stop` is set. An overdue slice is released at once."""
        if self.speed is None:
            await asyncio.sleep(0)  # lets the queues run
            return
        early_s = (due_ms - self.start_ms) / 1000 / self.speed - self.elapsed_s
        self.behind_s = max(0.0, -early_s)
        if early_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(early_s):
                    await stop.wait()


def since_start(start_ms: int, clock: Clock) -> float:
    """The seconds since the start of the readings; 0 if they start later or over OPENING_S ago."""
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
    """Send all slices of a source, until it ends or `stop` is set."""
    partitions = (await client.properties()).partitions
    partition_of = partitions_of(np.arange(source.homes, dtype=np.int32), len(partitions))
    totals = SendTotals()
    try:
        async with open_queues(client, partitions, partition_of, stop) as queues:
            pacer = Pacer(source.start_ms, speed, clock)
            for time_slice in source.slices(partition_of):
                await pacer.wait(time_slice.due_ms, stop)
                if stop.is_set():
                    break
                await queues.put(time_slice)
                totals.count(time_slice)
                totals.behind_s_max = max(totals.behind_s_max, pacer.behind_s)
                report(Progress(queues.accepted - totals.sent, pacer.behind_s))
                totals.sent = queues.accepted
    except* PumphouseError as failed:
        raise failed.exceptions[0] from None
    report(Progress(queues.accepted - totals.sent, 0.0))
    totals.sent, totals.seconds = queues.accepted, pacer.elapsed_s
    return totals


# -- queues


class SendQueue:
    """Sends one batch after the other through one sender."""

    def __init__(self, deliver: Callable[[Any], Awaitable[int]]) -> None:
        self.deliver = deliver
        self.queue: asyncio.Queue[Any] = asyncio.Queue(WAITING_MAX)

    async def run(self) -> None:
        while (batch := await self.queue.get()) is not None:
            await self.deliver(batch)

    def clear(self) -> None:
        """Drop the waiting batches, which also unblocks a caller of `put`."""
        while not self.queue.empty():
            self.queue.get_nowait()


class SendQueues:
    """One queue per partition, or a single one for a client without batch senders."""

    def __init__(
        self,
        senders: Sequence[Sender],
        queues: Sequence[SendQueue],
        split: Callable[[TimeSlice], Iterator[tuple[int, Any]]],  # index of a queue, its batch
    ) -> None:
        self.senders, self.queues, self.split = senders, queues, split

    @property
    def accepted(self) -> int:
        """The number of events that the hub has acknowledged."""
        return sum(sender.accepted for sender in self.senders)

    async def put(self, time_slice: TimeSlice) -> None:
        """Queue a slice; waits while a queue is full."""
        for index, batch in self.split(time_slice):
            await self.queues[index].queue.put(batch)

    async def close(self) -> None:
        for queue in self.queues:
            await queue.queue.put(None)

    def abandon(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        for queue in self.queues:
            queue.clear()


@asynccontextmanager
async def open_queues(
    client: HubClient, partitions: Sequence[str], partition_of: Ints, stop: asyncio.Event
) -> AsyncIterator[SendQueues]:
    """Queues to a hub. The exit waits for all batches, but not longer than STOP_S after `stop`."""
    queues = await queues_to(client, partitions, partition_of)
    async with asyncio.TaskGroup() as group:
        running = [group.create_task(queue.run()) for queue in queues.queues]
        abandoning = group.create_task(abandon_after_stop(queues, running, stop))
        try:
            yield queues
            await queues.close()
            await asyncio.wait(running)
        finally:
            abandoning.cancel()
    for sender in queues.senders:
        await sender.close()


async def abandon_after_stop(
    queues: SendQueues, running: Sequence[asyncio.Task[None]], stop: asyncio.Event
) -> None:
    await stop.wait()
    await asyncio.sleep(STOP_S)
    queues.abandon(running)


async def queues_to(client: HubClient, partitions: Sequence[str], partition_of: Ints) -> SendQueues:
    if not client.has_batch_sender:
        sender = await client.sender()
        return SendQueues([sender], [SendQueue(sender.send)], as_plain_events)
    senders = [await client.batch_sender(partition) for partition in partitions]
    size_max = min(BATCH_BYTES_MAX, *(sender.size_max for sender in senders))
    split = partial(
        split_by_partition, partition_of=partition_of, partitions=len(senders), size_max=size_max
    )
    return SendQueues(senders, [SendQueue(sender.deliver) for sender in senders], split)


def split_by_partition(
    time_slice: TimeSlice, partition_of: Ints, partitions: int, size_max: int
) -> Iterator[tuple[int, Payload]]:
    """A slice as batches, each for one partition and below a size."""
    packed = traced_records(time_slice)
    bounds = np.searchsorted(partition_of[time_slice.homes], np.arange(partitions + 1))
    for index, (first, last) in enumerate(pairwise(bounds.tolist())):
        while first < last:
            until = batch_end(packed, first, last, size_max)
            yield index, prepared_batch(packed.records(first, until), until - first)
            first = until


def traced_records(time_slice: TimeSlice) -> PackedRecords:
    """The records of a slice; those of traced readings are encoded with their context."""
    if not time_slice.traces:
        return time_slice.packed
    events = ((row, traced_event(time_slice, row)) for row in time_slice.traces)
    records = {row: batch_section(encode_event(event)) for row, event in events}
    return with_records(time_slice.packed, records)


def traced_event(time_slice: TimeSlice, row: int) -> Event:
    home = home_id(int(time_slice.homes[row]))
    properties = trace_properties(time_slice.traces.get(row))
    return Event(time_slice.packed.body(row), properties, partition_key=home)


def batch_end(records: PackedRecords, first: int, last: int, size_max: int) -> int:
    """The end of a batch that starts at `first` and ends at `last`, or earlier to stay below
    `size_max`. A batch has at least one record."""
    limit = records.starts[first] + size_max
    fits = int(np.searchsorted(records.starts[first : last + 1], limit, side="right")) - 1
    return first + max(1, fits)


def as_plain_events(time_slice: TimeSlice) -> Iterator[tuple[int, list[Event]]]:
    """A slice as events, for a sender that makes batches itself."""
    yield 0, [traced_event(time_slice, row) for row in range(len(time_slice))]
