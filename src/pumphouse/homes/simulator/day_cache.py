"""The days of a town, planned once each and kept while they are needed.

plan_day, happen -> DayCache.day(d) -> Day: d, the day before it, and what came before both
                    ^^^^ this module
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from pumphouse.homes.simulator import incidents as inc
from pumphouse.homes.simulator.hashed_random import (
    Indices,
    Ints,
    UInt64s,
    below,
    quarters,
    random_bits,
    with_probability,
)
from pumphouse.homes.simulator.incidents import LAST_DAYS, IncidentColumns, Incidents
from pumphouse.homes.simulator.people import (
    DAY,
    LONG_AGO,
    NEVER,
    DayPlan,
    Intervals,
    mode_at,
    plan_day,
)
from pumphouse.homes.simulator.reading_faults import ReadingFaults, battery_of

KEPT = 4  # plans; a day needs that of the day before and the next one's waking times
LOOK_BACK_DAYS = 60  # longer than two holidays, and than anybody goes without opening a window
COOKING = 70  # a purpose of throws

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Day:
    """All there is to know to look a minute of the day up."""

    today: DayPlan
    bed_before: Ints
    moving: Intervals  # of yesterday and today
    door: Intervals
    window: Intervals
    moving_before: Ints  # the end of the last interval before these
    door_before: Ints
    window_before: Ints
    cooking: tuple[Ints, Ints, Ints]  # start, end, ppm at most
    battery: Ints  # homes x sensors
    happening: IncidentColumns  # of today and the days before that still show

    def mode(self, rows: Indices, minute: int) -> Ints:
        return mode_at(self.today.times.of(rows), self.bed_before[rows], minute)


class DayCache:
    """Plans on demand. Nothing here is needed for the answer: it only saves making it twice."""

    def __init__(
        self,
        keys: UInt64s,
        sensor_keys: UInt64s,
        incidents: Incidents,
        reading_faults: ReadingFaults,
    ) -> None:
        self.keys, self.sensor_keys = keys, sensor_keys
        self.incidents, self.reading_faults = incidents, reading_faults
        self._plans: OrderedDict[int, DayPlan] = OrderedDict()
        self._days: OrderedDict[int, Day] = OrderedDict()
        self._happenings: OrderedDict[int, IncidentColumns] = OrderedDict()

    def day(self, day: int) -> Day:
        return _kept(self._days, day, self._day, KEPT // 2)

    def plan(self, day: int) -> DayPlan:
        return _kept(self._plans, day, lambda day: plan_day(self.keys, day), KEPT)

    def happening(self, day: int) -> IncidentColumns:
        return _kept(self._happenings, day, self._happen, 2 * LAST_DAYS)

    def _happen(self, day: int) -> IncidentColumns:
        if not self.incidents:
            return inc.NOTHING
        before, today, after = (self.plan(one).times for one in (day - 1, day, day + 1))
        return inc.happen(self.keys, day, self.incidents, today, before.bed, after.wake)

    def lived(self, day: int) -> DayPlan:
        """The plan as it came: whoever forgets a window has not aired in the usual way that day."""
        plan, happening = self.plan(day), self.happening(day)
        rows = happening.row[happening.kind == inc.FORGOTTEN]
        return replace(plan, window=plan.window.without(rows)) if len(rows) else plan

    def _day(self, day: int) -> Day:
        yesterday, today = self.lived(day - 1), self.lived(day)
        return Day(
            today=today,
            bed_before=yesterday.times.bed,
            moving=yesterday.moving.and_then(today.moving),
            door=yesterday.door.and_then(today.door),
            window=yesterday.window.and_then(today.window),
            moving_before=self._before(day, lambda plan: plan.moving),
            door_before=self._before(day, lambda plan: plan.door),
            window_before=self._before(day, lambda plan: plan.window),
            cooking=_cooking(self.keys, day),
            battery=battery_of(self.sensor_keys.reshape(-1), day, self.reading_faults).reshape(
                self.sensor_keys.shape
            ),
            happening=inc.joined(
                [self.happening(day - back) for back in reversed(range(LAST_DAYS))]
            ),
        )

    def _before(self, day: int, spans: Callable[[DayPlan], Intervals]) -> Ints:
        """When the last interval ended before today, also where yesterday's plan has none."""
        start = day * DAY
        ends = spans(self.lived(day - 1)).last_end(start)
        left = np.flatnonzero(ends == LONG_AGO)
        for back in range(2, LOOK_BACK_DAYS + 1):
            if not len(left):
                break
            ends[left] = spans(plan_day(self.keys[left], day - back)).last_end(start)
            left = left[ends[left] == LONG_AGO]
        return ends


def _kept(store: OrderedDict[int, T], day: int, make: Callable[[int], T], most: int) -> T:
    if day not in store:
        made = make(day)
        while len(store) >= most:
            store.popitem(last=False)
        store[day] = made
    store.move_to_end(day)
    return store[day]


def _cooking(keys: UInt64s, day: int) -> tuple[Ints, Ints, Ints]:
    """Dinner: from when to when, and how much of it ends up in the air."""
    when, length, peak, cooks = quarters(random_bits(keys, COOKING, day))
    start = day * DAY + 1050 + below(when, 150)
    there = with_probability(cooks, 0.7)
    end = start + 10 + below(length, 20)
    return np.where(there, start, NEVER), np.where(there, end, LONG_AGO), 10 + below(peak, 35)
