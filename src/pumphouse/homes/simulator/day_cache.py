"""Caches the plan of each simulated day while it is in use.

plan_day, plan_incidents -> DayCache.day(d) -> Day: d and the day before it
                            ^^^^^^^^ this module
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
from pumphouse.homes.simulator.incidents import VISIBLE_DAYS, IncidentColumns, Incidents
from pumphouse.homes.simulator.people import (
    DAY,
    LONG_AGO,
    NEVER,
    DayPlan,
    Intervals,
    mode_at,
    plan_day,
)
from pumphouse.homes.simulator.reading_faults import ReadingFaults, battery_levels

PLANS_MAX = 4  # a day needs the plan of the day before and the waking times of the next
LOOK_BACK_DAYS = 60  # longer than two holidays, and than the longest time between two airings
COOKING = 70  # a purpose of random numbers

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Day:
    """Everything needed to compute a minute of one day."""

    today: DayPlan
    bed_before: Ints  # the bedtime of yesterday
    moving: Intervals  # of yesterday and today
    door: Intervals
    window: Intervals
    moving_before: Ints  # the end of the last interval that ended before today
    door_before: Ints
    window_before: Ints
    cooking: tuple[Ints, Ints, Ints]  # start, end, highest ppm
    battery: Ints  # homes x sensors
    incidents: IncidentColumns  # of today, and of earlier days while they show in readings

    def mode(self, rows: Indices, minute: int) -> Ints:
        return mode_at(self.today.times.of(rows), self.bed_before[rows], minute)


class DayCache:
    """Plans of days, computed on demand and kept for the next minutes of the same day."""

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
        self._incidents: OrderedDict[int, IncidentColumns] = OrderedDict()

    def day(self, day: int) -> Day:
        return _cached(self._days, day, self._make_day, PLANS_MAX // 2)

    def plan(self, day: int) -> DayPlan:
        return _cached(self._plans, day, lambda day: plan_day(self.keys, day), PLANS_MAX)

    def incidents_of(self, day: int) -> IncidentColumns:
        return _cached(self._incidents, day, self._plan_incidents, 2 * VISIBLE_DAYS)

    def _plan_incidents(self, day: int) -> IncidentColumns:
        if not self.incidents:
            return inc.NO_INCIDENTS
        before, today, after = (self.plan(number).times for number in (day - 1, day, day + 1))
        return inc.plan_incidents(self.keys, day, self.incidents, today, before.bed, after.wake)

    def actual_plan(self, day: int) -> DayPlan:
        """The plan with the day's incidents: a forgotten window replaces the usual airing."""
        plan, incidents = self.plan(day), self.incidents_of(day)
        rows = incidents.row[incidents.kind == inc.FORGOTTEN_WINDOW]
        return replace(plan, window=plan.window.without(rows)) if len(rows) else plan

    def _make_day(self, day: int) -> Day:
        yesterday, today = self.actual_plan(day - 1), self.actual_plan(day)
        return Day(
            today=today,
            bed_before=yesterday.times.bed,
            moving=yesterday.moving.and_then(today.moving),
            door=yesterday.door.and_then(today.door),
            window=yesterday.window.and_then(today.window),
            moving_before=self._last_end_before(day, lambda plan: plan.moving),
            door_before=self._last_end_before(day, lambda plan: plan.door),
            window_before=self._last_end_before(day, lambda plan: plan.window),
            cooking=_cooking(self.keys, day),
            battery=battery_levels(self.sensor_keys.reshape(-1), day, self.reading_faults).reshape(
                self.sensor_keys.shape
            ),
            incidents=inc.concatenated(
                [self.incidents_of(day - days_ago) for days_ago in reversed(range(VISIBLE_DAYS))]
            ),
        )

    def _last_end_before(self, day: int, intervals: Callable[[DayPlan], Intervals]) -> Ints:
        """When the last interval before today ended. If yesterday has none, earlier days count."""
        start = day * DAY
        ends = intervals(self.actual_plan(day - 1)).last_end(start)
        unknown = np.flatnonzero(ends == LONG_AGO)
        for days_ago in range(2, LOOK_BACK_DAYS + 1):
            if not len(unknown):
                break
            ends[unknown] = intervals(plan_day(self.keys[unknown], day - days_ago)).last_end(start)
            unknown = unknown[ends[unknown] == LONG_AGO]
        return ends


def _cached(cache: OrderedDict[int, T], day: int, make: Callable[[int], T], size_max: int) -> T:
    """The value of a day, made if it is not cached; a full cache evicts the least recently used."""
    if day not in cache:
        made = make(day)
        while len(cache) >= size_max:
            cache.popitem(last=False)
        cache[day] = made
    cache.move_to_end(day)
    return cache[day]


def _cooking(keys: UInt64s, day: int) -> tuple[Ints, Ints, Ints]:
    """Start and end of cooking dinner, and the highest ppm of smoke from it."""
    when, length, peak, cooks = quarters(random_bits(keys, COOKING, day))
    start = day * DAY + 1050 + below(when, 150)
    cooking = with_probability(cooks, 0.7)
    end = start + 10 + below(length, 20)
    return np.where(cooking, start, NEVER), np.where(cooking, end, LONG_AGO), 10 + below(peak, 35)
