"""Replays recorded sensor data on many homes: a CSV file with time, sensor and value.

    lines of CSV -> read_recording -> Recording -> ReplaySource -> TimeSlice -> sender.py
                    ^^^^^^^^^^^^^^ this module      ^^^^^^^^^^^^ and this

    time,sensor,value[,home][,mode][,battery]
    2011-06-15T00:06:32,door,OPEN
    2011-06-15T00:06:40,temperature,21.5

The homes of the file (one, if it has no column `home`) are assigned in turn to the simulated homes.
Each home starts at another day and minute of the recording, so that homes do not act in unison; a
home that starts at a later day continues with the earlier days.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

import numpy as np

from pumphouse.client.base import batch_section, encode_event
from pumphouse.errors import BadRecord, OptionError
from pumphouse.events import Event, to_ms
from pumphouse.homes import schema
from pumphouse.homes.simulator.hashed_random import Ints, Longs
from pumphouse.homes.simulator.record_encoding import PackedRecords
from pumphouse.homes.simulator.time_slices import TimeSlice

T = TypeVar("T")

REQUIRED: Final = ("time", "sensor", "value")
VALUE_NAMES: Final = {
    **dict.fromkeys(("on", "open", "opened", "true", "present", "broken"), 1.0),
    **dict.fromkeys(("off", "close", "closed", "shut", "false", "absent", "whole"), 0.0),
}
APART_MINUTES: Final = 30  # the largest shift between homes that replay the same day
ROWS_MAX: Final = 5_000_000  # about 600 MB in memory
BATTERY: Final = 100
MS_FROM: Final = 10**11  # a time below this number is in seconds since 1970, others in ms


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the file."""

    time_ms: int
    sensor: str
    value: float
    home: str = ""
    mode: str = "home"
    battery: int = BATTERY


@dataclass(frozen=True, slots=True)
class Track:
    """The readings of one home of the file, in order of time."""

    rows: tuple[Row, ...]
    times: Longs  # since the start of the recording
    ages: Longs  # ms since the sensor last changed between quiet and active
    orders: Longs  # the number of the reading among those of its sensor


@dataclass(frozen=True, slots=True)
class Recording:
    """The contents of a file."""

    tracks: tuple[Track, ...]
    span_ms: int  # from its first reading to its last

    @property
    def days(self) -> int:
        """The number of days that it covers, counting a started day as whole."""
        return self.span_ms // schema.DAY_MS + 1

    def readings(self, homes: int) -> int:
        """The total number of readings after each home has replayed its track."""
        whole, rest = divmod(homes, len(self.tracks))
        sizes = [len(track.rows) for track in self.tracks]
        return whole * sum(sizes) + sum(sizes[:rest])


# -- reading the file


def read_recording(lines: Iterable[str], names: Mapping[str, str] | None = None) -> Recording:
    """Read a recording from CSV. `names` maps sensor names of the file to kinds of sensors.

    Errors name the line.
    """
    for name, kind in (names or {}).items():
        if kind not in schema.KINDS:
            raise OptionError(
                f"invalid kind {kind!r} of sensor {name}: use one of {', '.join(schema.KINDS)}"
            )
    rows = sorted(read_rows(lines, names or {}), key=lambda row: row.time_ms)
    if not rows:
        raise BadRecord("line 2", "the file has a header but no readings")
    homes: dict[str, list[Row]] = {}
    for row in rows:
        homes.setdefault(row.home, []).append(row)
    start, end = rows[0].time_ms, rows[-1].time_ms
    return Recording(tuple(track_of(homes[home], start) for home in sorted(homes)), end - start)


def read_rows(lines: Iterable[str], names: Mapping[str, str]) -> Iterator[Row]:
    reader = csv.reader(lines, strict=True)  # an unclosed quote is an error
    header: list[str] | None = None
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            where = f"line {reader.line_num}"
            if header is None:
                header = read_header([cell.strip().lower() for cell in cells], where)
            elif reader.line_num > ROWS_MAX:
                raise BadRecord(where, f"more than {ROWS_MAX:,} lines: split the file")
            else:
                yield read_row(header, cells, where, names)
    except csv.Error as wrong:
        raise BadRecord(f"line {reader.line_num}", f"not valid CSV: {wrong}") from None
    if header is None:
        raise BadRecord("line 1", "the file is empty: its first line must be time,sensor,value")


def read_header(names: list[str], where: str) -> list[str]:
    names[0] = names[0].removeprefix("\ufeff")
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise BadRecord(
            where,
            f"the header has no column {', '.join(missing)} (found {', '.join(names)!r:.120}): "
            "use time, sensor and value, and optionally home, mode and battery",
        )
    return names


def read_row(header: list[str], cells: list[str], where: str, names: Mapping[str, str]) -> Row:
    if len(cells) != len(header):
        raise BadRecord(
            where,
            f"{len(cells)} cells, but the header has {len(header)}: {','.join(cells)!r:.120}",
        )
    cell = dict(zip(header, (cell.strip() for cell in cells), strict=True))
    return Row(
        time_ms=_read("time", cell, where, read_time, "2011-06-15T00:06:32 or seconds since 1970"),
        sensor=_read("sensor", cell, where, lambda text: kind_of(text, names), _kinds(names)),
        value=_read("value", cell, where, read_value, "a number, or ON, OFF, OPEN or CLOSE"),
        home=cell.get("home", ""),
        mode=_read("mode", cell, where, read_mode, ", ".join(schema.MODES)),
        battery=_read("battery", cell, where, read_battery, "a percentage"),
    )


def _kinds(names: Mapping[str, str]) -> str:
    return f"one of {', '.join((*schema.KINDS, *names))} (--sensor NAME=KIND names more)"


