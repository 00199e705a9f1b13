"""The enqueued times of a partition, if the clock of the machine is set back.

Times stay sorted within a segment, so that a reader's position by time is found by a binary search.
If the clock is behind the newest event by up to a minute, new events get the time of that event
until the clock has caught up. If it is further behind, the clock was probably wrong before: it was
ahead, and has been corrected. New events get the time of the clock again, and start a new segment.

    clock    10:00  10:01  [ahead] 18:00  18:01  [back] 10:02  10:03
    events   10:00  10:01          18:00  18:01       | 10:02  10:03
             [-------------- segment --------------]    [-- segment ...

A reader from a time starts at the first event, in order of sequence numbers, with that time or a
later one. It misses no such event. From 10:03 it starts at the event of 18:00, and so it gets the
events of 18:01 and 10:02 too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

# Below a minute, a clock is corrected in small steps by the time service, or by hand.
CLOCK_BEHIND_MS_MAX = 60_000


class Stamp(NamedTuple):
    """The enqueued time of new events, and whether they must start a new segment."""

    ms: int
    starts_segment: bool = False


def stamp(now_ms: int, last_ms: int) -> Stamp:
    """The time for events that follow one with the time `last_ms`."""
    if now_ms >= last_ms:
        return Stamp(now_ms)
    if last_ms - now_ms <= CLOCK_BEHIND_MS_MAX:
        return Stamp(last_ms)
    return Stamp(now_ms, starts_segment=True)


class TimeRange(NamedTuple):
    """The times of the first and the last event of a segment."""

    first_ms: int
    last_ms: int


def expired_segments(ranges: Iterable[TimeRange | None], oldest_ms: float, now_ms: int) -> int:
    """How many segments, from the first on, hold only events older than `oldest_ms`.

    None stands for a segment whose times are not known. A time far ahead of now is wrong. Events
    with such times are at least as old as the first event of the next segment, and expire with it.
    """
    expired, newest_ms = 0, now_ms + CLOCK_BEHIND_MS_MAX
    for number, times in enumerate(ranges):
        if times is None or oldest_ms <= times.first_ms <= newest_ms:
            break
        if times.first_ms < oldest_ms:
            expired = number
        if times.last_ms < oldest_ms:
            expired = number + 1
        elif times.last_ms <= newest_ms:
            break
    return expired
