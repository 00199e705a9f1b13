"""The records as Delta tables, one for each hub, each row exactly once. Needs the extra `delta`.

A commit of a table has its rows and, as versions of applications, the positions after them: both
become visible together. So a batch that Spark repeats adds only what is missing, after any crash
and with a new checkpoint too. If a second writer has not stopped, the commit of one of them fails.

    record -> DeltaArchive.append -> rows, (application, version) -> one commit of each table
              ^^^^^^^^^^^^^^^^^^^ this module

| application              | version                                       |
|--------------------------|-----------------------------------------------|
| pumphouse/HUB/PARTITION  | the next sequence number of the partition     |
| pumphouse/query/ID       | the last batch of the query with a checkpoint |
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.errors import OptionError
from pumphouse.homes.record.folder import LocalFolder, is_local
from pumphouse.homes.record.positions import BatchId, Positions, new_rows
from pumphouse.logs import line
from pumphouse.private_files import create_private_folder

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger("pumphouse.homes")

PARQUET_MANIFEST = "_manifest.json"
COMPACT_EVERY = 8  # calls of `tidy` between two merges of files
DATE = "date"  # the partition column: the day of the event time, UTC


class DeltaArchive:
    """Delta tables in a folder, for one writer."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[str, DeltaTable] = {}
        self._calls = 0

    def append(
        self, batch: Mapping[str, pa.Table], reached: Positions, batch_id: BatchId | None = None
    ) -> int:
        """Store the new rows of each hub, and `reached` as the positions after them. All rows must
        have an event time. Returns the number of rows stored."""
        return sum(
            self._append(hub, rows, reached.get(hub, {}), batch_id) for hub, rows in batch.items()
        )

    def tidy(self) -> int:
        """Merge small files, now and then. Returns the number of merged files."""
        self._calls += 1
        if self._calls % COMPACT_EVERY:
            return 0
        return sum(self._compact(hub, table) for hub, table in list(self._tables.items()))

    def sweep(self) -> int:
        """Delete files that no version of the last week uses. Returns their number."""
        tables = [open_table(self._folder / hub) for hub in table_names(self._folder)]
        return sum(len(table.vacuum(dry_run=False)) for table in tables)

    def _append(
        self, hub: str, rows: pa.Table, reached: Mapping[str, int], batch_id: BatchId | None
    ) -> int:
        table = self._current(hub)
        if table is not None and batch_id is not None:
            last = table.transaction_version(batch_id.application)
            if last is not None and last >= batch_id.number:
                return 0
        before = {} if table is None else positions_of(table, hub, reached)
        new = new_rows(rows, before)
        after = {name: max(next_, before.get(name, 0)) for name, next_ in reached.items()}
        if new.num_rows or after != before:
            self._commit(hub, table, new, after, batch_id)
        return int(new.num_rows)

    def _commit(
        self,
        hub: str,
        table: DeltaTable | None,
        rows: pa.Table,
        positions: Mapping[str, int],
        batch_id: BatchId | None,
    ) -> None:
        from deltalake import CommitProperties, Transaction, write_deltalake

        versions = [Transaction(application(hub, name), at) for name, at in positions.items()]
        if batch_id is not None:
            versions.append(Transaction(batch_id.application, batch_id.number))
        path = self._folder / hub
        create_private_folder(path)  # Delta Lake creates files that others may read
        write_deltalake(
            path if table is None else table,
            with_date(rows),
            mode="append",
            partition_by=[DATE],
            commit_properties=CommitProperties(app_transactions=versions),
        )

    def _current(self, hub: str) -> DeltaTable | None:
        """The newest version of a table; None before its first commit."""
        table = self._tables.get(hub)
        if table is not None:
            table.update_incremental()
            return table
        if hub not in table_names(self._folder):
            return None
        return self._tables.setdefault(hub, open_table(self._folder / hub))

    def _compact(self, hub: str, table: DeltaTable) -> int:
        table.update_incremental()
        merged = int(table.optimize.compact()["numFilesRemoved"])
        log.debug("%s", line("files_merged", table=hub, files=merged))
        return merged


def open_delta(location: str) -> DeltaArchive:
    """The tables in a folder of this machine. Raises OptionError if they cannot be written."""
    try:
        import deltalake  # noqa: F401
    except ImportError:
        raise OptionError(
            "the storage format delta needs the package deltalake: pip install 'pumphouse[delta]'"
        ) from None
    if not is_local(location):
        raise OptionError("the storage format delta needs --storage with a folder of this machine")
    folder = LocalFolder(Path(location))
    if folder.read(PARQUET_MANIFEST) is not None:
        raise OptionError(
            f"{folder} has Parquet files of the format parquet: choose another with --storage"
        )
    return DeltaArchive(folder.root)


def open_table(path: Path) -> DeltaTable:
    from deltalake import DeltaTable

    return DeltaTable(path)


def table_names(folder: Path) -> list[str]:
    """The hubs whose tables have a commit."""
    return sorted(path.parent.name for path in folder.glob("*/_delta_log") if any(path.iterdir()))


def application(hub: str, partition: str) -> str:
    return f"pumphouse/{hub}/{partition}"


def positions_of(table: DeltaTable, hub: str, partitions: Mapping[str, int]) -> dict[str, int]:
    """The stored positions of some partitions."""
    stored = {name: table.transaction_version(application(hub, name)) for name in partitions}
    return {name: position for name, position in stored.items() if position is not None}


def with_date(rows: pa.Table) -> pa.Table:
    times = rows["at"].cast(pa.timestamp("ms"))
    return rows.append_column(DATE, pc.strftime(times, "%Y-%m-%d"))
