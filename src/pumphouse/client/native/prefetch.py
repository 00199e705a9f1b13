"""How many events a hub may send us ahead of time, bounded in events and in bytes.

Credit counts events; memory is bytes. So credit is granted by the size that events have had lately,
and what comes beyond the bound all the same (they have grown in the meantime) is not kept: the
reader lets go of its link and reads on later, behind what it has.

    what waits, what was seen -> credit_for -> flow
                                 ^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import dataclass

SIZE_GUESS = 64 * 1024  # of an event, before one was seen: rather too much than too little


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may wait to be received."""

    events: int
    bytes: int

    def full(self, size: int) -> int:
        """The most events of this size that may be waited for at once."""
        return max(1, min(self.events, self.bytes // max(1, size)))

    def room(self, waiting: int, waiting_bytes: int, size: int) -> int:
        """How many more of this size may come; at least one if nothing waits."""
        events = min(self.events - waiting, (self.bytes - waiting_bytes) // max(1, size))
        return max(0 if waiting else 1, events)


def guess_size(before: int, largest: int) -> int:
    """How large the next events will be: as the largest of the last ones, soon forgotten."""
    return max(largest, (before + largest) // 2, 1)


def credit_for(
    bounds: Bounds, waiting: int, waiting_bytes: int, size: int, credit: int
) -> int | None:
    """The credit to grant now; None to leave it as it is.

    It is raised once half of it is used and taken, so that flows are few and the hub never stalls,
    and lowered if events have become so large that what is under way would be too much.
    """
    room = bounds.room(waiting, waiting_bytes, size)
    if room - credit >= max(1, bounds.full(size) // 2):
        return room
    return room if credit > 2 * room + 1 else None
