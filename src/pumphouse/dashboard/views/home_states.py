"""The current state of all homes, their last day and the activities per minute, in numpy arrays.

    Columns -> HomeStates.add -> states, minutes, day   (a row per home, a column per sensor)
               ^^^^^^^^^^^^^^ this module

100,000 homes take about 8 MB for the current state and, after a full day, 72 MB for the day: one
byte per sensor and ten minutes. The newest reading counts, in any order of arrival. A duplicate
changes nothing but the count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pumphouse.dashboard.views.columns import Columns
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Change, Kind, Kinds
from pumphouse.homes.schema import (
    ARMED,
    DAY_MS,
    HOMES_MAX,
    LOW_BATTERY,
    MINUTE_MS,
    MODES,
    REGIONS,
    SILENT_MS,
)

# States of a home by rising severity. The most severe one that applies is shown.
NO_DATA, QUIET, ACTIVE, OPEN, TROUBLE, ALARM_NOW, ALERT = range(7)
STATE_WORDS = ("no data", "quiet", "active", "open", "trouble", "alarm", "alert")
STATE_MEANINGS = (
    "no reading in the last two minutes, and no activity in the last half hour",
    "no movement, doors and windows shut",
    "movement",
    "a door or a window is open",
    "a sensor has a fault or a low battery",
    "smoke, broken glass or another alarm now, without an open alert",
    "at least one open alert",
)
# Levels of the strip of the last day, by rising severity.
NOTHING, INACTIVE, ACTIVITY, FAULT, ALARM = range(5)
LEVEL_WORDS = ("no data", "quiet", "active or open", "fault", "alarm")

SLOT_MS = 10 * MINUTE_MS
SLOTS = DAY_MS // SLOT_MS
MINUTES = DAY_MS // MINUTE_MS
CLOCKS_APART_MS = 5 * MINUTE_MS  # a reading from further in the future is ignored

MOTION, DOOR, WINDOW = (DEFAULT.index_of[name] for name in ("motion", "door", "window"))
ARMED_MODES = [MODES.index(mode) for mode in ARMED]

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SensorNow:
    """The last reading of one sensor. Times are in ms."""

    kind: str
    at: int
    since: int
    value: float | None  # None for a sensor fault
    battery: int
    fault: str  # "" without a fault
    level: int


class HomeStates:
    """The state of all homes. Callers pass the current time."""

    def __init__(self, homes: int, kinds: Kinds = DEFAULT) -> None:
        self.kinds, self.strips = kinds, strips_of(kinds)
        # The column of each kind in the strip of the day; -1 for none.
        self.strip_of = np.full(len(kinds.names), -1)
        self.strip_of[self.strips] = np.arange(len(self.strips))
        self.size = 0
        self.at = np.zeros((0, len(kinds.names)), np.int64)  # 0: no reading yet
        self.since = np.zeros((0, len(kinds.names)), np.int64)
        self.value = np.zeros((0, len(kinds.names)), np.float32)
        self.battery = np.zeros((0, len(kinds.names)), np.uint8)
        self.fault = np.zeros((0, len(kinds.names)), np.bool_)
        self.mode = np.zeros(0, np.uint8)
        self.last_reading = np.zeros(0, np.int64)  # time of the newest reading of the home
        self.open_alerts = np.zeros(0, np.int64)
        self.day = np.zeros((SLOTS, 0, len(self.strips)), np.uint8)
        self.day_slots = np.full(SLOTS, -1, np.int64)  # slot number since 1970 of each row
        self.minutes = np.zeros((MINUTES, len(kinds.names)), np.int64)
        self.minute_numbers = np.full(MINUTES, -1, np.int64)
        self.fault_texts: dict[tuple[int, int], str] = {}
        self.absorbed = 0
        self.unreadable = 0
        self.grow(homes)

    def __repr__(self) -> str:
        return f"<HomeStates {self.known:,} of {self.size:,} homes | {self.absorbed:,} activities>"

    @property
    def known(self) -> int:
        """The number of homes with at least one activity."""
        return int(np.count_nonzero(self.last_reading))

    def grow(self, homes: int) -> None:
        added_homes = homes - self.size
        for name in ("at", "since", "value", "battery", "fault"):
            setattr(self, name, np.pad(getattr(self, name), ((0, added_homes), (0, 0))))
        for name in ("mode", "last_reading", "open_alerts"):
            setattr(self, name, np.pad(getattr(self, name), (0, added_homes)))
        # Not np.pad: np.zeros allocates memory only where it is written.
        day = np.zeros((SLOTS, homes, len(self.strips)), np.uint8)
        if self.size:
            day[:, : self.size] = self.day
        self.day, self.size = day, homes

    def grow_for(self, home: int) -> None:
        if home >= self.size:
            self.grow(min(HOMES_MAX, max(home + 1, 2 * self.size)))

    # -- adding readings --------------------------------------------------------------------------

    def add(self, columns: Columns, now_ms: int) -> None:
        """Add readings in any order."""
        self.unreadable += columns.invalid
        rows = np.flatnonzero((columns.at <= now_ms + CLOCKS_APART_MS) & (columns.at > 0))
        if not len(rows):
            return
        self.absorbed += len(rows)
        self.grow_for(int(columns.home[rows].max()))
        self.count_per_minute(columns, rows)
        self.mark_day(columns, rows)
        self.set_now(columns, rows[np.argsort(columns.at[rows], kind="stable")])

    def set_now(self, columns: Columns, rows: Ints) -> None:
        """Set the current values. Rows are sorted by time: the last one of a sensor counts."""
        newer = columns.at[rows] >= self.at[columns.home[rows], columns.kind[rows]]
        rows = rows[newer]
        home, kind = columns.home[rows], columns.kind[rows]
        newest = columns.at[rows] >= self.last_reading[home]
        self.mode[home[newest]] = columns.mode[rows][newest]
        self.at[home, kind] = columns.at[rows]
        self.since[home, kind] = columns.since[rows]
        self.value[home, kind] = columns.value[rows]
        self.battery[home, kind] = np.clip(columns.battery[rows], 0, 100)
        self.fault[home, kind] = np.isnan(columns.value[rows])
        np.maximum.at(self.last_reading, home, columns.at[rows])
        for row in rows[np.isnan(columns.value[rows])]:
            key = (int(columns.home[row]), int(columns.kind[row]))
            self.fault_texts[key] = columns.faults.get(int(row), "fault")

    def count_per_minute(self, columns: Columns, rows: Ints) -> None:
        minutes = columns.at[rows] // MINUTE_MS
        slot = minutes % MINUTES
        clear_old_slots(self.minutes, self.minute_numbers, minutes)
        current = self.minute_numbers[slot] == minutes
        np.add.at(self.minutes, (slot[current], columns.kind[rows][current]), 1)

    def mark_day(self, columns: Columns, rows: Ints) -> None:
        rows = rows[self.strip_of[columns.kind[rows]] >= 0]
        slot_numbers = columns.at[rows] // SLOT_MS
        slot = slot_numbers % SLOTS
        clear_old_slots(self.day, self.day_slots, slot_numbers)
        current = self.day_slots[slot] == slot_numbers
        rows, slot = rows[current], slot[current]
        cells = (slot, columns.home[rows], self.strip_of[columns.kind[rows]])
        np.maximum.at(self.day, cells, levels(columns, rows, self.kinds))

    def set_open_alerts(self, home: int, count: int) -> None:
        self.grow_for(home)
        self.open_alerts[home] = count

    # -- reading the state ------------------------------------------------------------------------

    def states(self, now_ms: int, heard: npt.NDArray[np.bool_] | None = None) -> Bytes:
        """One byte per home: its most severe state.

        A home that was `heard` and has no activity is quiet: sift drops only quiet readings.
        """
        value = np.nan_to_num(self.value)
        is_reporting = self.last_reading > now_ms - SILENT_MS
        has_data = is_reporting if heard is None else is_reporting | heard
        states = np.where(has_data, QUIET, NO_DATA).astype(np.uint8)
        states[is_reporting & (self.is_active(value) | (value[:, MOTION] > 0))] = ACTIVE
        states[is_reporting & ((value[:, DOOR] > 0) | (value[:, WINDOW] > 0))] = OPEN
        low_battery = (self.battery <= LOW_BATTERY) & (self.at > 0)
        states[is_reporting & (self.fault.any(axis=1) | low_battery.any(axis=1))] = TROUBLE
        states[is_reporting & self.has_alarm(value)] = ALARM_NOW
        states[self.open_alerts > 0] = ALERT
        return states

    def is_active(self, value: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Homes in which a sensor of an added kind is not quiet."""
        active = np.zeros(len(value), np.bool_)
        for index, kind in list(enumerate(self.kinds.kinds))[len(DEFAULT.kinds) :]:
            active |= self.is_known(index) & ~kind.quiet.contains(value[:, index])
        return active

    def has_alarm(self, value: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
        """Homes in which the value of a sensor is an alarm in any mode."""
        alarm = np.zeros(len(value), np.bool_)
        for index, kind in enumerate(self.kinds.kinds):
            for values in kind.alarms():
                alarm |= self.is_known(index) & values.contains(value[:, index])
        return alarm

    def is_known(self, kind: int) -> npt.NDArray[np.bool_]:
        """Homes whose sensor of a kind has sent a value."""
        known: npt.NDArray[np.bool_] = (self.at[:, kind] > 0) & ~self.fault[:, kind]
        return known

    def sensors(self, home: int) -> list[SensorNow]:
        """The last readings of the sensors of a home."""
        return [
            self.sensor(home, kind, name)
            for kind, name in enumerate(self.kinds.names)
            if self.at[home, kind] > 0
        ]

    def sensor(self, home: int, kind: int, name: str) -> SensorNow:
        has_fault = bool(self.fault[home, kind])
        value = None if has_fault else round(float(self.value[home, kind]), 2)
        return SensorNow(
            kind=name,
            at=int(self.at[home, kind]),
            since=int(self.since[home, kind]),
            value=value,
            battery=int(self.battery[home, kind]),
            fault=self.fault_texts.get((home, kind), "fault") if has_fault else "",
            level=level(kind, value, int(self.mode[home]), self.kinds),
        )

    def strip(self, home: int, now_ms: int) -> dict[str, str]:
        """The last day of each sensor: one digit (a level) per ten minutes, oldest first."""
        slot_numbers = now_ms // SLOT_MS - np.arange(SLOTS - 1, -1, -1)
        slot = slot_numbers % SLOTS
        current = self.day_slots[slot] == slot_numbers
        rows = np.where(current[:, None], self.day[slot, home], NOTHING)
        return {
            self.kinds.names[kind]: "".join(map(str, rows[:, strip].tolist()))
            for strip, kind in enumerate(self.strips)
        }

    def per_minute(self, now_ms: int, minutes: int) -> list[list[int]]:
        """For each of the last minutes: its start, and the number of activities of each kind."""
        last = now_ms // MINUTE_MS
        numbers = np.arange(last - min(minutes, MINUTES) + 1, last + 1)
        slot = numbers % MINUTES
        current = self.minute_numbers[slot] == numbers
        counts = np.where(current[:, None], self.minutes[slot], 0)
        starts = numbers * MINUTE_MS
        return [[start, *row] for start, row in zip(starts.tolist(), counts.tolist(), strict=True)]


def clear_old_slots(ring: npt.NDArray[np.generic], numbers: Ints, new_numbers: Ints) -> None:
    """Clear the slots of a ring buffer that newer slot numbers reuse, and update `numbers`."""
    for number in np.unique(new_numbers).tolist():
        slot = number % len(numbers)
        if numbers[slot] < number:
            ring[slot] = 0
            numbers[slot] = number


def strips_of(kinds: Kinds) -> list[int]:
    """The kinds whose last day is shown: those that can be active."""
    return [index for index, kind in enumerate(kinds.kinds) if not kind.quiet.is_always]


def levels(columns: Columns, rows: Ints, kinds: Kinds = DEFAULT) -> Bytes:
    """The level of each of these readings in the strip."""
    kind, value = columns.kind[rows], np.nan_to_num(columns.value[rows])
    armed = np.isin(columns.mode[rows], ARMED_MODES)
    levels_of_rows = np.full(len(rows), INACTIVE, np.uint8)
    for index in strips_of(kinds):
        own, of = np.flatnonzero(kind == index), kinds.kinds[index]
        levels_of_rows[own[~of.quiet.contains(value[own])]] = ACTIVITY
        levels_of_rows[own[is_alarm(of, value[own], armed[own])]] = ALARM
    levels_of_rows[np.isnan(columns.value[rows])] = FAULT
    return levels_of_rows


def is_alarm(
    kind: Kind, value: npt.NDArray[np.float64], armed: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """Which values are an alarm; of some kinds only while the alarm is armed."""
    alarm = np.zeros(len(value), np.bool_)
    for values in kind.alarms():
        alarm |= values.contains(value)
    for rule in kind.rules:
        if isinstance(rule, Change):
            alarm |= rule.values.contains(value) & (armed | (not rule.armed))
    return alarm


def level(kind: int, value: float | None, mode: int, kinds: Kinds = DEFAULT) -> int:
    """The level of one reading."""
    if value is None:
        return FAULT
    row = np.zeros(1, np.int64)
    reading = Columns(row, row + kind, row, row, np.array([value]), row + mode, row, {}, row)
    return int(levels(reading, row, kinds)[0])


def regions_of(states: Bytes) -> list[list[int]]:
    """The number of homes by region and state."""
    region = np.arange(len(states)) % len(REGIONS)
    cells = np.bincount(
        region * len(STATE_WORDS) + states, minlength=len(REGIONS) * len(STATE_WORDS)
    )
    return [[int(count) for count in row] for row in cells.reshape(len(REGIONS), -1)]
