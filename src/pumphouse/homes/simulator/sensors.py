"""The home simulator: five readings per home and minute or more, for any minute.

    HomeSimulator(homes, seed, incidents, reading_faults)
        plan_day -> values of a minute -> incidents -> reading faults -> pack_records -> Batch
                    ^^^^^^^^^^^^^^^^^^ this module, a minute of many homes at a time

Every reading is computed from (seed, home, minute). No minute needs those before it, so several
senders can share the same homes, and a batch job can recompute what a stream has processed. Cached
days only save planning a day again for each of its minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from warnings import warn

import numpy as np

from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.homes import schema
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.simulator import incidents as inc
from pumphouse.homes.simulator.added_sensors import AddedSensors, incidents_of, set_values
from pumphouse.homes.simulator.day_cache import Day, DayCache
from pumphouse.homes.simulator.hashed_random import (
    Flags,
    Ints,
    Longs,
    UInt64s,
    below,
    home_keys,
    mix_array,
    quarters,
    random_bits,
    random_bits_at,
)
from pumphouse.homes.simulator.incident_values import apply_incidents
from pumphouse.homes.simulator.incidents import Incident, IncidentColumns, Incidents
from pumphouse.homes.simulator.people import DAY, HOME, LONG_AGO
from pumphouse.homes.simulator.reading_faults import (
    ReadingFaults,
    fault_numbers,
    is_duplicated,
    is_malformed,
    late_by,
)
from pumphouse.homes.simulator.record_encoding import (
    ALARM,
    DUPLICATE,
    LATE,
    MALFORMED,
    PackedRecords,
    ReadingColumns,
    concatenated,
    pack_records,
)

# Purposes of random numbers.
OFFSET, INSTALLED, BLOCK, COUNT, AIR, JITTER = range(60, 66)

FIRST_MINUTE: Final = 28_927_680  # the start of 2025; all sensors were installed in 2024
LAST_MINUTE: Final = 99_999_999  # a record has eight digits for `seq`, which is the minute
INSTALLED_MS: Final = 1_704_067_200_000  # the start of 2024
BLOCK_MINUTES = 15  # people at home move at most once in a block of minutes
# The probability of movement in a block, by hour of the day, while people are in and awake.
_MORNING = (0.4, 0.4, 0.3, 0.3, 0.5, 0.7, 0.8, 0.85, 0.8, 0.6, 0.55, 0.6)
_EVENING = (0.7, 0.65, 0.5, 0.5, 0.55, 0.7, 0.85, 0.85, 0.8, 0.7, 0.6, 0.5)
MOVEMENT: Final = np.array((*_MORNING, *_EVENING))
# The highest number of movements per minute, in a quiet, an average and a lively block.
COUNTS: Final = np.array([3, 6, 12], np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings with their encoded records, in the order in which they are sent."""

    columns: ReadingColumns
    packed: PackedRecords

    def __len__(self) -> int:
        return len(self.columns)

    def bodies(self) -> Iterator[bytes]:
        return map(self.packed.body, range(len(self)))

    def events(self) -> Iterator[Event]:
        """The readings as events, for any sender; a batch sender takes `packed` at lower cost."""
        for i, home in enumerate(self.columns.home.tolist()):
            yield Event(self.packed.body(i), partition_key=f"h{home:06d}")


