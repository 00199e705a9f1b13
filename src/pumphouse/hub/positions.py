"""Where does reading start? A position, as a sequence number of some log."""

from __future__ import annotations

from typing import Protocol

from pumphouse.errors import AmqpError
from pumphouse.events import Position


class Searchable(Protocol):
    """What a log must know for a position to be found in it."""

    begin: int
    next_sequence: int
    last_offset: int

    def after_offset(self, offset: int, inclusive: bool) -> int: ...

    def after_time(self, ms: int, inclusive: bool) -> int: ...


def locate(log: Searchable, position: Position) -> int:
    """The sequence number at which reading starts; AmqpError for a position beyond the end."""
    match position.kind:
        case "latest":
            return log.next_sequence
        case "sequence":
            return after_sequence(log, int(position.value), position.inclusive)
        case "offset":
            offset = int(position.value)
            if offset > log.last_offset:
                raise beyond_end("offset", offset, log.last_offset)
            return max(log.begin, log.after_offset(offset, position.inclusive))
        case "time":
            return max(log.begin, log.after_time(int(position.value), position.inclusive))
    return log.begin


def after_sequence(log: Searchable, sequence: int, inclusive: bool) -> int:
    wanted = sequence if inclusive else sequence + 1
    if wanted > log.next_sequence:
        raise beyond_end("sequence number", sequence, log.next_sequence - 1)
    return max(log.begin, wanted)


def beyond_end(what: str, found: int, last: int) -> AmqpError:
    return AmqpError(
        "com.microsoft:argument-error",
        f"The supplied {what} '{found}' is invalid. The last {what} in the system is '{last}'",
    )
