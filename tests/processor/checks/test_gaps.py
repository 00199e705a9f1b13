"""Decisions about missing events, without a hub."""

from __future__ import annotations

import pytest

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import EventsExpired
from pumphouse.events import Event, Position
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.processor.checks.gaps import (
    LastRead,
    contiguous,
    is_accepted,
    is_retained,
    is_same_event,
    last_of,
    missing_before,
    start_after,
)

GROUP = Group("ns", "eh")


def partition(first: int, last: int) -> PartitionProperties:
    return PartitionProperties("eh", "0", first, last, str(last * 100), 0, first > last)


def events(*sequences: int) -> list[Event]:
    return [Event(b"", sequence=sequence) for sequence in sequences]


@pytest.mark.parametrize(
    ("last", "first", "missing"),
    [(9, 0, None), (9, 9, None), (9, 10, None), (9, 11, (10, 10)), (9, 30, (10, 29))],
)
def test_what_lies_before_the_first_event_is_missing(
    last: int, first: int, missing: tuple[int, int] | None
) -> None:
    error = missing_before(LastRead(last), partition(first, 40))
    assert (None if error is None else (error.first, error.last)) == missing


def test_an_event_can_be_compared_while_it_is_retained() -> None:
    assert [is_retained(LastRead(n), partition(5, 9)) for n in (4, 5, 9, 10)] == [
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("last", "event", "same"),
    [
        (LastRead(3, "10", 1000), Event(b"", offset="10", enqueued_ms=1000), True),
        (LastRead(3, "10", 1000), Event(b"", offset="10", enqueued_ms=1001), True),
        (LastRead(3, "10", 1000), Event(b"", offset="10", enqueued_ms=1002), False),
        (LastRead(3, "10", 1000), Event(b"", offset="11", enqueued_ms=1000), False),
        # The form of offsets changes when a namespace becomes geo-replicated.
        (LastRead(3, "10", 1000), Event(b"", offset="1:10", enqueued_ms=1000), True),
        (LastRead(3, "10"), Event(b"", offset="010", enqueued_ms=1000), True),
        (LastRead(3, "10"), Event(b"", offset="11", enqueued_ms=1000), False),
        (LastRead(3, "10"), Event(b"", offset="1:11", enqueued_ms=1000), True),
        (LastRead(3), Event(b"", offset="11"), True),
    ],
)
def test_the_same_event_has_the_same_time_and_offset(
    last: LastRead, event: Event, same: bool
) -> None:
    assert is_same_event(last, event) is same


def test_the_last_event_of_a_checkpoint() -> None:
    assert last_of(Checkpoint(GROUP, "0")) is None
    assert last_of(Checkpoint(GROUP, "0", offset="7")) is None
    assert last_of(Checkpoint(GROUP, "0", 5, "7", enqueued_ms=8)) == LastRead(5, "7", 8)


def test_a_reader_that_compares_returns_the_last_event_too() -> None:
    assert start_after(LastRead(5), compare=True) == Position("sequence", "5", inclusive=True)
    assert start_after(LastRead(5), compare=False) == Position("sequence", "5")


@pytest.mark.parametrize(
    ("sequences", "count"), [([4], 1), ([4, 5, 6], 3), ([4, 6], 1), ([4, 5, 9, 10], 2)]
)
def test_a_batch_ends_at_a_hole(sequences: list[int], count: int) -> None:
    assert contiguous(events(*sequences)) == count


def test_a_resumed_partition_accepts_the_loss_that_stopped_it() -> None:
    expired, more = EventsExpired("0", 3, 5), EventsExpired("0", 3, 9)
    recreated = EventsExpired("0", 3, None, recreated=True)
    assert is_accepted(more, expired)
    assert is_accepted(EventsExpired("0", 7, None, recreated=True), recreated)
    assert not is_accepted(expired, None)
    assert not is_accepted(EventsExpired("0", 4, 5), expired)
    assert not is_accepted(expired, recreated)
