"""All homes as they are now, their last day, and what was heard per minute: in numpy arrays.

    Columns -> HomeStates.absorb -> states, minutes, day   (a row per home, a column per sensor)
               ^^^^^^^^^^^^^^^^^ this module

100,000 homes take about 8 MB for now and, once a whole day has passed, 72 MB for the day: one
byte for each sensor and ten minutes. The newest reading counts, in whatever order they come, and
one that comes twice changes nothing but the count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pumphouse.dashboard.views.columns import Columns
from pumphouse.homes.schema import (
    ARMED,
    DAY_MS,
    HOMES_MAX,
    HOUR_MS,
    KINDS,
    LOW_BATTERY,
    MINUTE_MS,
    MODES,
    REGIONS,
    SENSORS,
    SILENT_MS,
    SMOKE_ALARM_PPM,
)

# States of a home, from what needs nobody to what needs somebody. The worst that is true counts.
UNHEARD, QUIET, ACTIVE, OPEN, TROUBLE, ALERT = range(6)
STATE_WORDS = ("not heard", "quiet", "active", "open", "trouble", "alert")
STATE_MEANINGS = (
    "nothing was heard from it for half an hour, or ever",
    "nobody moves, everything is shut",
    "somebody moves",
    "a door or a window is open",
    "a sensor has a fault or a low battery",
    "an alert within the last hour, or smoke or broken glass now",
)
# Levels of the day's strip, likewise.
NOTHING, CALM, STIR, FAULT, ALARM = range(5)
LEVEL_WORDS = ("nothing heard", "quiet", "active or open", "fault", "alarm")

SLOT_MS = 10 * MINUTE_MS
SLOTS = DAY_MS // SLOT_MS
MINUTES = DAY_MS // MINUTE_MS
ALERT_SHOWN_MS = HOUR_MS
CLOCKS_APART_MS = 5 * MINUTE_MS  # a reading from further ahead would stay the newest for too long

MOTION, DOOR, WINDOW, GLASS, SMOKE = range(len(SENSORS))
ARMED_MODES = [MODES.index(mode) for mode in ARMED]

Bytes = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SensorNow:
    """What one sensor of a home said last."""

    kind: str
    at: int
    since: int
    value: float | None  # None in a fault
    battery: int
    fault: str  # "" if it has none
    level: int


class HomeStates:
    """Every home that was heard of. Nothing here waits or looks at a clock."""

    def __init__(self, homes: int) -> None:
        self.size = 0
        self.at = np.zeros((0, len(KINDS)), np.int64)  # 0: never heard
        self.since = np.zeros((0, len(KINDS)), np.int64)
        self.value = np.zeros((0, len(KINDS)), np.float32)
        self.battery = np.zeros((0, len(KINDS)), np.uint8)
        self.fault = np.zeros((0, len(KINDS)), np.bool_)
        self.mode = np.zeros(0, np.uint8)
        self.heard = np.zeros(0, np.int64)  # the newest reading of the home
        self.alerted = np.zeros(0, np.int64)  # the newest alert
        self.day = np.zeros((SLOTS, 0, len(SENSORS)), np.uint8)
        self.day_slots = np.full(SLOTS, -1, np.int64)  # which ten minutes each row stands for
        self.minutes = np.zeros((MINUTES, len(KINDS)), np.int64)
        self.minute_numbers = np.full(MINUTES, -1, np.int64)
        self.fault_texts: dict[tuple[int, int], str] = {}
        self.absorbed = 0
        self.unreadable = 0
        self.grow(homes)

    def __repr__(self) -> str:
        return f"<HomeStates {self.known:,} of {self.size:,} homes | {self.absorbed:,} readings>"

    @property
    def known(self) -> int:
        """Homes of which something was heard."""
        return int(np.count_nonzero(self.heard))

    def grow(self, homes: int) -> None:
        more = homes - self.size
        for name in ("at", "since", "value", "battery", "fault"):
            setattr(self, name, np.pad(getattr(self, name), ((0, more), (0, 0))))
        for name in ("mode", "heard", "alerted"):
            setattr(self, name, np.pad(getattr(self, name), (0, more)))
        # Not np.pad: zeros that nobody has written to take no memory.
        day = np.zeros((SLOTS, homes, len(SENSORS)), np.uint8)
        if self.size:
            day[:, : self.size] = self.day
        self.day, self.size = day, homes

    def room_for(self, home: int) -> None:
        if home >= self.size:
            self.grow(min(HOMES_MAX, max(home + 1, 2 * self.size)))

    # -- taking in --------------------------------------------------------------------------------

    def absorb(self, found: Columns, now_ms: int) -> None:
        """Take in readings, in any order."""
        self.unreadable += found.bad
        rows = np.flatnonzero((found.at <= now_ms + CLOCKS_APART_MS) & (found.at > 0))
        if not len(rows):
            return
        self.absorbed += len(rows)
        self.room_for(int(found.home[rows].max()))
        self.count(found, rows)
        self.mark_day(found, rows)
        self.set_now(found, rows[np.argsort(found.at[rows], kind="stable")])

    def set_now(self, found: Columns, rows: Whole) -> None:
        """What each sensor said last. Rows are sorted by time: of one sensor's the last counts."""
        newer = found.at[rows] >= self.at[found.home[rows], found.kind[rows]]
        rows = rows[newer]
        home, kind = found.home[rows], found.kind[rows]
        newest = found.at[rows] >= self.heard[home]
        self.mode[home[newest]] = found.mode[rows][newest]
        self.at[home, kind] = found.at[rows]
        self.since[home, kind] = found.since[rows]
        self.value[home, kind] = found.value[rows]
        self.battery[home, kind] = np.clip(found.battery[rows], 0, 100)
        self.fault[home, kind] = np.isnan(found.value[rows])
        np.maximum.at(self.heard, home, found.at[rows])
        for row in rows[np.isnan(found.value[rows])]:
            place = (int(found.home[row]), int(found.kind[row]))
            self.fault_texts[place] = found.faults.get(int(row), "fault")

    def count(self, found: Columns, rows: Whole) -> None:
        minutes = found.at[rows] // MINUTE_MS
        place = minutes % MINUTES
        fresh(self.minutes, self.minute_numbers, minutes)
        there = self.minute_numbers[place] == minutes
        np.add.at(self.minutes, (place[there], found.kind[rows][there]), 1)

    def mark_day(self, found: Columns, rows: Whole) -> None:
        rows = rows[found.kind[rows] < len(SENSORS)]
        slots = found.at[rows] // SLOT_MS
        place = slots % SLOTS
        fresh(self.day, self.day_slots, slots)
        there = self.day_slots[place] == slots
        rows, place = rows[there], place[there]
        cells = (place, found.home[rows], found.kind[rows])
        np.maximum.at(self.day, cells, levels(found, rows))

    def alert(self, home: int, at: int) -> None:
        self.room_for(home)
        self.alerted[home] = max(int(self.alerted[home]), at)

    # -- telling ----------------------------------------------------------------------------------

    def states(self, now_ms: int) -> Bytes:
        """One byte per home: the worst that is true of it."""
        value = np.nan_to_num(self.value)
        heard = self.heard > now_ms - SILENT_MS
        found = np.where(heard, QUIET, UNHEARD).astype(np.uint8)
        found[heard & (value[:, MOTION] > 0)] = ACTIVE
        found[heard & ((value[:, DOOR] > 0) | (value[:, WINDOW] > 0))] = OPEN
        low = (self.battery <= LOW_BATTERY) & (self.at > 0)
        found[heard & (self.fault.any(axis=1) | low.any(axis=1))] = TROUBLE
        now = heard & ((value[:, GLASS] > 0) | (value[:, SMOKE] >= SMOKE_ALARM_PPM))
        found[now | (self.alerted > now_ms - ALERT_SHOWN_MS)] = ALERT
        return found

    def sensors(self, home: int) -> list[SensorNow]:
        """What the sensors of a home said last: those it was heard of."""
        return [
            self.sensor(home, kind, name)
            for kind, name in enumerate(KINDS)
            if self.at[home, kind] > 0
        ]

    def sensor(self, home: int, kind: int, name: str) -> SensorNow:
        broken = bool(self.fault[home, kind])
        value = None if broken else round(float(self.value[home, kind]), 2)
        return SensorNow(
            kind=name,
            at=int(self.at[home, kind]),
            since=int(self.since[home, kind]),
            value=value,
            battery=int(self.battery[home, kind]),
            fault=self.fault_texts.get((home, kind), "fault") if broken else "",
            level=level(kind, value, int(self.mode[home])),
        )

    def strip(self, home: int, now_ms: int) -> dict[str, str]:
        """The last day of each sensor, ten minutes to a digit (a level), the oldest first."""
        slots = now_ms // SLOT_MS - np.arange(SLOTS - 1, -1, -1)
        place = slots % SLOTS
        there = self.day_slots[place] == slots
        rows = np.where(there[:, None], self.day[place, home], NOTHING)
        return {
            name: "".join(map(str, rows[:, kind].tolist())) for kind, name in enumerate(SENSORS)
        }

    def per_minute(self, now_ms: int, minutes: int) -> list[list[int]]:
        """For each of the last minutes: when it began, and the readings of each kind."""
        last = now_ms // MINUTE_MS
        numbers = np.arange(last - min(minutes, MINUTES) + 1, last + 1)
        place = numbers % MINUTES
        there = self.minute_numbers[place] == numbers
        counts = np.where(there[:, None], self.minutes[place], 0)
        starts = numbers * MINUTE_MS
        return [[start, *row] for start, row in zip(starts.tolist(), counts.tolist(), strict=True)]


