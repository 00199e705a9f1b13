"""The daily routine of each home: when people wake, leave, return, air a room and go to bed.

A `DayPlan` is one day of many homes, in minutes since 1970. It depends on (seed, home, day) only.
Activities are intervals (a person moves, the door or the window is open), so that any minute can be
computed without the minutes before it:

    plan_day(keys, day) -> DayPlan -> DayCache (this day, the day before, the last interval before)
                                   -> mode_at, Intervals.at -> sensors.py

Rules that keep a day without incidents free of alerts: the door opens only while the alarm is off;
a window is shut before the alarm is armed, or the outing is too short for an alert; intervals of
one kind neither touch nor overlap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from pumphouse.homes.simulator.hashed_random import (
    Flags,
    Indices,
    Ints,
    UInt64s,
    below,
    quarters,
    random_bits,
    with_probability,
)

DAY: Final = 1440
HOME, AWAY, ASLEEP = 0, 1, 2  # places in schema.MODES
NEVER: Final = np.int32(2**31 - 1)  # start and end of an interval that is not there
LONG_AGO: Final = np.int32(-1)  # nothing is known to have happened

# Purposes of throws; each gets its own dice.
LIFE, SLEEP, OUTING, EVENING, WINDOWS, DWELL, CALLERS, HOLIDAY, NIGHT = range(1, 10)

# Of a hundred homes: people who work by day, who work late, who are mostly at home.
WORKS_BY_DAY, WORKS_LATE = 0.55, 0.10
HOLIDAYS = 2 / 52  # the share of weeks, from Saturday to Friday
SHORT_OUTING = 80  # minutes; a window left open for it is no reason to call anybody
CALLER_HOURS: Final = ((420, 655), (660, 955), (960, 1255))  # post, parcel, neighbour


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals in which something goes on, a row for each occasion and a column for each home."""

    starts: Ints
    ends: Ints

    def of(self, rows: Indices) -> Intervals:
        return Intervals(self.starts.take(rows, axis=1), self.ends.take(rows, axis=1))

    def and_then(self, later: Intervals) -> Intervals:
        starts = np.concatenate((self.starts, later.starts))
        return Intervals(starts, np.concatenate((self.ends, later.ends)))

    def without(self, rows: Indices) -> Intervals:
        """The same where nothing goes on in some homes."""
        starts, ends = self.starts.copy(), self.ends.copy()
        starts[:, rows], ends[:, rows] = NEVER, NEVER
        return Intervals(starts, ends)

    def at(self, minute: int, before: Ints) -> tuple[Flags, Ints]:
        """Whether one of the intervals holds the minute, and since which minute that is so."""
        begun = np.where(self.starts <= minute, self.starts, LONG_AGO).max(axis=0)
        over = self.last_end(minute)
        # Intervals do not touch, so the later of the two says what is going on.
        active = begun > over
        return active, np.where(active, begun, np.maximum(over, before))

    def next_start(self, minute: int) -> Ints:
        """When the next interval begins; NEVER if none is planned."""
        out: Ints = np.where(self.starts > minute, self.starts, NEVER).min(axis=0)
        return out

    def last_end(self, minute: int) -> Ints:
        """When the last interval ended before a minute; LONG_AGO if there is none."""
        out: Ints = np.where(self.ends <= minute, self.ends, LONG_AGO).max(axis=0)
        return out


@dataclass(frozen=True, slots=True)
class DayTimes:
    """When the people of some homes do what on one day: minutes, NEVER where they do not."""

    day: int
    wake: Ints
    bed: Ints  # may lie after midnight
    leave: Ints  # the long outing; the start of the day if they were away already
    back: Ints  # the end of the day if they stay away
    leave_again: Ints  # the evening's
    back_again: Ints

    @property
    def start(self) -> int:
        return self.day * DAY

    @property
    def end(self) -> int:
        return self.start + DAY

    @property
    def leaves(self) -> Flags:
        """Whether they leave on this day."""
        out: Flags = (self.leave != NEVER) & (self.leave > self.start)
        return out

    @property
    def returns(self) -> Flags:
        """Whether they are back before it ends."""
        out: Flags = self.back < self.end
        return out

    @property
    def goes_again(self) -> Flags:
        out: Flags = self.leave_again != NEVER
        return out

    def each(self, change: Callable[[Ints], Ints]) -> DayTimes:
        """The same day with every time changed."""
        six = self.wake, self.bed, self.leave, self.back, self.leave_again, self.back_again
        return DayTimes(self.day, *map(change, six))

    def of(self, rows: Indices) -> DayTimes:
        """The same day of some of these homes."""
        return self.each(lambda time: time[rows])


