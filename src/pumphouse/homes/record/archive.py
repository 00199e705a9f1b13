"""The records as Parquet files by date and hour, each row in them exactly once.

Files are written first, under names that are nobody else's, and count from the moment in which the
manifest that names them replaces the one before. A crash leaves files that nobody reads; they are
swept later. What a merge replaced stays for a while, for readers that hold an older manifest.

    record -> Archive.append -> files -> manifest        Snapshot.files <- whoever reads
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
from pumphouse.homes.record.positions import Positions, new_rows
from pumphouse.homes.schema import HOUR_MS

log = logging.getLogger("pumphouse.homes")

MANIFEST = "_manifest.json"
GRACE_MS = 10 * 60_000  # how long a reader may take from the manifest to the last file
AT = "at"


class Archive:
    """One writer's view of the records in a folder."""

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

    def append(self, batch: Mapping[str, pa.Table], reached: Positions) -> int:
        """Store the rows of each hub that are new, and that all up to `reached` are; how many.

        Rows with no event time belong to no hour: the caller has left them out.
        """
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
        """Merge what should be merged, and remove what nobody can want any more; merges done."""
        plans = manifests.plan_merges(self._manifest.files)
        for parts in plans:
            self._merge(parts)
        for day in manifests.days_to_close(self._manifest):
            self._close_day(day)
        self._remove_gone()
        return len(plans)

    def sweep(self) -> int:
        """Remove files that a crash left behind: old enough, and not named; how many."""
        named = {file.name for file in snapshot_of(self.folder, self._manifest).all_files()}
        named |= {one.name for one in self._manifest.gone} | set(self._manifest.days.values())
        before = self._now_ms() - self._grace_ms
        left = [
            found.name
            for found in self.folder.list("")
            if found.name.endswith(".parquet")
            and found.name not in named
            and found.written_ms < before
        ]
        for name in left:
            self.folder.delete(name)
        return len(left)

    # -- how

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
        # A home's rows side by side: they compress well, and a reader of one home skips the rest.
        merged = self._write(
            parts[0].hour, rows.sort_by([("home", "ascending"), (AT, "ascending")])
        )
        self._commit(self._manifest.with_merge(merged, parts, self._now_ms()))
        log.debug("merge hour=%s files=%d rows=%d", merged.hour.folder, len(parts), merged.rows)

    def _close_day(self, day: str) -> None:
        files = [file for file in self._manifest.files if manifests.day_of(file) == day]
        if earlier := self._manifest.days.get(day):
            files = [*read_day(self.folder, earlier), *files]
        name = f"_days/{day}-{self._manifest.version + 1:012d}-{self._writer}.json"
        self.folder.write(name, manifests.day_to_bytes(files))
        self._commit(self._manifest.with_day(day, name, self._now_ms()))

    def _remove_gone(self) -> None:
        before = self._now_ms() - self._grace_ms
        names = {one.name for one in self._manifest.gone if one.since_ms <= before}
        for name in names:
            self.folder.delete(name)
        if names:
            self._commit(self._manifest.without_gone(names))


class Snapshot:
    """The records as they were when it was taken."""

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
        """Those with rows of a hub whose hour touches this time."""
        end = to_ms if to_ms is not None else 1 << 62
        return [
            file
            for file in self.all_files()
            if file.hub == hub and file.hour_ms < end and file.hour_ms + HOUR_MS > from_ms
        ]

    def table(self, hub: str, from_ms: int = 0, to_ms: int | None = None) -> pa.Table | None:
        """Their rows; None if there is no file."""
        found = [read_rows(self.folder, file) for file in self.files(hub, from_ms, to_ms)]
        return pa.concat_tables(found) if found else None


def snapshot(place: str | Path, credential: Any = None) -> Snapshot:
    """The records in a folder, blob://ACCOUNT/CONTAINER, or a storage connection string."""
    folder = open_folder(place, credential)
    return snapshot_of(folder, read_manifest(folder)[0])


def snapshot_of(folder: Folder, manifest: Manifest) -> Snapshot:
    return Snapshot(folder, manifest)


def read_manifest(folder: Folder) -> tuple[Manifest, str | None]:
    found = folder.read(MANIFEST)
    if found is None:
        return Manifest(), None
    return manifests.from_bytes(found[0]), found[1]


def read_day(folder: Folder, name: str) -> Iterable[DataFile]:
    return manifests.day_from_bytes(read_whole(folder, name))


def read_rows(folder: Folder, file: DataFile) -> pa.Table:
    return pq.read_table(BytesIO(read_whole(folder, file.name)), partitioning=None)


def read_whole(folder: Folder, name: str) -> bytes:
    found = folder.read(name)
    if found is None:
        raise RecordsDamaged(f"{name} is named in the manifest of {folder} and is not there")
    return found[0]


def to_parquet(rows: pa.Table) -> bytes:
    into = BytesIO()
    pq.write_table(rows, into, compression="zstd")
    return into.getvalue()


def by_hour(rows: pa.Table) -> list[tuple[int, pa.Table]]:
    """The rows of each hour of event time, with when it began."""
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
