"""The daily routine of each home: when people wake, leave, return, air a room and go to bed.

A `DayPlan` is one day of many homes, in minutes since 1970. It depends on (seed, home, day) only.
Activities are intervals (a person moves, the door or the window is open), so that any minute can be
computed without the minutes before it:

    plan_day(keys, day) -> DayPlan -> DayCache (this day, the day before, the end of earlier ones)
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
HOME, AWAY, ASLEEP = 0, 1, 2  # indices in schema.MODES
NEVER: Final = np.int32(2**31 - 1)  # start and end of an interval that does not exist
LONG_AGO: Final = np.int32(-1)  # no earlier interval is known

# Purposes of random numbers.
LIFE, SLEEP, OUTING, EVENING, WINDOWS, DWELL, CALLERS, HOLIDAY, NIGHT = range(1, 10)

# Shares of the homes whose people work by day, or late; the others are mostly at home.
WORKS_BY_DAY, WORKS_LATE = 0.55, 0.10
HOLIDAYS = 2 / 52  # share of weeks, from Saturday to Friday
SHORT_OUTING = 80  # minutes; a window left open for it raises no alert
CALLER_HOURS: Final = ((420, 655), (660, 955), (960, 1255))  # post, parcel, neighbour


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals in which a sensor is active: axis 0 is the occasion, axis 1 the home."""

    starts: Ints
    ends: Ints

    def of(self, homes: Indices) -> Intervals:
        """The intervals of some homes, given by their indices in axis 1."""
        return Intervals(self.starts.take(homes, axis=1), self.ends.take(homes, axis=1))

    def and_then(self, later: Intervals) -> Intervals:
        """The intervals of both, for the same homes."""
        starts = np.concatenate((self.starts, later.starts))
        return Intervals(starts, np.concatenate((self.ends, later.ends)))

    def without(self, homes: Indices) -> Intervals:
        """These intervals, but none for some homes."""
        starts, ends = self.starts.copy(), self.ends.copy()
        starts[:, homes], ends[:, homes] = NEVER, NEVER
        return Intervals(starts, ends)

    def at(self, minute: int, before: Ints) -> tuple[Flags, Ints]:
        """Whether an interval contains the minute, and when that state began.

        `before` is the end of the last interval of earlier days.
        """
        begun = np.where(self.starts <= minute, self.starts, LONG_AGO).max(axis=0)
        ended = self.last_end(minute)
        # Intervals do not touch, so the later of the two times decides.
        active = begun > ended
        return active, np.where(active, begun, np.maximum(ended, before))

    def next_start(self, minute: int) -> Ints:
        """When the next interval starts; NEVER if none is planned."""
        out: Ints = np.where(self.starts > minute, self.starts, NEVER).min(axis=0)
        return out

    def last_end(self, minute: int) -> Ints:
        """When the last interval before a minute ended; LONG_AGO if there is none."""
        out: Ints = np.where(self.ends <= minute, self.ends, LONG_AGO).max(axis=0)
        return out


@dataclass(frozen=True, slots=True)
class DayTimes:
    """The times of one day of some homes, in minutes; NEVER where an event does not happen."""

    day: int
    wake: Ints
    bed: Ints  # may lie after midnight
    leave: Ints  # the long outing; the start of the day if people were away already
    back: Ints  # when people return from it; the end of the day if they stay away
    leave_again: Ints  # the second outing, in the evening
    back_again: Ints

    @property
    def start(self) -> int:
        return self.day * DAY

    @property
    def end(self) -> int:
        return self.start + DAY

    @property
    def leaves(self) -> Flags:
        """Whether people leave on this day."""
        out: Flags = (self.leave != NEVER) & (self.leave > self.start)
        return out

    @property
    def returns(self) -> Flags:
        """Whether people are back before the day ends."""
        out: Flags = self.back < self.end
        return out

    @property
    def goes_again(self) -> Flags:
        """Whether people leave a second time, in the evening."""
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
    """One day of some homes: its times and the intervals of each sensor, in minutes since 1970."""

    times: DayTimes
    moving: Intervals
    door: Intervals
    window: Intervals


@dataclass(frozen=True, slots=True)
class _Household:
    """The properties of a home that do not change from day to day."""

    by_day: Flags
    late: Flags
    wake: Ints  # on a working day, minute of the day
    bed: Ints

    @property
    def works(self) -> Flags:
        return self.by_day | self.late