@dataclass(frozen=True, slots=True)
class DayPlan:
    """One day of some homes, in minutes since 1970, and what goes on when."""

    times: DayTimes
    moving: Intervals
    door: Intervals
    window: Intervals


@dataclass(frozen=True, slots=True)
class _Life:
    """What does not change from day to day."""

    by_day: Flags
    late: Flags
    wake: Ints  # on a working day, minute of the day
    bed: Ints

    @property
    def works(self) -> Flags:
        return self.by_day | self.late


def _life(keys: UInt64s) -> _Life:
    kind, wake, bed, _ = quarters(random_bits(keys, LIFE))
    by_day = with_probability(kind, WORKS_BY_DAY)
    late = ~by_day & with_probability(kind, WORKS_BY_DAY + WORKS_LATE)
    return _Life(
        by_day=by_day,
        late=late,
        wake=np.where(by_day, 345 + below(wake, 105), 420 + below(wake, 100)),
        bed=np.where(late, 1410 + below(bed, 60), 1310 + below(bed, 110)),
    )


def weekday(day: int) -> int:
    """0 is Monday; 1970 began on a Thursday."""
    return (day + 3) % 7


def plan_day(keys: UInt64s, day: int) -> DayPlan:
    """The day of each home, holidays included."""
    life = _life(keys)
    free = ~life.works if weekday(day) < 5 else np.ones(len(keys), np.bool_)
    wake, bed = _sleep(keys, day, life, free)
    leave, back = _outing(keys, day, life, free, wake)
    leave, back = _holiday(keys, day, leave, back)
    bed = np.maximum(bed, np.where(back < DAY, back + 70, 0))
    leave_again, back_again = _evening(keys, day, free, leave, back, bed)
    relative = DayTimes(day, wake, bed, leave, back, leave_again, back_again)
    times = relative.each(lambda time: _absolute(time, relative.start))
    return DayPlan(times, _moving(keys, times), _door(keys, times), _window(keys, times))


def _absolute(times: Ints, start: int) -> Ints:
    out: Ints = np.where(times == NEVER, NEVER, times + np.int32(start)).astype(np.int32)
    return out


def _sleep(keys: UInt64s, day: int, life: _Life, free: Flags) -> tuple[Ints, Ints]:
    wake, bed, *_ = quarters(random_bits(keys, SLEEP, day))
    long = 60 if weekday(day) in (4, 5) else 0  # Friday and Saturday nights are longer
    rise = life.wake + below(wake, 31) - 15
    lie_in = np.where(free & life.works, 90, 0)
    return rise + lie_in, life.bed + below(bed, 31) - 15 + long


def _outing(keys: UInt64s, day: int, life: _Life, free: Flags, wake: Ints) -> tuple[Ints, Ints]:
    """To work, or for a walk and the shopping."""
    goes, when, length, _ = quarters(random_bits(keys, OUTING, day))
    work = np.where(life.late, 750 + below(when, 60), wake + 45 + below(when, 45))
    shift = np.where(life.late, 500 + below(length, 45), 480 + below(length, 120))
    walk = np.maximum(570 + below(when, 150), wake + 45)
    leave = np.where(free, walk, work)
    back = leave + np.where(free, 40 + below(length, 160), shift)
    stays = free & ~with_probability(goes, 0.7)
    return np.where(stays, NEVER, leave), np.where(stays, NEVER, back)


def _holiday(keys: UInt64s, day: int, leave: Ints, back: Ints) -> tuple[Ints, Ints]:
    """Away from a Saturday morning to the evening of the Friday after it."""
    week, place = divmod(day - 2, 7)
    away, leaves, returns, _ = quarters(random_bits(keys, HOLIDAY, week))
    gone = with_probability(away, HOLIDAYS)
    leave = np.where(gone, 690 + below(leaves, 90) if place == 0 else 0, leave)
    back = np.where(gone, 960 + below(returns, 180) if place == 6 else DAY, back)
    return leave.astype(np.int32), back.astype(np.int32)


def _evening(
    keys: UInt64s, day: int, free: Flags, leave: Ints, back: Ints, bed: Ints
) -> tuple[Ints, Ints]:
    goes, when, length, _ = quarters(random_bits(keys, EVENING, day))
    home = np.where(leave == NEVER, 780, back)  # in the afternoon, if they have been in so far
    again = np.maximum(home + 60 + below(when, 120), np.where(free, 960, 0))
    until = again + 45 + below(length, 120)
    out = np.where(free, with_probability(goes, 0.4), with_probability(goes, 0.25)) & (
        until + 45 <= bed
    )
    out &= (home < DAY) & (until < DAY - 5)
    return np.where(out, again, NEVER), np.where(out, until, NEVER)


