"""The records as Parquet files by date and hour, each row exactly once.

Files are written first, under unique names. A file becomes part of the records when a manifest that
names it replaces the previous manifest. A crash can leave files that no manifest names; they are
deleted later. Files that a merge replaced are kept for a while, for readers of an older manifest.

    record -> Archive.append -> files -> manifest        Snapshot.files -> readers
              ^^^^^^^^^^^^^^ this module                  ^^^^^^^^^^^^^^ and this
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pumphouse.errors import RecordsDamaged
from pumphouse.homes.record import manifest as manifests
from pumphouse.homes.record.folder import Folder, open_folder
from pumphouse.homes.record.manifest import DataFile, Hour, Manifest
from pumphouse.homes.record.positions import BatchId, Positions, new_rows
from pumphouse.homes.schema import HOUR_MS
from pumphouse.logs import line

log = logging.getLogger("pumphouse.homes")

MANIFEST = "_manifest.json"
GRACE_MS = 10 * 60_000  # how long a reader may use a manifest
AT = "at"


class Archive:
    """The records in a folder, for one writer."""

    def __init__(
        self,
        folder: Folder,
        now_ms: Callable[[], int],
        writer: str = "",
        grace_ms: int = GRACE_MS,
    ) -> None:
        self.folder = folder
        self._now_ms = now_ms
        self._writer = writer or secrets.token_hex(3)
        self._grace_ms = grace_ms
        self._manifest, self._tag = read_manifest(folder)

    @property
    def positions(self) -> Positions:
        return self._manifest.positions

    def append(
        self, batch: Mapping[str, pa.Table], reached: Positions, batch_id: BatchId | None = None
    ) -> int:
        """Store the new rows of each hub, and `reached` as the positions after them. All rows must
        have an event time. Returns the number of rows stored. The positions are enough to find a
        repeated batch."""
        parts = [
            (Hour(hub, start), rows)
            for hub, table in batch.items()
            for start, rows in by_hour(new_rows(table, self.positions.get(hub, {})))
        ]
        files = [self._write(hour, rows) for hour, rows in parts]
        after = self._manifest.with_batch(files, reached)
        if files or after.positions != self.positions:
            self._commit(after)
        return sum(file.rows for file in files)

    def tidy(self) -> int:
        """Merge small files and delete files that no reader uses any more. Returns the number
        of merges."""
        plans = manifests.plan_merges(self._manifest.files)
        for parts in plans:
            self._merge(parts)
        for day in manifests.days_to_close(self._manifest):
            self._close_day(day)
        self._delete_removed()
        return len(plans)

    def sweep(self) -> int:
        """Delete old files that no manifest names, left by a crash. Returns their number."""
        named = {file.name for file in Snapshot(self.folder, self._manifest).all_files()}
        named |= {removed.name for removed in self._manifest.gone} | set(
            self._manifest.days.values()
        )
        before = self._now_ms() - self._grace_ms
        orphans = [
            file.name
            for file in self.folder.list("")
            if file.name.endswith(".parquet")
            and file.name not in named
            and file.written_ms < before
        ]
        for name in orphans:
            self.folder.delete(name)
        return len(orphans)

    def _write(self, hour: Hour, rows: pa.Table) -> DataFile:
        name = manifests.file_name(hour, self._manifest.version + 1, self._writer)
        data = to_parquet(rows)
        self.folder.write(name, data)
        return DataFile(name, hour.hub, hour.start_ms, rows.num_rows, len(data))

    def _commit(self, after: Manifest) -> None:
        self._tag = self.folder.replace(MANIFEST, manifests.to_bytes(after), self._tag)
        self._manifest = after

    def _merge(self, parts: Sequence[DataFile]) -> None:
        rows = pa.concat_tables([read_rows(self.folder, part) for part in parts])
        # Rows of a home are adjacent: they compress well, and a reader of one home skips the rest.
        merged = self._write(
            parts[0].hour, rows.sort_by([("home", "ascending"), (AT, "ascending")])
        )
        self._commit(self._manifest.with_merge(merged, parts, self._now_ms()))
        hour, files = merged.hour.folder, len(parts)
        log.debug("%s", line("files_merged", hour=hour, files=files, rows=merged.rows))

    def _close_day(self, day: str) -> None:
        """Move the list of a day's files from the manifest to a file of its own."""
        files = [file for file in self._manifest.files if manifests.day_of(file) == day]
        if earlier := self._manifest.days.get(day):
            files = [*read_day(self.folder, earlier), *files]
        name = f"_days/{day}-{self._manifest.version + 1:012d}-{self._writer}.json"
        self.folder.write(name, manifests.day_to_bytes(files))
        self._commit(self._manifest.with_day(day, name, self._now_ms()))

    def _delete_removed(self) -> None:
        before = self._now_ms() - self._grace_ms
        names = {file.name for file in self._manifest.gone if file.since_ms <= before}
        for name in names:
            self.folder.delete(name)
        if names:
            self._commit(self._manifest.without_gone(names))


