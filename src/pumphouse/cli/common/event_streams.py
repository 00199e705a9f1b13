"""Partitions read side by side and shown as one stream.

Up to the end that each partition had when we looked, events are merged by the time at which they
were enqueued. What comes afterwards is shown as it comes.

    partition properties -> span_for -> PartitionStream -> merge, follow -> tail
                            ^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pumphouse.client.base import HubClient, PartitionProperties, Reader, ReaderOptions
from pumphouse.events import Event, Position

TAKE = 500  # events at once
LOOK_AGAIN_S = 1.0  # after so long without an event we ask whether retention has taken the rest
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Span:
    """What of a partition to read first: from `start` up to the sequence number `end`."""

    partition: str
    start: Position
    end: int
    empty: bool  # there is nothing between the two; `start` is then the end


def span_for(partition: PartitionProperties, position: Position | None, last: int) -> Span:
    """From a position, or (without one) the last so many events."""
    end = partition.last_sequence
    if position is None:
        first = max(partition.first_sequence, end - last + 1)
        position = Position("sequence", str(first), inclusive=True)
    if partition.empty or not reaches(position, partition):
        # Just behind the last event we know of, so that none is missed which comes from now on.
        return Span(partition.partition, Position("sequence", str(end)), end, empty=True)
    return Span(partition.partition, position, end, empty=False)


def reaches(position: Position, partition: PartitionProperties) -> bool:
    """Whether the last event of a partition lies at or behind a position that includes it."""
    match position.kind:
        case "latest":
            return False
        case "sequence":
            return int(position.value) <= partition.last_sequence
        case "offset":
            return int(position.value) <= int(partition.last_offset)
        case "time":
            return int(position.value) <= partition.last_enqueued_ms
    return True


class PartitionStream:
    """One partition."""

    def __init__(self, client: HubClient, reader: Reader, span: Span) -> None:
        self.client = client
        self.reader = reader
        self.span = span
        self._waiting: deque[Event] = deque()
        self._done = span.empty

    async def next(self) -> Event | None:
        """The next event of the span; None at its end."""
        while not self._waiting and not self._done:
            self._waiting.extend(await self.reader.receive(TAKE, LOOK_AGAIN_S))
            self._done = not self._waiting and await self.expired()
        if self._done or sequence(self._waiting[0]) > self.span.end:
            self._done = True
            return None
        event = self._waiting.popleft()
        self._done = sequence(event) == self.span.end
        return event

    async def expired(self) -> bool:
        """Whether retention has taken what we still wait for."""
        now = await self.client.partition_properties(self.span.partition)
        return now.first_sequence > self.span.end

    async def live(self) -> list[Event]:
        """What has come since."""
        while not self._waiting:
            self._waiting.extend(await self.reader.receive(TAKE, WAIT_S))
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def sequence(event: Event) -> int:
    return -1 if event.sequence is None else event.sequence


def age(event: Event) -> tuple[int, int, str]:
    """What events are sorted by; within one partition and time, by their sequence."""
    return event.enqueued_ms or 0, sequence(event), event.partition or ""


async def open_streams(
    client: HubClient, group: str, spans: Sequence[Span]
) -> list[PartitionStream]:
    return [
        PartitionStream(
            client,
            await client.reader(ReaderOptions(span.partition, group, span.start)),
            span,
        )
        for span in spans
    ]


async def merge(streams: Sequence[PartitionStream]) -> AsyncGenerator[Event, None]:
    """The spans of all streams as one stream, the oldest event first."""
    heads: list[tuple[tuple[int, int, str], int, Event]] = []
    waiting = list(range(len(streams)))
    while True:
        for number in waiting:
            if (event := await streams[number].next()) is not None:
                heappush(heads, (age(event), number, event))
        if not heads:
            return
        _, number, event = heappop(heads)
        yield event
        waiting = [number]


async def follow(streams: Sequence[PartitionStream], show: Callable[[list[Event]], bool]) -> None:
    """Show what comes from now on, until `show` says that it is enough."""
    queue: asyncio.Queue[list[Event]] = asyncio.Queue(len(streams))
    async with asyncio.TaskGroup() as tasks:
        pumps = [tasks.create_task(pump(stream, queue)) for stream in streams]
        while show(await gather(queue)):
            pass
        for task in pumps:
            task.cancel()


async def pump(stream: PartitionStream, queue: asyncio.Queue[list[Event]]) -> None:
    while True:
        await queue.put(await stream.live())


async def gather(queue: asyncio.Queue[list[Event]]) -> list[Event]:
    """All that is there, at least something, the oldest first."""
    events = await queue.get()
    while not queue.empty():
        events += queue.get_nowait()
    return sorted(events, key=age)