def fresh(ring: npt.NDArray[np.generic], numbers: Whole, wanted: Whole) -> None:
    """Make room in a ring for numbers that are newer than what stands in their place."""
    for number in np.unique(wanted).tolist():
        place = number % len(numbers)
        if numbers[place] < number:
            ring[place] = 0
            numbers[place] = number


def levels(found: Columns, rows: Whole) -> Bytes:
    """How each of these readings shows in the strip."""
    kind, value = found.kind[rows], np.nan_to_num(found.value[rows])
    answer = np.full(len(rows), CALM, np.uint8)
    answer[(value > 0) & (kind != SMOKE)] = STIR
    armed = np.isin(found.mode[rows], ARMED_MODES)
    alarm = ((kind == GLASS) & (value > 0)) | ((kind == DOOR) & (value > 0) & armed)
    answer[alarm | ((kind == SMOKE) & (value >= SMOKE_ALARM_PPM))] = ALARM
    answer[np.isnan(found.value[rows])] = FAULT
    return answer


def level(kind: int, value: float | None, mode: int) -> int:
    """The same for one reading."""
    if value is None:
        return FAULT
    row = np.zeros(1, np.int64)
    one = Columns(row, row + kind, row, row, np.array([value]), row + mode, row, {})
    return int(levels(one, row)[0]) if kind < len(SENSORS) else CALM


def regions_of(states: Bytes) -> list[list[int]]:
    """How many homes of each region are in each state; the table beside the picture."""
    region = np.arange(len(states)) % len(REGIONS)
    cells = np.bincount(region * len(STATE_WORDS) + states, minlength=len(REGIONS) * 6)
    return [[int(count) for count in row] for row in cells.reshape(len(REGIONS), -1)]
