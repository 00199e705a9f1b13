"""Reads several partitions and merges them into one stream of events.

Events that are in the partitions when the command starts are merged by enqueued time. Later events
follow in order of arrival.

    partition properties -> span_for -> PartitionStream -> merge, follow -> tail
                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pumphouse.client.base import HubClient, PartitionProperties, Reader, ReaderOptions
from pumphouse.events import Event, Position

BATCH = 500  # events per receive
# After this time without an event, check whether retention has removed the rest of the span.
EXPIRY_CHECK_S = 1.0
WAIT_S = 60.0  # for new events, per call


@dataclass(frozen=True, slots=True)
class Span:
    """The existing events to read: from `start` up to and including the sequence number `end`."""

    partition: str
    start: Position
    end: int
    empty: bool  # no event between the two; `start` is then the end


def span_for(partition: PartitionProperties, position: Position | None, last: int) -> Span:
    """The span from `position` on; if that is None, the span of the newest `last` events."""
    end = partition.last_sequence
    if position is None:
        first = max(partition.first_sequence, end - last + 1)
        position = Position("sequence", str(first), inclusive=True)
    if partition.empty or not reaches(position, partition):
        # Just after the last known event, so that no later event is missed.
        return Span(partition.partition, Position("sequence", str(end)), end, empty=True)
    return Span(partition.partition, position, end, empty=False)


def reaches(position: Position, partition: PartitionProperties) -> bool:
    """Whether the last event of a partition is at or after a position."""
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
    """The events of one partition: first its span, then new events."""

    def __init__(self, client: HubClient, reader: Reader, span: Span) -> None:
        self.client = client
        self.reader = reader
        self.span = span
        self._waiting: deque[Event] = deque()
        self._done = span.empty

    async def next(self) -> Event | None:
        """The next event of the span; None at its end."""
        while not self._waiting and not self._done:
            self._waiting.extend(await self.reader.receive(BATCH, EXPIRY_CHECK_S))
            self._done = not self._waiting and await self.expired()
        if self._done or sequence(self._waiting[0]) > self.span.end:
            self._done = True
            return None
        event = self._waiting.popleft()
        self._done = sequence(event) == self.span.end
        return event

    async def expired(self) -> bool:
        """Whether retention has removed the rest of the span."""
        properties = await self.client.partition_properties(self.span.partition)
        return properties.first_sequence > self.span.end

    async def new_events(self) -> list[Event]:
        """The events after the span; waits for at least one."""
        while not self._waiting:
            self._waiting.extend(await self.reader.receive(BATCH, WAIT_S))
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


def sequence(event: Event) -> int:
    return -1 if event.sequence is None else event.sequence


def sort_key(event: Event) -> tuple[int, int, str]:
    """Sort key of an event: time, then sequence number, then partition."""
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
    """The spans of all streams, merged, oldest event first."""
    heads: list[tuple[tuple[int, int, str], int, Event]] = []
    without_head = list(range(len(streams)))
    while True:
        for number in without_head:
            if (event := await streams[number].next()) is not None:
                heappush(heads, (sort_key(event), number, event))
        if not heads:
            return
        _, number, event = heappop(heads)
        yield event
        without_head = [number]


async def follow(streams: Sequence[PartitionStream], show: Callable[[list[Event]], bool]) -> None:
    """Show new events until `show` returns False."""
    queue: asyncio.Queue[list[Event]] = asyncio.Queue(len(streams))
    async with asyncio.TaskGroup() as tasks:
        pumps = [tasks.create_task(pump(stream, queue)) for stream in streams]
        while show(await gather(queue)):
            pass
        for task in pumps:
            task.cancel()


async def pump(stream: PartitionStream, queue: asyncio.Queue[list[Event]]) -> None:
    while True:
        await queue.put(await stream.new_events())


async def gather(queue: asyncio.Queue[list[Event]]) -> list[Event]:
    """All queued events, oldest first; waits for at least one batch."""
    events = await queue.get()
    while not queue.empty():
        events += queue.get_nowait()
    return sorted(events, key=sort_key)
