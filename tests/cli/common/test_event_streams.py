"""Partitions merged into one stream, also while retention removes events."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from pumphouse.cli.common.event_streams import PartitionStream, Span, follow, merge, span_for
from pumphouse.client.base import PartitionProperties
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.reader import NativeReader
from pumphouse.events import EARLIEST, LATEST, NEVER_MS, Event, Position


def properties(first: int, last: int) -> PartitionProperties:
    """A partition whose events have offset 10 x sequence and time 100 x sequence."""
    empty = first > last
    return PartitionProperties(
        "eh", "0", first, last, str(last * 10 if last >= 0 else -1),
        last * 100 if last >= 0 else NEVER_MS, empty,
    )  # fmt: skip


def position(kind: str, value: int) -> Position:
    return Position(kind, str(value), inclusive=True)


@pytest.mark.parametrize(
    ("first", "last", "start", "expected"),
    [
        (0, 20, None, "sequence:11"),  # the last ten
        (15, 20, None, "sequence:15"),  # of which some have expired
        (0, 3, None, "sequence:0"),
        (0, 20, EARLIEST, "earliest"),
        (0, 20, position("sequence", 20), "sequence:20"),
        (0, 20, position("offset", 200), "offset:200"),
        (0, 20, position("time", 2000), "time:2000"),
    ],
)
def test_the_span_of_existing_events(
    first: int, last: int, start: Position | None, expected: str
) -> None:
    span = span_for(properties(first, last), start, 10)
    assert (str(span.start), span.end, span.empty) == (expected, last, False)


@pytest.mark.parametrize(
    ("first", "last", "start"),
    [
        (0, 20, LATEST),
        (0, 20, position("sequence", 21)),
        (0, 20, position("offset", 201)),
        (0, 20, position("time", 2001)),
        (21, 20, EARLIEST),  # all has expired
        (21, 20, None),
        (0, -1, EARLIEST),  # never an event
        (0, -1, None),
    ],
)
def test_an_empty_span_starts_after_the_last_event(
    first: int, last: int, start: Position | None
) -> None:
    span = span_for(properties(first, last), start, 10)
    assert span.empty
    assert span.start == Position("sequence", str(last))


class FakePartition:
    """A fake reader and client with prepared batches and a first sequence number."""

    def __init__(self, *batches: list[Event], first_now: int = 0) -> None:
        self.batches = list(batches)
        self.first_now = first_now

    async def receive(self, max_events: int, deadline_s: float) -> list[Event]:
        if not self.batches and deadline_s > 1.0:
            await asyncio.Event().wait()
        return self.batches.pop(0) if self.batches else []

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return properties(self.first_now, 100)


def stream(partition: str, end: int, *batches: list[Event], first_now: int = 0) -> PartitionStream:
    partition_reader = FakePartition(*batches, first_now=first_now)
    span = Span(partition, EARLIEST, end, empty=end < 0)
    return PartitionStream(
        cast(NativeClient, partition_reader), cast(NativeReader, partition_reader), span
    )


def events(partition: str, *times: int, start: int = 0) -> list[Event]:
    return [
        Event(b"", partition=partition, sequence=sequence, enqueued_ms=ms)
        for sequence, ms in enumerate(times, start)
    ]


def keys(merged: list[Event]) -> list[tuple[str | None, int | None]]:
    return [(event.partition, event.enqueued_ms) for event in merged]


async def test_the_oldest_event_comes_first() -> None:
    streams = [
        stream("a", 2, events("a", 1, 4, 9)),
        stream("b", 1, events("b", 2), events("b", 3, start=1)),
        stream("c", -1),
    ]
    merged = [event async for event in merge(streams)]
    assert keys(merged) == [("a", 1), ("b", 2), ("b", 3), ("a", 4), ("a", 9)]


async def test_events_of_the_same_time_keep_their_order() -> None:
    merged = [event async for event in merge([stream("a", 2, events("a", 5, 5, 5))])]
    assert [event.sequence for event in merged] == [0, 1, 2]


async def test_follow_continues_at_the_end_of_the_span() -> None:
    stream_a = stream("a", 1, events("a", 1, 2, 3, 4))
    assert len([event async for event in merge([stream_a])]) == 2
    shown: list[Event] = []

    def show(new: list[Event]) -> bool:
        shown.extend(new)
        return False

    async with asyncio.timeout(5):
        await follow([stream_a], show)
    assert keys(shown) == [("a", 3), ("a", 4)]


async def test_expired_events_are_not_waited_for() -> None:
    stream_a = stream("a", 5, events("a", 1, 2), first_now=6)
    async with asyncio.timeout(5):
        assert len([event async for event in merge([stream_a])]) == 2


async def test_retention_can_remove_the_whole_span() -> None:
    stream_a = stream("a", 5, events("a", 9, start=8))
    async with asyncio.timeout(5):
        assert [event async for event in merge([stream_a])] == []
    assert keys(await stream_a.new_events()) == [("a", 9)]


async def test_the_last_event_of_the_span_is_waited_for() -> None:
    stream_a = stream("a", 5, events("a", 1, 2), [], events("a", 9, start=5), first_now=5)
    async with asyncio.timeout(5):
        assert len([event async for event in merge([stream_a])]) == 3
