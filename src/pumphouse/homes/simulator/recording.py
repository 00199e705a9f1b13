"""Recorded sensor data: which columns of a file mean what, and which rows cannot be understood.

    rows of a file -> Columns, RowReader -> read_recording -> Recording -> replay.py
                      ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

A row that cannot be understood is skipped and counted by the column that is wrong, with the first
examples, because logs of real sensors contain damaged lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import numpy as np

from pumphouse.errors import BadRecord, OptionError
from pumphouse.events import to_ms
from pumphouse.homes import schema
from pumphouse.homes.simulator.hashed_random import Longs

REQUIRED: Final = ("time", "sensor", "value")
OPTIONAL: Final = ("home", "mode", "battery")
VALUE_NAMES: Final = {
    **dict.fromkeys(("on", "open", "opened", "true", "present", "broken"), 1.0),
    **dict.fromkeys(("off", "close", "closed", "shut", "false", "absent", "whole"), 0.0),
}
ROWS_MAX: Final = 5_000_000  # about 600 MB in memory
BATTERY: Final = 100
MS_FROM: Final = 10**11  # a time below this number is in seconds since 1970, others in ms
EXAMPLES_MAX: Final = 3  # examples of each reason in a report

Cells = Sequence[str]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the file."""

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
    """The contents of a file, and the rows of it that were not understood."""

    tracks: tuple[Track, ...]
    span_ms: int  # from its first reading to its last
    rows: int = 0  # of the file
    skipped: tuple[Skipped, ...] = ()

    @property
    def days(self) -> int:
        """The number of days that it covers, counting a started day as whole."""
        return self.span_ms // schema.DAY_MS + 1

    def readings(self, homes: int) -> int:
        """The total number of readings after each home has replayed its track."""
        whole, rest = divmod(homes, len(self.tracks))
        sizes = [len(track.rows) for track in self.tracks]
        return whole * sum(sizes) + sum(sizes[:rest])