def _household(keys: UInt64s) -> _Household:
    kind, wake, bed, _ = quarters(random_bits(keys, LIFE))
    by_day = with_probability(kind, WORKS_BY_DAY)
    late = ~by_day & with_probability(kind, WORKS_BY_DAY + WORKS_LATE)
    return _Household(
        by_day=by_day,
        late=late,
        wake=np.where(by_day, 345 + below(wake, 105), 420 + below(wake, 100)),
        bed=np.where(late, 1410 + below(bed, 60), 1310 + below(bed, 110)),
    )


def weekday(day: int) -> int:
    """0 is Monday; 1970 began on a Thursday."""
    return (day + 3) % 7


def plan_day(keys: UInt64s, day: int) -> DayPlan:
    """The plan of one day of each home, holidays included."""
    household = _household(keys)
    free = ~household.works if weekday(day) < 5 else np.ones(len(keys), np.bool_)
    wake, bed = _sleep(keys, day, household, free)
    leave, back = _outing(keys, day, household, free, wake)
    leave, back = _holiday(keys, day, leave, back)
    bed = np.maximum(bed, np.where(back < DAY, back + 70, 0))
    leave_again, back_again = _evening(keys, day, free, leave, back, bed)
    relative = DayTimes(day, wake, bed, leave, back, leave_again, back_again)
    times = relative.each(lambda time: _absolute(time, relative.start))
    return DayPlan(times, _moving(keys, times), _door(keys, times), _window(keys, times))


def _absolute(times: Ints, start: int) -> Ints:
    out: Ints = np.where(times == NEVER, NEVER, times + np.int32(start)).astype(np.int32)
    return out


def _sleep(keys: UInt64s, day: int, household: _Household, free: Flags) -> tuple[Ints, Ints]:
    wake, bed, *_ = quarters(random_bits(keys, SLEEP, day))
    stay_up = 60 if weekday(day) in (4, 5) else 0  # people go to bed later on Friday and Saturday
    rise = household.wake + below(wake, 31) - 15
    lie_in = np.where(free & household.works, 90, 0)
    return rise + lie_in, household.bed + below(bed, 31) - 15 + stay_up


def _outing(
    keys: UInt64s, day: int, household: _Household, free: Flags, wake: Ints
) -> tuple[Ints, Ints]:
    """The long outing: to work, or for a walk and shopping."""
    goes, when, length, _ = quarters(random_bits(keys, OUTING, day))
    work = np.where(household.late, 750 + below(when, 60), wake + 45 + below(when, 45))
    shift = np.where(household.late, 500 + below(length, 45), 480 + below(length, 120))
    walk = np.maximum(570 + below(when, 150), wake + 45)
    leave = np.where(free, walk, work)
    back = leave + np.where(free, 40 + below(length, 160), shift)
    stays = free & ~with_probability(goes, 0.7)
    return np.where(stays, NEVER, leave), np.where(stays, NEVER, back)


def _holiday(keys: UInt64s, day: int, leave: Ints, back: Ints) -> tuple[Ints, Ints]:
    """Replaces the outing in a week of holiday: from Saturday morning to Friday evening."""
    week, day_of_week = divmod(day - 2, 7)
    away, leaves, returns, _ = quarters(random_bits(keys, HOLIDAY, week))
    gone = with_probability(away, HOLIDAYS)
    leave = np.where(gone, 690 + below(leaves, 90) if day_of_week == 0 else 0, leave)
    back = np.where(gone, 960 + below(returns, 180) if day_of_week == 6 else DAY, back)
    return leave.astype(np.int32), back.astype(np.int32)


def _evening(
    keys: UInt64s, day: int, free: Flags, leave: Ints, back: Ints, bed: Ints
) -> tuple[Ints, Ints]:
    """The second outing, in the evening, if people are back early enough."""
    goes, when, length, _ = quarters(random_bits(keys, EVENING, day))
    home_from = np.where(leave == NEVER, 780, back)  # 13:00 if people stayed at home
    leave_again = np.maximum(home_from + 60 + below(when, 120), np.where(free, 960, 0))
    back_again = leave_again + 45 + below(length, 120)
    goes_out = np.where(free, with_probability(goes, 0.4), with_probability(goes, 0.25)) & (
        back_again + 45 <= bed
    )
    goes_out &= (home_from < DAY) & (back_again < DAY - 5)
    return np.where(goes_out, leave_again, NEVER), np.where(goes_out, back_again, NEVER)


# -- intervals of the sensors


