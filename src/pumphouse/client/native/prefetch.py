"""Computes the credit of a reader, bounded in events and in bytes.

Credit counts events, but memory is limited in bytes. So credit is derived from the size of recent
events. If events become larger, those beyond the byte limit are not buffered: the reader detaches
and later resumes after the last buffered event.

    buffered events, their size -> credit_for -> flow
                                   ^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE_GUESS = 64 * 1024  # assumed size of an event until one arrives; larger than most


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of buffered events."""

    events: int
    bytes: int

    def full(self, size: int) -> int:
        """The largest credit for events of this size."""
        return max(1, min(self.events, self.bytes // max(1, size)))

    def room(self, waiting: int, waiting_bytes: int, size: int) -> int:
        """How many more events of this size fit; at least one if nothing is buffered."""
        events = min(self.events - waiting, (self.bytes - waiting_bytes) // max(1, size))
        return max(0 if waiting else 1, events)


def guess_size(previous: int, largest: int) -> int:
    """The expected size of the next events: it rises at once and falls by half the difference."""
    return max(largest, (previous + largest) // 2, 1)


def credit_for(
    bounds: Bounds, waiting: int, waiting_bytes: int, size: int, credit: int
) -> int | None:
    """The credit to grant now; None to leave it unchanged.

    The credit is raised when the room in the buffer exceeds it by at least half of the full credit:
    flows are then rare, and the hub still has credit. The credit is lowered if events have become
    so large that the buffer has no room for that many.
    """
    room = bounds.room(waiting, waiting_bytes, size)
    if room - credit >= max(1, bounds.full(size) // 2):
        return room
    return room if credit > 2 * room + 1 else None
