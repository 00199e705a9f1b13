"""The manifest of the archive: which files hold which rows, and which files to merge.

A manifest names every file of the archive, and the positions of the hubs up to which rows are in
them. It is replaced as a whole: a reader finds each row exactly once, before, during and after a
merge, and after any crash. Rows are in folders by the hour of their event time:

    activity/date=2026-11-15/hour=09/000000000042-k3f9.parquet

Small files are merged in tiers of similar size, so that a row is rewritten only a few times. A tier
of an hour is merged when it has FAN files. After the hour has passed, its remaining small files are
merged.

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
FAN = 16  # an hour with this many files of similar size is merged
STRAGGLERS = 4  # a past hour with this many small files is merged
# A file is merged only if the smaller files have at least 1/GROWTH of its rows in total.
GROWTH = 4
MERGED_ROWS_MAX = 2_000_000
SETTLED_AFTER_MS = HOUR_MS  # an hour is past when events are this much newer than its end
DAYS_INLINE = 2  # the files of older days are in a separate list


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
    """A file that is no longer in use, kept for readers of an older manifest."""

    name: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """All files of the archive. `days` names the lists of files of past days: hub/date -> list.

    The fields of this and the nested classes are the keys of the stored JSON.
    """

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
        """The manifest with the merged file instead of its parts."""
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
        """The manifest with the files of a day in the list `name`, which is written already."""
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
        kept = tuple(file for file in self.gone if file.name not in names)
        return replace(self, version=self.version + 1, gone=kept)


def moment(ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)


def day_of(file: DataFile) -> str:
    return f"{file.hub}/{file.hour.day}"


def file_name(hour: Hour, version: int, writer: str) -> str:
    """A unique name: the version is unique for its writer, and both are in the name."""
    return f"{hour.folder}/{version:012d}-{writer}.parquet"


# -- merging


def plan_merges(files: Iterable[DataFile]) -> list[tuple[DataFile, ...]]:
    """The groups of files to merge, in order of their hours."""
    by_hour: dict[Hour, list[DataFile]] = defaultdict(list)
    for file in files:
        by_hour[file.hour].append(file)
    newest: dict[str, int] = {}
    for hour in by_hour:
        newest[hour.hub] = max(newest.get(hour.hub, 0), hour.start_ms)
    plans = []
    for hour in sorted(by_hour):
        past = hour.start_ms + HOUR_MS + SETTLED_AFTER_MS <= newest[hour.hub]
        ascending = sorted(by_hour[hour], key=lambda file: (file.rows, file.name))
        group = stragglers(ascending) if past else full_tier(ascending)
        if group:
            plans.append(group)
    return plans


def full_tier(ascending: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """FAN or more files of similar size, or no files."""
    tiers: dict[int, list[DataFile]] = defaultdict(list)
    for file in ascending:
        # Tiers are powers of 16: each merge moves rows one tier up.
        tiers[(max(1, file.rows).bit_length() - 1) // 4].append(file)
    full_tiers = [files for files in tiers.values() if len(files) >= FAN]
    return bounded(min(full_tiers, key=lambda files: files[0].rows)) if full_tiers else ()


def stragglers(ascending: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """The small files of a past hour, if there are enough for a merge: late rows arrive in small
    files for days."""
    chosen_count, rows = 0, 0
    for index, file in enumerate(ascending):
        if index and file.rows <= GROWTH * rows and rows + file.rows <= MERGED_ROWS_MAX:
            chosen_count = index + 1
        rows += file.rows
    return tuple(ascending[:chosen_count]) if chosen_count >= STRAGGLERS else ()


def bounded(files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """The first files, with at most MERGED_ROWS_MAX rows in total: they must fit into memory."""
    rows, chosen = 0, list[DataFile]()
    for file in files:
        if rows + file.rows > MERGED_ROWS_MAX:
            break
        rows += file.rows
        chosen.append(file)
    return tuple(chosen) if len(chosen) > 1 else ()


def days_to_close(manifest: Manifest) -> list[str]:
    """The days whose files move to a separate list, so that the manifest stays small."""
    days = defaultdict(set)
    for file in manifest.files:
        days[file.hub].add(file.hour.day)
    return [f"{hub}/{day}" for hub, dates in days.items() for day in sorted(dates)[:-DAYS_INLINE]]


# -- encoding and decoding


def to_bytes(manifest: Manifest) -> bytes:
    fields = {"v": VERSION, **asdict(manifest)}
    return json.dumps(fields, separators=(",", ":")).encode()


def from_bytes(data: bytes) -> Manifest:
    fields = decoded(data)
    return Manifest(
        version=fields["version"],
        positions=fields["positions"],
        files=tuple(DataFile(**file) for file in fields["files"]),
        days=fields["days"],
        gone=tuple(RemovedFile(**file) for file in fields["gone"]),
    )


def day_to_bytes(files: Iterable[DataFile]) -> bytes:
    fields = {"v": VERSION, "files": [asdict(file) for file in files]}
    return json.dumps(fields, separators=(",", ":")).encode()


def day_from_bytes(data: bytes) -> tuple[DataFile, ...]:
    return tuple(DataFile(**file) for file in decoded(data)["files"])


def decoded(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise RecordsDamaged(
            f"the manifest of the records is not valid JSON: {error}. Restore it from a backup, or "
            "record into another folder"
        ) from None
    if not isinstance(fields, dict) or fields.get("v") != VERSION:
        version = fields.get("v") if isinstance(fields, dict) else None
        raise RecordsDamaged(
            f"the manifest of the records has version {version}, expected {VERSION}: upgrade "
            "pumphouse"
        )
    return fields