# -- columns --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns of a file are the time, sensor, value, home, mode and battery.

    A column is a name of the header or, in a file without a header, a number from 1. Several
    columns (`date+time`) are joined by a space.
    """

    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def has_header(self) -> bool:
        return not self.names or not all(
            name.isdecimal() for parts in self.names.values() for name in parts
        )

    def parts_of(self, what: str) -> tuple[str, ...]:
        return self.names.get(what, (what,) if self.has_header else ())

    def read_names(self) -> set[str]:
        """The columns to read."""
        return {name for what in (*REQUIRED, *OPTIONAL) for name in self.parts_of(what)}

    def in_header(self, header: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """The indices of the columns in a header. An optional column may be missing, unless it was
        mapped."""
        indices = {name: index for index, name in reversed(list(enumerate(header)))}
        parts_of = {what: self.parts_of(what) for what in (*REQUIRED, *OPTIONAL)}
        missing = [
            name
            for what, parts in parts_of.items()
            for name in parts
            if name not in indices and (what in REQUIRED or what in self.names)
        ]
        if missing:
            raise BadRecord(
                "header",
                f"no column {', '.join(missing)} (found {', '.join(header)!r:.120}): use time, "
                "sensor and value, and optionally home, mode and battery, or map other names "
                "with --column time=NAME",
            )
        return {
            what: tuple(indices[name] for name in parts)
            for what, parts in parts_of.items()
            if all(name in indices for name in parts)
        }

    def by_number(self) -> dict[str, tuple[int, ...]]:
        """The indices of the columns in a file without a header."""
        return {what: tuple(int(n) - 1 for n in parts) for what, parts in self.names.items()}


def parse_columns(texts: Iterable[tuple[str, str]]) -> Columns:
    """Columns from pairs such as ("time", "date+clock") or ("value", "4")."""
    names = {what: tuple(part.strip().lower() for part in of.split("+")) for what, of in texts}
    unknown = [what for what in names if what not in (*REQUIRED, *OPTIONAL)]
    if unknown:
        raise OptionError(f"invalid column {unknown[0]!r}: use {', '.join((*REQUIRED, *OPTIONAL))}")
    columns = Columns(names)
    used = [part for parts in names.values() for part in parts]
    if not all(used) or "0" in used:
        raise OptionError("invalid column map: use a name of the header, or a number from 1")
    missing = [what for what in REQUIRED if what not in names]
    if not columns.has_header and missing:
        raise OptionError(
            f"no number for {', '.join(missing)}: a file without a header needs the numbers of "
            "time, sensor and value"
        )
    return columns


# -- rows -----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Skipped:
    """Rows that were not understood because the same column is wrong in the same way."""

    column: str  # "row" if the number of cells is wrong
    expected: str
    rows: int = 0
    first: list[int] = field(default_factory=list)  # numbers of the first lines
    examples: list[str] = field(default_factory=list)  # the first different texts

    def add(self, line: int, text: str) -> None:
        self.rows += 1
        if len(self.first) < EXAMPLES_MAX:
            self.first.append(line)
        if len(self.examples) < EXAMPLES_MAX and text not in self.examples:
            self.examples.append(text)

    def __str__(self) -> str:
        texts = ", ".join(f"{text!r:.60}" for text in self.examples)
        return f"invalid {self.column} {texts}: use {self.expected}"

    def where(self) -> str:
        """The first lines, such as `lines 4, 9, 17, ...`."""
        more = ", ..." if self.rows > len(self.first) else ""
        return f"line{'s' if self.rows > 1 else ''} {', '.join(map(str, self.first))}{more}"


class Unreadable(Exception):
    """A cell that is not understood."""

    def __init__(self, column: str, text: str, expected: str) -> None:
        super().__init__(column)
        self.column, self.text, self.expected = column, text, expected


class RowReader:
    """Reads the rows of a file, and counts those that it does not understand.

    `kinds` maps names of sensors, or patterns such as `M*`, to kinds.
    """

    def __init__(
        self, indices: Mapping[str, tuple[int, ...]], kinds: Mapping[str, str], width: int | None
    ) -> None:
        self.indices, self.width = indices, width
        self.kinds, self._kind_of_text = kinds, dict[str, str | None]()
        self.least = 1 + max(index for columns in indices.values() for index in columns)
        self.rows = 0
        self.skipped: dict[tuple[str, str], Skipped] = {}  # by column and what was expected

    def read(self, numbered: Iterable[tuple[int, Cells]]) -> Iterator[Row]:
        for line, cells in numbered:
            self.rows += 1
            try:
                yield self.row(cells)
            except Unreadable as wrong:
                skipped = Skipped(wrong.column, wrong.expected)
                reason = wrong.column, wrong.expected
                self.skipped.setdefault(reason, skipped).add(line, wrong.text)

    def row(self, cells: Cells) -> Row:
        is_whole = len(cells) >= self.least if self.width is None else len(cells) == self.width
        if not is_whole:
            least = f"at least {self.least}" if self.width is None else f"{self.width}"
            raise Unreadable("row", ",".join(cells), f"{least} cells")
        return Row(
            time_ms=self.cell(cells, "time", read_time, TIME_FORM),
            sensor=self.cell(cells, "sensor", self.kind_of, KIND_FORM),
            value=self.cell(cells, "value", read_value, "a number, or ON, OFF, OPEN or CLOSE"),
            home=self.text(cells, "home"),
            mode=self.cell(cells, "mode", read_mode, ", ".join(schema.MODES)),
            battery=self.cell(cells, "battery", read_battery, "a percentage"),
        )

    def text(self, cells: Cells, what: str) -> str:
        text = " ".join([cells[index].strip() for index in self.indices.get(what, ())])
        if not is_utf8(text):
            raise Unreadable(what, readable(text), "UTF-8 text")
        return text

    def cell(self, cells: Cells, what: str, read: Callable[[str], Any], expected: str) -> Any:
        text = self.text(cells, what)
        try:
            return read(text)
        except ValueError:
            raise Unreadable(what, text, expected) from None

    def kind_of(self, text: str) -> str:
        if text not in self._kind_of_text:
            self._kind_of_text[text] = kind_of(text, self.kinds)
        kind = self._kind_of_text[text]
        if kind is None:
            raise ValueError
        return kind


TIME_FORM: Final = "2011-06-15T00:06:32 or seconds since 1970"
KIND_FORM: Final = (
    f"one of {', '.join(schema.KINDS)}, or give its kind: --sensor NAME=KIND, --sensor 'M*=motion'"
)


def kind_of(text: str, kinds: Mapping[str, str]) -> str | None:
    """The kind of a sensor of the file: by its name, else by the first pattern that matches."""
    if text in kinds:
        return kinds[text]
    patterns = (kind for pattern, kind in kinds.items() if fnmatchcase(text, pattern))
    own = text.lower() if text.lower() in schema.KINDS else None
    return next(patterns, own)


def is_utf8(text: str) -> bool:
    """Whether no byte of it was left undecoded, as a surrogate escape."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def readable(text: str) -> str:
    """The text with the bytes that are not UTF-8 written as \\xff."""
    return text.encode(errors="surrogateescape").decode(errors="backslashreplace")


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


def read_mode(text: str) -> str:
    if text and text not in schema.MODES:
        raise ValueError
    return text or schema.MODES[0]


def read_battery(text: str) -> int:
    level = float(text or BATTERY)
    if not 0 <= level <= 100:
        raise ValueError
    return round(level)


# -- the whole file -------------------------------------------------------------------------------


def check_kinds(kinds: Mapping[str, str]) -> None:
    for name, kind in kinds.items():
        if kind not in schema.KINDS:
            raise OptionError(
                f"invalid kind {kind!r} of sensor {name}: use one of {', '.join(schema.KINDS)}"
            )


def recording_of(rows: Iterable[Row], reader: RowReader) -> Recording:
    """The recording of these rows, which `reader` reads. Raises if it understands none."""
    ordered = sorted(rows, key=lambda row: row.time_ms)
    skipped = tuple(sorted(reader.skipped.values(), key=lambda each: -each.rows))
    if not ordered:
        raise BadRecord("no reading", describe_skipped(reader.rows, skipped))
    homes: dict[str, list[Row]] = {}
    for row in ordered:
        homes.setdefault(row.home, []).append(row)
    start, end = ordered[0].time_ms, ordered[-1].time_ms
    tracks = tuple(track_of(homes[home], start) for home in sorted(homes))
    return Recording(tracks, end - start, reader.rows, skipped)


def describe_skipped(rows: int, skipped: Sequence[Skipped]) -> str:
    """What was not understood, one line for each reason."""
    if not rows:
        return "the file has no rows"
    total = sum(each.rows for each in skipped)
    lines = [f"{total:,} of {rows:,} rows were not understood"]
    return "\n".join(
        [*lines, *(f"{each.rows:,} rows ({each.where()}): {each}" for each in skipped)]
    )


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
