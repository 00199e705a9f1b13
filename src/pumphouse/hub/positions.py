"""Finds the sequence number of a position in a log."""

from __future__ import annotations

from typing import Protocol

from pumphouse.errors import AmqpError
from pumphouse.events import Position


class SearchableLog(Protocol):
    """The part of a log that is needed to find a position."""

    begin: int
    next_sequence: int
    last_offset: int

    def after_offset(self, offset: int, inclusive: bool) -> int:
        """The sequence number of the first event after (or at) an offset."""

    def after_time(self, ms: int, inclusive: bool) -> int:
        """The sequence number of the first event enqueued after (or at) a time."""


def locate(log: SearchableLog, position: Position) -> int:
    """The sequence number at which reading starts; AmqpError for a position after the end."""
    match position.kind:
        case "latest":
            return log.next_sequence
        case "sequence":
            return after_sequence(log, int(position.value), position.inclusive)
        case "offset":
            offset = int(position.value)
            if offset > log.last_offset:
                raise after_end("offset", offset, log.last_offset)
            return max(log.begin, log.after_offset(offset, position.inclusive))
        case "time":
            return max(log.begin, log.after_time(int(position.value), position.inclusive))
    return log.begin


def after_sequence(log: SearchableLog, sequence: int, inclusive: bool) -> int:
    """The first kept sequence number after (or at) `sequence`."""
    first = sequence if inclusive else sequence + 1
    if first > log.next_sequence:
        raise after_end("sequence number", sequence, log.next_sequence - 1)
    return max(log.begin, first)


def after_end(what: str, value: int, last: int) -> AmqpError:
    return AmqpError(
        "com.microsoft:argument-error",
        f"The supplied {what} '{value}' is invalid. The last {what} in the system is '{last}'",
    )
