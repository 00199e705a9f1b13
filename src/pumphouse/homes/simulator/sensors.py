"""The home simulator: five readings per home and minute, for any minute.

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
from pumphouse.homes.simulator import incidents as inc
from pumphouse.homes.simulator.day_cache import Day, DayCache
from pumphouse.homes.simulator.hashed_random import (
    Flags,
    Indices,
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
    DUPLICATE,
    LATE,
    MALFORMED,
    PackedRecords,
    ReadingColumns,
    chained,
    pack_records,
)

# Purposes of throws.
OFFSET, INSTALLED, BLOCK, COUNT, AIR, JITTER = range(60, 66)

FIRST_MINUTE: Final = 28_927_680  # 2025 began; all sensors were installed in the year before it
LAST_MINUTE: Final = 99_999_999  # a body has eight digits for it
INSTALLED_MS: Final = 1_704_067_200_000  # 2024 began
BLOCK_MINUTES = 15  # somebody at home is on their feet at most once in so long
# How likely that is by the hour of the day, while they are in and awake.
_MORNING = (0.4, 0.4, 0.3, 0.3, 0.5, 0.7, 0.8, 0.85, 0.8, 0.6, 0.55, 0.6)
_EVENING = (0.7, 0.65, 0.5, 0.5, 0.55, 0.7, 0.85, 0.85, 0.8, 0.7, 0.6, 0.5)
LIVELY: Final = np.array((*_MORNING, *_EVENING))
COUNTS: Final = np.array([3, 6, 12], np.int32)  # movements a minute, at most: quiet to lively


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings with their bodies, in the order in which they are sent."""

    columns: ReadingColumns
    packed: PackedRecords

    def __len__(self) -> int:
        return len(self.columns)

    def bodies(self) -> Iterator[bytes]:
        return map(self.packed.body, range(len(self)))

    def events(self) -> Iterator[Event]:
        """For any sender; `packed` is cheaper for one of our own."""
        for i, home in enumerate(self.columns.home.tolist()):
            yield Event(self.packed.body(i), partition_key=f"h{home:06d}")


