"""Notices that a hub was re-created while a reader was disconnected. Pure functions.

A reader that attaches again requests its last event once more. A hub that was deleted and created,
or that keeps nothing and was restarted, has another event under this number.

    NativeReader -> position_of, is_same_event -> recreated_error
                    ^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.errors import AmqpError
from pumphouse.events import Event, Position

POSITION_UNKNOWN = "com.microsoft:argument-error"  # of a position that a hub does not have


def position_of(event: Event) -> Position:
    """The position whose first event is this one."""
    return Position("sequence", str(event.sequence), inclusive=True)


def is_same_event(before: Event, after: Event) -> bool:
    """Whether two events with one sequence number are the same: a hub never repeats a time."""
    if before.enqueued_ms is None or after.enqueued_ms is None:
        return before.offset == after.offset
    return before.enqueued_ms == after.enqueued_ms


def recreated_error(address: str, event: Event) -> AmqpError:
    text = f"{address} has another event {event.sequence} than before: the hub was re-created"
    return AmqpError(POSITION_UNKNOWN, text)
