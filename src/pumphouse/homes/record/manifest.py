"""Which files hold which rows, and which of them should become one?

A manifest names every file of the archive, and the positions up to which the hubs are in them. It
is replaced as a whole: whoever reads through it sees each row exactly once, before, during and
after a merge, and whatever crashes. Rows lie by the hour of their event time:

    activity/date=2026-11-15/hour=09/000000000042-k3f9.parquet

Small files are merged in tiers, so that a row is written again only a few times: as soon as FAN
files of about a size lie in an hour, and once an hour has passed.

    batch -> Archive: files -> with_batch -> plan_merges -> Archive: files -> with_merge
                               ^^^^^^^^^^    ^^^^^^^^^^^ this module           ^^^^^^^^^^
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pumphouse.errors import RecordsDamaged
from pumphouse.homes.record.positions import Positions, advanced
from pumphouse.homes.schema import HOUR_MS

VERSION = 1
FAN = 16  # files of a size that become one
STRAGGLERS = 4  # files of a past hour that become one
GROWTH = 4  # a file is written again only together with a quarter of its rows, or more
MERGED_ROWS_MAX = 2_000_000
SETTLED_AFTER_MS = HOUR_MS  # an hour has passed when events are so much newer than its end
DAYS_INLINE = 2  # of older days the files stand in a list of their own


@dataclass(frozen=True, slots=True, order=True)
class Hour:
    """One folder: the rows of a hub with event times in one hour."""

    hub: str
    start_ms: int

    @property
    def day(self) -> str:
        return f"{moment(self.start_ms):%Y-%m-%d}"

    @property
    def folder(self) -> str:
        return f"{self.hub}/date={self.day}/hour={moment(self.start_ms):%H}"


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that is complete and never changes."""

    name: str
    hub: str
    hour_ms: int
    rows: int
    bytes: int

    @property
    def hour(self) -> Hour:
        return Hour(self.hub, self.hour_ms)


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """Something no longer named. Readers that hold an older manifest may still want it."""

    name: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """All there is. `days` names the lists of files of days long past: hub/date -> list."""

    version: int = 0
    positions: Positions = field(default_factory=dict)
    files: tuple[DataFile, ...] = ()
    days: Mapping[str, str] = field(default_factory=dict)
    gone: tuple[RemovedFile, ...] = ()

    def with_batch(self, files: Iterable[DataFile], reached: Positions) -> Manifest:
        return replace(
            self,
            version=self.version + 1,
            positions=advanced(self.positions, reached),
            files=(*self.files, *files),
        )

    def with_merge(self, merged: DataFile, parts: Sequence[DataFile], now_ms: int) -> Manifest:
        """The merged file in place of its parts."""
        names = {part.name for part in parts}
        kept = tuple(file for file in self.files if file.name not in names)
        gone = tuple(RemovedFile(part.name, now_ms) for part in parts)
        return replace(
            self,
            version=self.version + 1,
            files=(*kept, merged),
            gone=(*self.gone, *gone),
        )

    def with_day(self, day: str, name: str, now_ms: int) -> Manifest:
        """The files of a day in a list of their own, which has been written."""
        kept = tuple(file for file in self.files if day_of(file) != day)
        gone = tuple(RemovedFile(old, now_ms) for old in filter(None, [self.days.get(day)]))
        return replace(
            self,
            version=self.version + 1,
            files=kept,
            days={**self.days, day: name},
            gone=(*self.gone, *gone),
        )

    def without_gone(self, names: set[str]) -> Manifest:
        kept = tuple(one for one in self.gone if one.name not in names)
        return replace(self, version=self.version + 1, gone=kept)


def moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def day_of(file: DataFile) -> str:
    return f"{file.hub}/{file.hour.day}"


def file_name(hour: Hour, version: int, writer: str) -> str:
    """One that nobody else writes: versions are of one writer only, and writers differ."""
    return f"{hour.folder}/{version:012d}-{writer}.parquet"


# -- merging


def plan_merges(files: Iterable[DataFile]) -> list[tuple[DataFile, ...]]:
    """Which files should become one; those of hours long past first."""
    by_hour: dict[Hour, list[DataFile]] = defaultdict(list)
    for file in files:
        by_hour[file.hour].append(file)
    newest: dict[str, int] = {}
    for hour in by_hour:
        newest[hour.hub] = max(newest.get(hour.hub, 0), hour.start_ms)
    plans = []
    for hour in sorted(by_hour):
        past = hour.start_ms + HOUR_MS + SETTLED_AFTER_MS <= newest[hour.hub]
        small = sorted(by_hour[hour], key=lambda file: (file.rows, file.name))
        together = stragglers(small) if past else tier(small)
        if together:
            plans.append(together)
    return plans


def tier(rising: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """FAN files of about a size, or nothing."""
    tiers: dict[int, list[DataFile]] = defaultdict(list)
    for file in rising:
        # Powers of 16: each merge moves its rows up by one.
        tiers[(max(1, file.rows).bit_length() - 1) // 4].append(file)
    full = [found for found in tiers.values() if len(found) >= FAN]
    return bounded(min(full, key=lambda found: found[0].rows)) if full else ()


def stragglers(rising: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """As many of the smallest as are worth it: late rows come in small files, for days."""
    chosen, rows = 0, 0
    for number, file in enumerate(rising):
        if number and file.rows <= GROWTH * rows and rows + file.rows <= MERGED_ROWS_MAX:
            chosen = number + 1
        rows += file.rows
    return tuple(rising[:chosen]) if chosen >= STRAGGLERS else ()


def bounded(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """No more rows at once than memory should hold."""
    rows, chosen = 0, list[DataFile]()
    for file in files:
        if rows + file.rows > MERGED_ROWS_MAX:
            break
        rows += file.rows
        chosen.append(file)
    return tuple(chosen) if len(chosen) > 1 else ()


def days_to_close(manifest: Manifest) -> list[str]:
    """Days whose files should move into a list of their own, so that the manifest stays small."""
    days = defaultdict(set)
    for file in manifest.files:
        days[file.hub].add(file.hour.day)
    return [f"{hub}/{day}" for hub, found in days.items() for day in sorted(found)[:-DAYS_INLINE]]


# -- to and from bytes


def to_bytes(manifest: Manifest) -> bytes:
    told = {"v": VERSION, **asdict(manifest)}
    return json.dumps(told, separators=(",", ":")).encode()


def from_bytes(told: bytes) -> Manifest:
    fields = opened(told)
    return Manifest(
        version=fields["version"],
        positions=fields["positions"],
        files=tuple(DataFile(**one) for one in fields["files"]),
        days=fields["days"],
        gone=tuple(RemovedFile(**one) for one in fields["gone"]),
    )


def day_to_bytes(files: Iterable[DataFile]) -> bytes:
    told = {"v": VERSION, "files": [asdict(file) for file in files]}
    return json.dumps(told, separators=(",", ":")).encode()


def day_from_bytes(told: bytes) -> tuple[DataFile, ...]:
    return tuple(DataFile(**one) for one in opened(told)["files"])


def opened(told: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(told)
    except ValueError as wrong:
        raise RecordsDamaged(f"the manifest of the records is no JSON: {wrong}") from None
    if not isinstance(fields, dict) or fields.get("v") != VERSION:
        raise RecordsDamaged("the manifest of the records is not of a version that this reads")
    return fields