class HomeSimulator:
    """Homes, how they live and what befalls them: all of it follows from the seed."""

    def __init__(
        self,
        homes: int = 100_000,
        seed: int = 1,
        incidents: Incidents | None = None,
        reading_faults: ReadingFaults | None = None,
    ) -> None:
        if not 1 <= homes <= schema.HOMES_MAX:
            raise OptionError(f"a town has 1 to {schema.HOMES_MAX:,} homes (got {homes:,})")
        self.homes = homes
        self.seed = seed
        self.incidents = incidents or Incidents()
        self.reading_faults = reading_faults or ReadingFaults()
        self.numbers: Ints = np.arange(homes, dtype=np.int32)
        keys = home_keys(seed, self.numbers)
        # Each home has its own moment of the minute, in milliseconds.
        self.offsets: Ints = _moments(keys)
        # All that is kept of homes is in the order of these moments: those that are asked for
        # together then lie together in memory.
        self._homes: Ints = np.argsort(self.offsets, kind="stable").astype(np.int32)
        self._rows: Ints = np.argsort(self._homes).astype(np.int32)
        self._keys: UInt64s = keys[self._homes]
        self._sensor_keys: UInt64s = _keys_of_sensors(self._keys)
        self._moments: Longs = self.offsets[self._homes].astype(np.int64)
        installed, *_ = quarters(random_bits(self._keys, INSTALLED))
        self._installed: Longs = INSTALLED_MS + below(installed, 365) * np.int64(schema.DAY_MS)
        self._days = DayCache(self._keys, self._sensor_keys, self.incidents, self.reading_faults)

    def __repr__(self) -> str:
        return f"<HomeSimulator {self.homes} homes, seed {self.seed}>"

    # -- what is sent -----------------------------------------------------------------------------

    def minute(self, minute: int, homes: Ints | None = None) -> Batch:
        """What arrives in a minute from some homes (by default all), in the order of these.

        With late readings that is not all that was read in it, and some that was read before.
        """
        columns = self.arriving(minute, homes)
        return Batch(columns, pack_records(columns))

    def arriving(self, minute: int, homes: Ints | None = None) -> ReadingColumns:
        """The same without the bodies."""
        asked = self.numbers if homes is None else homes
        columns = self.readings(minute, asked)
        if self.reading_faults.late:
            columns = self._delayed(columns, asked, minute)
        if self.reading_faults.malformed or self.reading_faults.duplicates:
            columns = self._mangled(columns)
        return columns

    def due(self, first_s: int, last_s: int) -> Ints:
        """The homes whose moment is within these seconds of the minute, the last one excluded."""
        which = (self.offsets >= first_s * 1000) & (self.offsets < last_s * 1000)
        return self.numbers[which]

    # -- what was read ----------------------------------------------------------------------------

    def readings(self, minute: int, homes: Ints | None = None) -> ReadingColumns:
        """What the sensors of some homes read in a minute; those that are silent say nothing."""
        _check(minute)
        rows = self._rows if homes is None else self._rows[homes]
        day = self._days.day(minute // DAY)
        mode = day.mode(rows, minute)
        value = np.zeros((len(rows), len(schema.SENSORS)), np.int32)
        since = np.full_like(value, LONG_AGO)
        self._move(day, rows, minute, mode, value, since)
        for place, spans, before in (
            (inc.DOOR, day.door, day.door_before),
            (inc.WINDOW, day.window, day.window_before),
        ):
            value[:, place], since[:, place] = spans.of(rows).at(minute, before[rows])
        value[:, inc.SMOKE] = self._air(day, rows, minute, mode)
        silent = _befall(day.happening, rows, minute, value, since)
        columns = self._columns(day, rows, minute, mode, value, since)
        return columns if silent is None else columns.take(~silent.reshape(-1))

    def _columns(
        self, day: Day, rows: Ints, minute: int, mode: Ints, value: Ints, since: Ints
    ) -> ReadingColumns:
        sensors = value.shape[1]
        at = minute * np.int64(schema.MINUTE_MS) + self._moments[rows]
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
            mark=np.zeros(value.size, np.int32),
        )

    def _since(self, rows: Ints, keys: UInt64s, minutes: Ints) -> Longs:
        """A change lies between the reading that first told of it and the one before."""
        jitter = quarters(random_bits_at(keys.reshape(-1), JITTER, minutes.reshape(-1)))[0]
        before = (1000 + below(jitter >> 1, 29_000) * 2).reshape(minutes.shape)
        known = minutes * np.int64(schema.MINUTE_MS) + self._moments[rows, None] - before
        out: Longs = np.where(minutes == LONG_AGO, self._installed[rows, None], known)
        return out

    def _faults(self, keys: UInt64s, minute: int) -> Ints:
        if not self.reading_faults.faults:
            return np.zeros(keys.size, np.int32)
        return fault_numbers(keys.reshape(-1), minute, self.reading_faults)

    def _move(
        self, day: Day, rows: Ints, minute: int, mode: Ints, value: Ints, since: Ints
    ) -> None:
        """Movements: when the plan says so, and now and then while somebody is in and awake."""
        spans = day.moving.of(rows)
        planned, known = spans.at(minute, day.moving_before[rows])
        keys = self._keys[rows]
        phase = (keys >> np.uint64(7)).astype(np.int32) % BLOCK_MINUTES
        block = (minute + phase) // BLOCK_MINUTES
        first = block * BLOCK_MINUTES - phase
        free = (mode == HOME) & ~planned
        whole = free & (first >= known) & (first + BLOCK_MINUTES <= spans.next_start(minute))
        there, begins, ends, level = _bout(keys, block, first)
        moving = whole & there & (begins <= minute) & (minute < ends)
        known = np.where(moving, begins, known)
        over = whole & there & (ends <= minute)
        known = np.where(over, ends, known)
        known = _look_back(keys, block, first, known, free & ~moving & ~over)
        counts = quarters(random_bits(keys, COUNT, minute))[0]
        value[:, inc.MOTION] = np.where(planned | moving, 1 + below(counts, level), 0)
        since[:, inc.MOTION] = known

    def _air(self, day: Day, rows: Ints, minute: int, mode: Ints) -> Ints:
        """A little haze; more while somebody cooks. Never near the alarm."""
        haze = below(quarters(random_bits(self._keys[rows], AIR, minute))[0], 4)
        start, end, peak = (column[rows] for column in day.cooking)
        along = np.minimum(minute - start + 1, end - minute)
        cooks = (mode == HOME) & (along > 0)
        smoke = peak * np.minimum(along, 6) // 6
        out: Ints = haze + np.where(cooks, smoke, 0)
        return out

    # -- what befalls the readings ----------------------------------------------------------------

    def _delayed(self, columns: ReadingColumns, homes: Ints, minute: int) -> ReadingColumns:
        """Those of this minute that are not late, and the late ones whose time has come."""
        parts = [columns.take(late_by(self._keys_of(columns), minute, self.reading_faults) == 0)]
        for delay in range(1, min(self.reading_faults.late_minutes, minute - FIRST_MINUTE) + 1):
            parts.append(self._late(homes, minute - delay, delay))
        together = chained(parts)
        places = np.zeros(self.homes, np.int32)
        places[homes] = np.arange(len(homes), dtype=np.int32)
        return together.take(np.argsort(places[together.home], kind="stable"))

    def _late(self, homes: Ints, minute: int, delay: int) -> ReadingColumns:
        keys = self._sensor_keys[self._rows[homes]]
        late = late_by(keys.reshape(-1), minute, self.reading_faults).reshape(keys.shape) == delay
        columns = self.readings(minute, homes[late.any(axis=1)])
        columns = columns.take(
            late_by(self._keys_of(columns), minute, self.reading_faults) == delay
        )
        columns.mark[:] |= LATE
        return columns

    def _keys_of(self, columns: ReadingColumns) -> UInt64s:
        out: UInt64s = self._sensor_keys[self._rows[columns.home], columns.sensor]
        return out

    def _mangled(self, columns: ReadingColumns) -> ReadingColumns:
        """Some are malformed, some come twice; both go by when they were read."""
        keys = self._keys_of(columns)
        again = np.ones(len(columns), np.int64)
        for minute in np.unique(columns.seq):
            its = columns.seq == minute
            bad = is_malformed(keys[its], int(minute), self.reading_faults)
            columns.mark[its] |= np.where(bad, MALFORMED, 0).astype(np.int32)
            again[its] += is_duplicated(keys[its], int(minute), self.reading_faults)
        columns = columns.take(np.repeat(np.arange(len(columns)), again))
        second = np.zeros(len(columns), np.bool_)
        second[np.cumsum(again)[again > 1] - 1] = True
        columns.mark[second] |= DUPLICATE
        return columns

    # -- the truth --------------------------------------------------------------------------------

    def truth(self, from_minute: int, to_minute: int) -> tuple[Incident, ...]:
        """The incidents that begin in these minutes, the last one excluded, by time."""
        if not self.incidents:
            return ()
        days = range(from_minute // DAY - 1, to_minute // DAY + 1)
        found = [i for day in days for i in self._incidents(self._days.happening(day))]
        low, high = from_minute * schema.MINUTE_MS, to_minute * schema.MINUTE_MS
        return tuple(sorted((i for i in found if low <= i.since < high), key=lambda i: i.since))

    def _incidents(self, happening: IncidentColumns) -> Iterator[Incident]:
        for i in range(len(happening)):
            place = int(happening.sensor[i])
            for one in range(inc.ALL) if place == inc.ALL else (place,):
                yield self._incident(happening, i, one)

    def _incident(self, happening: IncidentColumns, i: int, place: int) -> Incident:
        row, kind = int(happening.row[i]), int(happening.kind[i])
        start, end = int(happening.start[i]), int(happening.end[i])
        silent = kind == inc.SILENT
        due = {
            inc.FORGOTTEN: int(happening.armed[i]) + schema.FORGOTTEN_ARMED_MS // schema.MINUTE_MS,
            inc.SILENT: start + schema.SILENT_MS // schema.MINUTE_MS,
        }.get(kind, start)
        return Incident(
            home=schema.home_id(int(self._homes[row])),
            kind=inc.KINDS[kind],
            sensor=schema.SENSORS[place],
            since=self._at(row, start) if silent else self._change(row, place, start),
            until=self._at(row, end) if silent else self._change(row, place, end),
            due=self._at(row, due),
        )

    def _at(self, row: int, minute: int) -> int:
        return minute * schema.MINUTE_MS + int(self._moments[row])

    def _change(self, row: int, place: int, minute: int) -> int:
        """When a sensor changed, by the reading that first told of it."""
        rows = np.array([row], np.int32)
        keys = self._sensor_keys[rows, place : place + 1]
        return int(self._since(rows, keys, np.array([[minute]], np.int32))[0, 0])


def _keys_of_sensors(keys: UInt64s) -> UInt64s:
    salts = [np.uint64(1_000_003 * (place + 1)) for place in range(len(schema.SENSORS))]
    return np.stack([mix_array(keys ^ salt) for salt in salts], axis=1)


def _moments(keys: UInt64s) -> Ints:
    second, part, _, _ = quarters(random_bits(keys, OFFSET))
    out: Ints = below(second, 60) * 1000 + below(part, 1000)
    return out


def _check(minute: int) -> None:
    if not FIRST_MINUTE <= minute <= LAST_MINUTE:
        raise OptionError(
            f"readings are made for the minutes {FIRST_MINUTE} (2025 began) to {LAST_MINUTE} "
            f"since 1970 (got {minute})"
        )


def _bout(keys: UInt64s, block: Ints, first: Ints) -> tuple[Flags, Ints, Ints, Ints]:
    """The bout of movement in a block, if there is one: from when to when, and how lively.

    It never reaches the first or the last minute of its block, so two bouts never touch.
    """
    lucky, start, length, level = quarters(random_bits_at(keys, BLOCK, block))
    hour = (first // 60) % 24
    there = lucky < (LIVELY[hour] * 65536).astype(np.int32)
    begins = first + 1 + below(start, 9)
    ends = np.minimum(begins + 1 + below(length, 10), first + BLOCK_MINUTES - 1)
    return there, begins, ends, COUNTS[below(level, len(COUNTS))]


def _look_back(keys: UInt64s, block: Ints, first: Ints, known: Ints, open_: Flags) -> Ints:
    """The end of the last bout before this block, where nothing later is known of."""
    known = known.copy()
    left = np.flatnonzero(open_)
    while len(left):
        block, first = block - 1, first - BLOCK_MINUTES
        left = left[first[left] >= known[left]]
        there, _, ends, _ = _bout(keys[left], block[left], first[left])
        known[left[there]] = ends[there]
        left = left[~there]
    return known


def _befall(
    happening: IncidentColumns, rows: Ints, minute: int, value: Ints, since: Ints
) -> Flags | None:
    """Let the incidents change what sensors say; which of them say nothing at all, if any."""
    if not len(happening) or not len(rows):
        return None
    now = happening.where(happening.start <= minute)
    order = np.argsort(rows, kind="stable")
    found = np.searchsorted(rows, now.row, sorter=order)
    inside = found < len(rows)
    places = order[np.where(inside, found, 0)]
    inside &= rows[places] == now.row
    # A home may have had one the day before yesterday and another today: the later one is shown
    # last, for the days come in the order of time.
    now, places = now.where(inside), places[inside]
    _show(now, places, minute, value, since)
    _intrude(now, places, minute, value, since)
    return _silence(now, places, minute, value.shape)


def _show(now: IncidentColumns, places: Indices, minute: int, value: Ints, since: Ints) -> None:
    """A pane is broken, something burns, a window stands open; and quiet again after it."""
    heard = now.kind != inc.SILENT
    on = heard & (minute < now.end)
    smoke = inc.smoke_of(now.start, now.end, now.peak, minute)
    says = np.where(now.sensor == inc.SMOKE, smoke, 1)
    value[places[on], now.sensor[on]] = says[on]
    since[places[on], now.sensor[on]] = now.start[on]
    off = heard & ~on
    where = places[off], now.sensor[off]
    since[where] = np.maximum(since[where], now.end[off])


def _intrude(now: IncidentColumns, places: Indices, minute: int, value: Ints, since: Ints) -> None:
    """Somebody moves about who should not; where nobody else does."""
    alone = (now.kind == inc.BREAK_IN) & (value[places, inc.MOTION] == 0)
    inside = alone & (minute < now.stir)
    value[places[inside], inc.MOTION] = 2 + minute % 5
    since[places[inside], inc.MOTION] = now.start[inside]
    gone = alone & ~inside
    where = places[gone], inc.MOTION
    since[where] = np.maximum(since[where], now.stir[gone])


def _silence(
    now: IncidentColumns, places: Indices, minute: int, shape: tuple[int, ...]
) -> Flags | None:
    mute = (now.kind == inc.SILENT) & (minute < now.end)
    if not mute.any():
        return None
    silent = np.zeros(shape, np.bool_)
    for place, sensor in zip(places[mute], now.sensor[mute], strict=True):
        silent[place, slice(None) if sensor == inc.ALL else sensor] = True
    return silent


def __getattr__(name: str) -> Any:
    if name == "Town":
        warn("Town is now HomeSimulator", DeprecationWarning, stacklevel=2)
        return HomeSimulator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