def _read(
    name: str, cell: Mapping[str, str], where: str, read: Callable[[str], T], expected: str
) -> T:
    text = cell.get(name, "")
    try:
        return read(text)
    except ValueError:
        raise BadRecord(where, f"invalid {name} {text!r:.60}: use {expected}") from None


def read_time(text: str) -> int:
    """Milliseconds since 1970; a time without a zone is UTC."""
    try:
        number = float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return to_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    if not 0 <= number < 10**14:  # also rejects NaN
        raise ValueError
    return round(number if number >= MS_FROM else number * 1000)


def read_value(text: str) -> float:
    named = VALUE_NAMES.get(text.lower())
    value = float(text) if named is None else named
    if not math.isfinite(value):
        raise ValueError
    return value


def kind_of(text: str, names: Mapping[str, str]) -> str:
    kind = names.get(text, text.lower())
    if kind not in schema.KINDS:
        raise ValueError
    return kind


def read_mode(text: str) -> str:
    if text and text not in schema.MODES:
        raise ValueError
    return text or schema.MODES[0]


def read_battery(text: str) -> int:
    level = int(text or BATTERY)
    if not 0 <= level <= 100:
        raise ValueError
    return level


def track_of(rows: list[Row], start_ms: int) -> Track:
    ages, orders = [], []
    last: dict[str, tuple[bool, int, int]] = {}  # by sensor: is quiet, since when, readings so far
    for row in rows:
        quiet = schema.is_quiet(row.sensor, row.value)
        was_quiet, since, count = last.get(row.sensor, (quiet, row.time_ms, 0))
        since = since if was_quiet == quiet else row.time_ms
        last[row.sensor] = quiet, since, count + 1
        ages.append(row.time_ms - since)
        orders.append(count)
    times = np.array([row.time_ms - start_ms for row in rows], np.int64)
    return Track(tuple(rows), times, np.array(ages, np.int64), np.array(orders, np.int64))


# -- replaying it


@dataclass(frozen=True, slots=True)
class ReplaySource:
    """Replays a recording on a number of homes from a start time."""

    recording: Recording
    homes: int
    start_ms: int
    slot_s: int = 1  # a divisor of 60

    def __post_init__(self) -> None:
        if not 1 <= self.homes <= schema.HOMES_MAX:
            raise OptionError(
                f"invalid number of homes {self.homes:,}: use 1 to {schema.HOMES_MAX:,}"
            )

    @property
    def period_ms(self) -> int:
        """The time after which each home has replayed its whole track: whole days."""
        return self.recording.days * schema.DAY_MS

    def slices(self, partition_of: Ints) -> Iterator[TimeSlice]:
        order = np.argsort(partition_of[: self.homes], kind="stable").astype(np.int64)
        shifts = self.shifts(order)
        remaining, position, step = self.recording.readings(self.homes), 0, self.slot_s * 1000
        while remaining:
            rows, homes = self.due(order, shifts, position, step)
            position += step
            if len(homes):
                remaining -= len(homes)
                yield self.time_slice(rows, homes, position)

    def shifts(self, homes: Longs) -> Longs:
        """How much later each home replays the start of the recording, in ms."""
        turn = homes // len(self.recording.tracks)
        days = turn % self.recording.days
        minutes = turn // self.recording.days * 7 % APART_MINUTES
        out: Longs = days * schema.DAY_MS + minutes * schema.MINUTE_MS
        return out

    def due(self, order: Longs, shifts: Longs, position: int, step: int) -> tuple[Longs, Longs]:
        """The rows that are due and the home of each, in the order of `order`."""
        from_ms = (position - shifts) % self.period_ms
        first, last = np.zeros_like(order), np.zeros_like(order)
        for number, track in enumerate(self.recording.tracks):
            on_track = order % len(self.recording.tracks) == number
            first[on_track] = np.searchsorted(track.times, from_ms[on_track])
            last[on_track] = np.searchsorted(track.times, from_ms[on_track] + step)
        counts = last - first
        starts = np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(first, counts) + np.arange(counts.sum()) - starts
        return rows, np.repeat(order, counts)

    def time_slice(self, rows: Longs, homes: Longs, position: int) -> TimeSlice:
        shifts = self.shifts(homes)
        records = [
            self.record(row, home, shift)
            for row, home, shift in zip(rows.tolist(), homes.tolist(), shifts.tolist(), strict=True)
        ]
        starts = np.zeros(len(records) + 1, np.int64)
        np.cumsum([len(record) for record in records], out=starts[1:])
        due_ms, flags = self.start_ms + position, np.zeros(len(records), np.int32)
        return TimeSlice(
            due_ms, homes.astype(np.int32), PackedRecords(b"".join(records), starts), flags
        )

    def record(self, row: int, home: int, shift: int) -> bytes:
        track = self.recording.tracks[home % len(self.recording.tracks)]
        at = self.start_ms + (int(track.times[row]) + shift) % self.period_ms
        name = schema.home_id(home)
        body = self.body(track, row, name, at)
        return batch_section(encode_event(Event(body, partition_key=name)))

    def body(self, track: Track, row: int, home: str, at: int) -> bytes:
        """The same bytes as `schema.encode_reading`, but faster."""
        line = track.rows[row]
        value = int(line.value) if line.value.is_integer() else line.value
        # Sequence numbers start above those of any replay that started earlier.
        seq = self.start_ms // schema.MINUTE_MS * 1_000_000 + int(track.orders[row])
        since = at - int(track.ages[row])
        return (
            f'{{"v":{schema.VERSION},"home":"{home}","sensor":"{line.sensor}","seq":{seq},'
            f'"at":{at},"value":{json.dumps(value)},"since":{since},"mode":"{line.mode}",'
            f'"battery":{line.battery}}}'
        ).encode()