# -- what goes on


def _moving(keys: UInt64s, at: DayTimes) -> Intervals:
    """Where somebody is surely on their feet: getting up, going, coming, going to bed."""
    q = [*quarters(random_bits(keys, DWELL, at.day)), *quarters(random_bits(keys, NIGHT, at.day))]
    in_bed = ~((at.leave <= at.end) & (at.back >= at.end))  # not where they are away then
    rises = ~((at.leave <= at.start) & (at.back > at.wake))
    walk = 130 + below(q[4], np.maximum(at.wake - at.start - 200, 1)) + at.start
    walks = rises & with_probability(q[5], 0.3)
    spans = [
        (walk, walk + 1 + below(q[6], 4), walks),
        (at.wake, at.wake + 5 + below(q[0], 15), rises),
        (at.leave - 3 - below(q[1], 9), at.leave, at.leaves),
        (at.back, at.back + 3 + below(q[2], 12), at.returns),
        (at.leave_again - 3 - below(q[7], 9), at.leave_again, at.goes_again),
        (at.back_again, at.back_again + 3 + below(q[2], 12), at.goes_again),
        (at.bed - 4 - below(q[3], 11), at.bed, in_bed),
    ]
    return _spans(spans)


def _door(keys: UInt64s, at: DayTimes) -> Intervals:
    """In pairs around every outing, and for callers."""
    dwell = quarters(random_bits(keys, DWELL, at.day + 1_000_000))
    long = [1 + with_probability(q, 0.3) for q in dwell]
    spans = [
        (at.leave - long[0], at.leave, at.leaves),
        (at.back, at.back + long[1], at.returns),
        (at.leave_again - long[2], at.leave_again, at.goes_again),
        (at.back_again, at.back_again + long[3], at.goes_again),
    ]
    for part, (first, last) in enumerate(CALLER_HOURS):
        comes, when, stay, _ = quarters(random_bits(keys, CALLERS, at.day * 3 + part))
        opens = at.start + first + below(when, last - first - 4)
        shuts = opens + 1 + below(stay, 3)
        there = with_probability(comes, 0.35) & (opens >= at.wake + 5) & (shuts <= at.bed - 5)
        there &= _apart(opens, shuts, at.leave, at.back)
        there &= _apart(opens, shuts, at.leave_again, at.back_again)
        spans.append((opens, shuts, there))
    return _spans(spans)


def _apart(opens: Ints, shuts: Ints, leave: Ints, back: Ints) -> Flags:
    out: Flags = (leave == NEVER) | (shuts < leave - 5) | (opens > back + 5)
    return out


def _window(keys: UInt64s, at: DayTimes) -> Intervals:
    """One airing on about every other day, while somebody is in; or over a short outing."""
    airs, when, length, kind = quarters(random_bits(keys, WINDOWS, at.day))
    out = at.leave != NEVER
    first = np.where(out, at.back + 10, at.wake + 20)
    opens = first + below(when, 120)
    until = np.minimum(at.leave_again, at.bed) - 5
    shuts = np.minimum(opens + 30 + below(length, 270), until)
    there = with_probability(airs, 0.5) & (shuts - opens >= 10) & ~(out & (at.back >= at.end))
    short = at.leaves & (at.back - at.leave <= SHORT_OUTING) & with_probability(kind, 0.5)
    opens = np.where(short, at.leave - 5 - below(when, 20), opens)
    shuts = np.where(short, at.back + 2, shuts)
    return _spans([(opens, shuts, there)])


def _spans(spans: list[tuple[Ints, Ints, Flags]]) -> Intervals:
    starts = np.stack([np.where(there, a, NEVER) for a, _, there in spans])
    ends = np.stack([np.where(there, b, NEVER) for _, b, there in spans])
    return Intervals(starts.astype(np.int32), ends.astype(np.int32))


def mode_at(times: DayTimes, bed_before: Ints, minute: int) -> Ints:
    """The alarm panel's mode: a place in schema.MODES. Whoever is away is not asleep."""
    away = (times.leave <= minute) & (minute < times.back)
    away |= (times.leave_again <= minute) & (minute < times.back_again)
    asleep = (bed_before <= minute) & (minute < times.wake) | (times.bed <= minute)
    out: Ints = np.where(away, np.int32(AWAY), np.where(asleep, ASLEEP, HOME).astype(np.int32))
    return out