def _moving(keys: UInt64s, at: DayTimes) -> Intervals:
    """When people certainly move: getting up, leaving, returning, going to bed."""
    q = [*quarters(random_bits(keys, DWELL, at.day)), *quarters(random_bits(keys, NIGHT, at.day))]
    in_bed = ~((at.leave <= at.end) & (at.back >= at.end))  # not if away overnight
    rises = ~((at.leave <= at.start) & (at.back > at.wake))
    night_walk = 130 + below(q[4], np.maximum(at.wake - at.start - 200, 1)) + at.start
    walks_at_night = rises & with_probability(q[5], 0.3)
    occasions = [
        (night_walk, night_walk + 1 + below(q[6], 4), walks_at_night),
        (at.wake, at.wake + 5 + below(q[0], 15), rises),
        (at.leave - 3 - below(q[1], 9), at.leave, at.leaves),
        (at.back, at.back + 3 + below(q[2], 12), at.returns),
        (at.leave_again - 3 - below(q[7], 9), at.leave_again, at.goes_again),
        (at.back_again, at.back_again + 3 + below(q[2], 12), at.goes_again),
        (at.bed - 4 - below(q[3], 11), at.bed, in_bed),
    ]
    return _intervals(occasions)


def _door(keys: UInt64s, at: DayTimes) -> Intervals:
    """The door opens twice around every outing, and for callers."""
    dwell = quarters(random_bits(keys, DWELL, at.day + 1_000_000))  # not the numbers of `_moving`
    minutes = [1 + with_probability(q, 0.3) for q in dwell]
    occasions = [
        (at.leave - minutes[0], at.leave, at.leaves),
        (at.back, at.back + minutes[1], at.returns),
        (at.leave_again - minutes[2], at.leave_again, at.goes_again),
        (at.back_again, at.back_again + minutes[3], at.goes_again),
    ]
    for part, (first, last) in enumerate(CALLER_HOURS):
        comes, when, stay, _ = quarters(random_bits(keys, CALLERS, at.day * 3 + part))
        opens = at.start + first + below(when, last - first - 4)
        shuts = opens + 1 + below(stay, 3)
        happens = with_probability(comes, 0.35) & (opens >= at.wake + 5) & (shuts <= at.bed - 5)
        happens &= _is_apart(opens, shuts, at.leave, at.back)
        happens &= _is_apart(opens, shuts, at.leave_again, at.back_again)
        occasions.append((opens, shuts, happens))
    return _intervals(occasions)


def _is_apart(opens: Ints, shuts: Ints, leave: Ints, back: Ints) -> Flags:
    """Whether an interval is more than five minutes before or after an outing."""
    out: Flags = (leave == NEVER) | (shuts < leave - 5) | (opens > back + 5)
    return out


def _window(keys: UInt64s, at: DayTimes) -> Intervals:
    """A window is open on about every other day: while people are in, or during a short outing."""
    airs, when, length, kind = quarters(random_bits(keys, WINDOWS, at.day))
    goes_out = at.leave != NEVER
    first = np.where(goes_out, at.back + 10, at.wake + 20)
    opens = first + below(when, 120)
    until = np.minimum(at.leave_again, at.bed) - 5
    shuts = np.minimum(opens + 30 + below(length, 270), until)
    happens = (
        with_probability(airs, 0.5) & (shuts - opens >= 10) & ~(goes_out & (at.back >= at.end))
    )
    short = at.leaves & (at.back - at.leave <= SHORT_OUTING) & with_probability(kind, 0.5)
    opens = np.where(short, at.leave - 5 - below(when, 20), opens)
    shuts = np.where(short, at.back + 2, shuts)
    return _intervals([(opens, shuts, happens)])


def _intervals(occasions: list[tuple[Ints, Ints, Flags]]) -> Intervals:
    """Intervals of (start, end, whether it happens), one row for each occasion."""
    starts = np.stack([np.where(happens, start, NEVER) for start, _, happens in occasions])
    ends = np.stack([np.where(happens, end, NEVER) for _, end, happens in occasions])
    return Intervals(starts.astype(np.int32), ends.astype(np.int32))


def mode_at(times: DayTimes, bed_before: Ints, minute: int) -> Ints:
    """The mode of the alarm panel, as an index in schema.MODES. AWAY has priority over ASLEEP."""
    away = (times.leave <= minute) & (minute < times.back)
    away |= (times.leave_again <= minute) & (minute < times.back_again)
    asleep = (bed_before <= minute) & (minute < times.wake) | (times.bed <= minute)
    out: Ints = np.where(away, np.int32(AWAY), np.where(asleep, ASLEEP, HOME).astype(np.int32))
    return out
