"""Decides whether events are missing between the last one that was read and the next one. Pure.

    checkpoint, last event -> LastRead -> missing_before, is_same_event -> EventsExpired
                                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Sequence numbers of a partition have no holes. If the next event does not follow the last one, the
events between them are gone. If the hub has another event under the number of the last one, it is
another hub of the same name: it was deleted and created again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import EventsExpired
from pumphouse.events import Event, Position
from pumphouse.leases.model import Checkpoint

# Some clients round the enqueued time, and a checkpoint may have it from the properties of the
# partition. A hub is not deleted, created again and filled within this time.
TOLERANCE_MS = 1


@dataclass(frozen=True, slots=True)
class LastRead:
    """The last event that was read or checkpointed, as far as it is known."""

    sequence: int
    offset: str | None = None
    enqueued_ms: int | None = None


def last_of(position: Checkpoint | Event) -> LastRead | None:
    """The last event of a checkpoint, or an event itself; None without a sequence number."""
    if position.sequence is None:
        return None
    return LastRead(position.sequence, position.offset, position.enqueued_ms)


def missing_before(last: LastRead, partition: PartitionProperties) -> EventsExpired | None:
    """The events after `last` that retention has removed."""
    if partition.first_sequence <= last.sequence + 1:
        return None
    return EventsExpired(partition.partition, last.sequence + 1, partition.first_sequence - 1)


def is_retained(last: LastRead, partition: PartitionProperties) -> bool:
    """Whether the partition has an event under this number: it can be compared then."""
    return partition.first_sequence <= last.sequence <= partition.last_sequence


def is_same_event(last: LastRead, event: Event) -> bool:
    """Whether an event with the number of the last one is that event.

    The enqueued times are compared, because a re-created hub does not repeat them, and the offsets
    if both are numbers. Checkpoints of official SDKs have no time. (Offsets of an event change
    their form, but not their order, when a namespace becomes geo-replicated.)
    """
    if last.enqueued_ms is not None and event.enqueued_ms is not None:
        apart_ms = abs(last.enqueued_ms - event.enqueued_ms)
    else:
        apart_ms = 0
    offset, other = last.offset or "", event.offset or ""
    comparable = offset.isdecimal() and other.isdecimal()
    return apart_ms <= TOLERANCE_MS and (not comparable or int(offset) == int(other))


def start_after(last: LastRead, *, compare: bool) -> Position:
    """The position of a reader after `last`; with `compare` it returns `last` itself first."""
    return Position("sequence", str(last.sequence), inclusive=compare)


def contiguous(events: Sequence[Event]) -> int:
    """How many of these events follow each other without a hole."""
    first, last = events[0].sequence or 0, events[-1].sequence or 0
    if last - first == len(events) - 1:
        return len(events)
    return next(n for n, event in enumerate(events) if event.sequence != first + n)


def is_accepted(error: EventsExpired, accepted: EventsExpired | None) -> bool:
    """Whether an operator has resumed the partition after this very loss was reported."""
    if accepted is None or error.recreated is not accepted.recreated:
        return False
    return error.recreated or error.first == accepted.first