class Snapshot:
    """A consistent view of the records: the files that one manifest names."""

    def __init__(self, folder: Folder, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest

    @property
    def positions(self) -> Positions:
        return self.manifest.positions

    def all_files(self) -> list[DataFile]:
        closed = [read_day(self.folder, name) for name in self.manifest.days.values()]
        return [*self.manifest.files, *(file for files in closed for file in files)]

    def files(self, hub: str, from_ms: int = 0, to_ms: int | None = None) -> list[DataFile]:
        """The files of a hub whose hour overlaps the time from `from_ms` to `to_ms`."""
        end = to_ms if to_ms is not None else 1 << 62
        return [
            file
            for file in self.all_files()
            if file.hub == hub and file.hour_ms < end and file.hour_ms + HOUR_MS > from_ms
        ]

    def table(self, hub: str, from_ms: int = 0, to_ms: int | None = None) -> pa.Table | None:
        """The rows of these files; None if there are no files."""
        tables = [read_rows(self.folder, file) for file in self.files(hub, from_ms, to_ms)]
        return pa.concat_tables(tables) if tables else None


def snapshot(location: str | Path, credential: Any = None) -> Snapshot:
    """The records in a folder, blob://ACCOUNT/CONTAINER, or a storage connection string."""
    folder = open_folder(location, credential)
    return Snapshot(folder, read_manifest(folder)[0])


def read_manifest(folder: Folder) -> tuple[Manifest, str | None]:
    """The manifest and its tag; an empty manifest and None if there is none yet."""
    stored = folder.read(MANIFEST)
    if stored is None:
        return Manifest(), None
    return manifests.from_bytes(stored[0]), stored[1]


def read_day(folder: Folder, name: str) -> Iterable[DataFile]:
    return manifests.day_from_bytes(read_whole(folder, name))


def read_rows(folder: Folder, file: DataFile) -> pa.Table:
    return pq.read_table(BytesIO(read_whole(folder, file.name)), partitioning=None)


def read_whole(folder: Folder, name: str) -> bytes:
    stored = folder.read(name)
    if stored is None:
        raise RecordsDamaged(
            f"{name} is missing, although the manifest of {folder} names it: restore the file from "
            "a backup"
        )
    return stored[0]


def to_parquet(rows: pa.Table) -> bytes:
    buffer = BytesIO()
    pq.write_table(rows, buffer, compression="zstd")
    return buffer.getvalue()


def by_hour(rows: pa.Table) -> list[tuple[int, pa.Table]]:
    """The rows of each hour of event time, with the start of the hour."""
    if not rows.num_rows:
        return []
    hours = rows[AT].cast(pa.int64()).to_numpy() // HOUR_MS
    starts, inverse = np.unique(hours, return_inverse=True)
    if len(starts) == 1:
        return [(int(starts[0]) * HOUR_MS, rows)]
    return [
        (int(start) * HOUR_MS, rows.filter(pa.array(inverse == number)))
        for number, start in enumerate(starts)
    ]