class HomeSimulator:
    """Simulated homes; their lives, incidents and reading faults all depend on the seed."""

    def __init__(
        self,
        homes: int = 100_000,
        seed: int = 1,
        incidents: Incidents | None = None,
        reading_faults: ReadingFaults | None = None,
        kinds: Kinds = DEFAULT,
    ) -> None:
        if not 1 <= homes <= schema.HOMES_MAX:
            raise OptionError(f"invalid number of homes {homes:,}: use 1 to {schema.HOMES_MAX:,}")
        self.homes = homes
        self.seed = seed
        self.incidents = incidents or Incidents()
        self.reading_faults = reading_faults or ReadingFaults()
        self.added = AddedSensors.of(kinds)
        self.sensors = schema.SENSORS + self.added.names  # of each home
        self.numbers: Ints = np.arange(homes, dtype=np.int32)
        keys = home_keys(seed, self.numbers)
        # The time in the minute at which each home sends, in milliseconds.
        self.offsets: Ints = _send_offsets(keys)
        # The arrays below have a row for each home, in the order of these times: homes of one slice
        # are then adjacent in memory. `_homes` maps rows to homes, `_rows` maps homes to rows.
        self._homes: Ints = np.argsort(self.offsets, kind="stable").astype(np.int32)
        self._rows: Ints = np.argsort(self._homes).astype(np.int32)
        self._keys: UInt64s = keys[self._homes]
        self._sensor_keys: UInt64s = _sensor_keys(self._keys, len(self.sensors))
        self._offsets: Longs = self.offsets[self._homes].astype(np.int64)
        installed, *_ = quarters(random_bits(self._keys, INSTALLED))
        self._installed: Longs = INSTALLED_MS + below(installed, 365) * np.int64(schema.DAY_MS)
        self._days = DayCache(self._keys, self._sensor_keys, self.incidents, self.reading_faults)

    def __repr__(self) -> str:
        return f"<HomeSimulator {self.homes} homes, seed {self.seed}>"

    # -- readings as they arrive ------------------------------------------------------------------

    def minute(self, minute: int, homes: Ints | None = None) -> Batch:
        """The readings that arrive in a minute, in the order of `homes` (by default all homes).

        A late reading is part of the minute in which it arrives, not of the minute it was measured.
        """
        columns = self.arriving(minute, homes)
        return Batch(columns, pack_records(columns, self.sensors))

    def arriving(self, minute: int, homes: Ints | None = None) -> ReadingColumns:
        """The readings that `minute` returns, without the encoded records."""
        requested = self.numbers if homes is None else homes
        columns = self.readings(minute, requested)
        if self.reading_faults.late:
            columns = self._with_delays(columns, requested, minute)
        if self.reading_faults.malformed or self.reading_faults.duplicates:
            columns = self._with_malformed_and_duplicates(columns)
        return columns

    def due(self, first_s: int, last_s: int) -> Ints:
        """The homes that send within these seconds of the minute, the last one excluded."""
        is_due = (self.offsets >= first_s * 1000) & (self.offsets < last_s * 1000)
        return self.numbers[is_due]

    # -- readings as measured ---------------------------------------------------------------------

    def readings(self, minute: int, homes: Ints | None = None) -> ReadingColumns:
        """The measurements of some homes in a minute, without those of silent sensors."""
        _check_minute(minute)
        rows = self._rows if homes is None else self._rows[homes]
        day = self._days.day(minute // DAY)
        mode = day.mode(rows, minute)
        value = np.zeros((len(rows), len(self.sensors)), np.int32)
        since = np.full_like(value, LONG_AGO)
        self._set_motion(day, rows, minute, mode, value, since)
        for sensor, intervals, before in (
            (inc.DOOR, day.door, day.door_before),
            (inc.WINDOW, day.window, day.window_before),
        ):
            value[:, sensor], since[:, sensor] = intervals.of(rows).at(minute, before[rows])
        value[:, inc.SMOKE] = self._smoke(day, rows, minute, mode)
        if self.added.kinds:
            keys = self._sensor_keys[rows]
            set_values(self.added, keys, minute, bool(self.incidents), value, since)
        silent = apply_incidents(day.incidents, rows, minute, value, since)
        columns = self._columns(day, rows, minute, mode, value, since)
        return columns if silent is None else columns.take(~silent.reshape(-1))

    def _columns(
        self, day: Day, rows: Ints, minute: int, mode: Ints, value: Ints, since: Ints
    ) -> ReadingColumns:
        sensors = value.shape[1]
        at = minute * np.int64(schema.MINUTE_MS) + self._offsets[rows]
        keys = self._sensor_keys[rows]
        return ReadingColumns(
            home=np.repeat(self._homes[rows], sensors),
            sensor=np.tile(np.arange(sensors, dtype=np.int32), len(rows)),
            seq=np.full(value.size, minute, np.int64),
            at=np.repeat(at, sensors),
            value=value.reshape(-1),
            since=self._since(rows, keys, since).reshape(-1),
            mode=np.repeat(mode, sensors),
            battery=day.battery[rows].reshape(-1),
            fault=self._faults(keys, minute),
            flags=self._alarm_flags(value),
        )

    def _alarm_flags(self, value: Ints) -> Ints:
        if not self.added.kinds:
            return np.zeros(value.size, np.int32)
        return np.where(self.added.is_alarm(value), ALARM, 0).astype(np.int32).reshape(-1)

    def _since(self, rows: Ints, keys: UInt64s, minutes: Ints) -> Longs:
        """The time of the last change of each sensor.

        It lies between the last reading of the old state and the first reading of the new state.
        `minutes` has the minute of that first reading.
        """
        jitter = quarters(random_bits_at(keys.reshape(-1), JITTER, minutes.reshape(-1)))[0]
        before = (1000 + below(jitter >> 1, 29_000) * 2).reshape(minutes.shape)
        known = minutes * np.int64(schema.MINUTE_MS) + self._offsets[rows, None] - before
        out: Longs = np.where(minutes == LONG_AGO, self._installed[rows, None], known)
        return out

    def _faults(self, keys: UInt64s, minute: int) -> Ints:
        if not self.reading_faults.faults:
            return np.zeros(keys.size, np.int32)
        return fault_numbers(keys.reshape(-1), minute, self.reading_faults)

    def _set_motion(
        self, day: Day, rows: Ints, minute: int, mode: Ints, value: Ints, since: Ints
    ) -> None:
        """Movements: as planned, and occasional ones while people are in and awake.

        `changed` is the minute of the last change known so far.
        """
        intervals = day.moving.of(rows)
        planned, changed = intervals.at(minute, day.moving_before[rows])
        keys = self._keys[rows]
        phase = (keys >> np.uint64(7)).astype(np.int32) % BLOCK_MINUTES
        block = (minute + phase) // BLOCK_MINUTES
        first = block * BLOCK_MINUTES - phase
        free = (mode == HOME) & ~planned
        # A block with an occasional movement lies wholly between two planned movements.
        whole = free & (first >= changed) & (first + BLOCK_MINUTES <= intervals.next_start(minute))
        happens, begins, ends, level = _movement_in_block(keys, block, first)
        moving = whole & happens & (begins <= minute) & (minute < ends)
        changed = np.where(moving, begins, changed)
        ended = whole & happens & (ends <= minute)
        changed = np.where(ended, ends, changed)
        changed = _last_movement_end(keys, block, first, changed, free & ~moving & ~ended)
        counts = quarters(random_bits(keys, COUNT, minute))[0]
        value[:, inc.MOTION] = np.where(planned | moving, 1 + below(counts, level), 0)
        since[:, inc.MOTION] = changed

    def _smoke(self, day: Day, rows: Ints, minute: int, mode: Ints) -> Ints:
        """Smoke in ppm: a little haze, more while people cook; always below the alarm level."""
        haze = below(quarters(random_bits(self._keys[rows], AIR, minute))[0], 4)
        start, end, peak = (column[rows] for column in day.cooking)
        minutes_from_edge = np.minimum(minute - start + 1, end - minute)
        cooks = (mode == HOME) & (minutes_from_edge > 0)
        smoke = peak * np.minimum(minutes_from_edge, 6) // 6
        out: Ints = haze + np.where(cooks, smoke, 0)
        return out

    # -- reading faults ---------------------------------------------------------------------------

    def _with_delays(self, columns: ReadingColumns, homes: Ints, minute: int) -> ReadingColumns:
        """The readings of this minute that are not late, and late readings of earlier minutes."""
        parts = [columns.take(late_by(self._keys_of(columns), minute, self.reading_faults) == 0)]
        for delay in range(1, min(self.reading_faults.late_minutes, minute - FIRST_MINUTE) + 1):
            parts.append(self._arriving_late(homes, minute - delay, delay))
        arriving = concatenated(parts)
        order = np.zeros(self.homes, np.int32)
        order[homes] = np.arange(len(homes), dtype=np.int32)
        return arriving.take(np.argsort(order[arriving.home], kind="stable"))

    def _arriving_late(self, homes: Ints, minute: int, delay: int) -> ReadingColumns:
        keys = self._sensor_keys[self._rows[homes]]
        late = late_by(keys.reshape(-1), minute, self.reading_faults).reshape(keys.shape) == delay
        columns = self.readings(minute, homes[late.any(axis=1)])
        columns = columns.take(
            late_by(self._keys_of(columns), minute, self.reading_faults) == delay
        )
        columns.flags[:] |= LATE
        return columns

    def _keys_of(self, columns: ReadingColumns) -> UInt64s:
        out: UInt64s = self._sensor_keys[self._rows[columns.home], columns.sensor]
        return out

    def _with_malformed_and_duplicates(self, columns: ReadingColumns) -> ReadingColumns:
        """Make some readings malformed and some duplicate, by the minute of measurement."""
        keys = self._keys_of(columns)
        copies = np.ones(len(columns), np.int64)
        for minute in np.unique(columns.seq):
            of_minute = columns.seq == minute
            malformed = is_malformed(keys[of_minute], int(minute), self.reading_faults)
            columns.flags[of_minute] |= np.where(malformed, MALFORMED, 0).astype(np.int32)
            copies[of_minute] += is_duplicated(keys[of_minute], int(minute), self.reading_faults)
        columns = columns.take(np.repeat(np.arange(len(columns)), copies))
        second = np.zeros(len(columns), np.bool_)
        second[np.cumsum(copies)[copies > 1] - 1] = True
        columns.flags[second] |= DUPLICATE
        return columns

    # -- the ground truth -------------------------------------------------------------------------

    def truth(self, from_minute: int, to_minute: int) -> tuple[Incident, ...]:
        """The incidents that start in these minutes, the last one excluded, in order of time."""
        if not self.incidents:
            return ()
        days = range(from_minute // DAY - 1, to_minute // DAY + 1)
        incidents = [i for day in days for i in self._incidents(self._days.incidents_of(day))]
        incidents += [i for day in days for i in self._added_incidents(day)]
        low, high = from_minute * schema.MINUTE_MS, to_minute * schema.MINUTE_MS
        return tuple(sorted((i for i in incidents if low <= i.since < high), key=lambda i: i.since))

    def _incidents(self, incidents: IncidentColumns) -> Iterator[Incident]:
        for i in range(len(incidents)):
            sensor = int(incidents.sensor[i])
            for affected in range(len(self.sensors)) if sensor == inc.ALL else (sensor,):
                if self.added.silent_minutes(affected) is not None:
                    yield self._incident(incidents, i, affected)

    def _added_incidents(self, day: int) -> Iterator[Incident]:
        for column, simulated in self.added.columns():
            if not simulated.incident:
                continue
            incidents = incidents_of(self._sensor_keys[:, column], day, simulated)
            columns = incidents.row.tolist(), incidents.start.tolist(), incidents.end.tolist()
            for row, start, end in zip(*columns, strict=True):
                yield Incident(
                    home=schema.home_id(int(self._homes[row])),
                    kind=simulated.incident,
                    sensor=self.sensors[column],
                    since=self._changed_at(row, column, start),
                    until=self._changed_at(row, column, end),
                    due=self._sent_at(row, start),
                )

    def _incident(self, incidents: IncidentColumns, i: int, sensor: int) -> Incident:
        row, kind = int(incidents.row[i]), int(incidents.kind[i])
        start, end = int(incidents.start[i]), int(incidents.end[i])
        silent = kind == inc.SILENT_SENSOR
        due = {
            inc.FORGOTTEN_WINDOW: int(incidents.armed[i])
            + schema.FORGOTTEN_ARMED_MS // schema.MINUTE_MS,
            inc.SILENT_SENSOR: start + (self.added.silent_minutes(sensor) or 0),
        }.get(kind, start)
        return Incident(
            home=schema.home_id(int(self._homes[row])),
            kind=inc.KINDS[kind],
            sensor=self.sensors[sensor],
            since=self._sent_at(row, start) if silent else self._changed_at(row, sensor, start),
            until=self._sent_at(row, end) if silent else self._changed_at(row, sensor, end),
            due=self._sent_at(row, due),
        )

    def _sent_at(self, row: int, minute: int) -> int:
        return minute * schema.MINUTE_MS + int(self._offsets[row])

    def _changed_at(self, row: int, sensor: int, minute: int) -> int:
        """When a sensor changed, by the minute of the first reading of its new state."""
        rows = np.array([row], np.int32)
        keys = self._sensor_keys[rows, sensor : sensor + 1]
        return int(self._since(rows, keys, np.array([[minute]], np.int32))[0, 0])


def _sensor_keys(keys: UInt64s, sensors: int) -> UInt64s:
    salts = [np.uint64(1_000_003 * (sensor + 1)) for sensor in range(sensors)]
    return np.stack([mix_array(keys ^ salt) for salt in salts], axis=1)


def _send_offsets(keys: UInt64s) -> Ints:
    second, part, _, _ = quarters(random_bits(keys, OFFSET))
    out: Ints = below(second, 60) * 1000 + below(part, 1000)
    return out


def _check_minute(minute: int) -> None:
    if not FIRST_MINUTE <= minute <= LAST_MINUTE:
        raise OptionError(
            f"invalid minute {minute}: use minutes since 1970 from {FIRST_MINUTE} (the start of "
            f"2025) to {LAST_MINUTE}"
        )


def _movement_in_block(keys: UInt64s, block: Ints, first: Ints) -> tuple[Flags, Ints, Ints, Ints]:
    """Whether people move in a block, from when to when, and the highest count per minute.

    A movement never includes the first or the last minute of its block, so two never touch.
    """
    happens, start, length, level = quarters(random_bits_at(keys, BLOCK, block))
    hour = (first // 60) % 24
    moves = happens < (MOVEMENT[hour] * 65536).astype(np.int32)
    begins = first + 1 + below(start, 9)
    ends = np.minimum(begins + 1 + below(length, 10), first + BLOCK_MINUTES - 1)
    return moves, begins, ends, COUNTS[below(level, len(COUNTS))]


def _last_movement_end(
    keys: UInt64s, block: Ints, first: Ints, changed: Ints, is_searched: Flags
) -> Ints:
    """`changed`, or the end of the last movement before this block if that is later.

    Only the homes of `is_searched` are searched.
    """
    changed = changed.copy()
    rows = np.flatnonzero(is_searched)
    while len(rows):
        block, first = block - 1, first - BLOCK_MINUTES
        rows = rows[first[rows] >= changed[rows]]
        moves, _, ends, _ = _movement_in_block(keys[rows], block[rows], first[rows])
        changed[rows[moves]] = ends[moves]
        rows = rows[~moves]
    return changed


def __getattr__(name: str) -> Any:
    if name == "Town":
        warn("Town is now HomeSimulator", DeprecationWarning, stacklevel=2)
        return HomeSimulator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
