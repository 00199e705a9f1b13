"""The records in a database: a batch, its sums and its positions in one transaction.

A batch is stored completely or not at all. A batch that Spark repeats after a crash is recognised
by its positions, and a reading that was sent twice by its identity. SQLite needs no
installation; PostgreSQL is for several readers and for more data than one disk holds.

    record -> Database.store -> activity, alerts, minutes, home_hours, positions
              ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.homes.record import sums
from pumphouse.homes.record.positions import Positions, advanced, new_rows
from pumphouse.homes.record.tables import ACTIVITY, SCHEMA, TABLES, Table

STORE_POSITION = (
    "INSERT INTO positions VALUES (?, ?, ?)"
    " ON CONFLICT (hub, partition) DO UPDATE SET following = excluded.following"
)
STORE_NEWEST = "INSERT INTO newest VALUES (?, ?) ON CONFLICT (hub) DO UPDATE SET at = excluded.at"


@dataclass(frozen=True, slots=True)
class StoreResult:
    """The new rows of a batch, and how many of them are duplicates and late."""

    rows: int = 0
    repeats: int = 0
    late: int = 0


class DatabaseConnection(Protocol):
    """A connection to a database; the implementations are in sqlite.py and postgres.py."""

    def begin(self) -> None:
        """Start a transaction that excludes other writers."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def run(self, statement: str) -> int:
        """Run a statement; returns the number of changed rows."""

    def query(self, query: str) -> list[tuple[Any, ...]]: ...

    def stage(self, table: Table, rows: pa.Table) -> int:
        """Write the rows, without duplicates, to the empty staging table of this transaction.

        Returns their number.
        """

    def run_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a statement once for each row, with a ? for each value."""


class Database:
    """Creates the tables and stores batches."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        connection.begin()
        for statement in SCHEMA:
            connection.run(statement)
        connection.commit()

    def positions(self) -> Positions:
        positions: dict[str, dict[str, int]] = {}
        for hub, partition, following in self._connection.query("SELECT * FROM positions"):
            positions.setdefault(hub, {})[partition] = following
        return positions

    def store(self, batch: Mapping[str, pa.Table], reached: Positions) -> StoreResult:
        """Store the new rows of each hub, and `reached` as the positions after them."""
        self._connection.begin()
        try:
            stored = self._store(batch, reached)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        return stored

    def close(self) -> None:
        self._connection.close()

    # -- within the transaction

    def _store(self, batch: Mapping[str, pa.Table], reached: Positions) -> StoreResult:
        before = self.positions()
        new = {hub: new_rows(rows, before.get(hub, {})) for hub, rows in batch.items()}
        results = [self._add(TABLES[hub], rows) for hub, rows in new.items() if rows.num_rows]
        self._store_positions(before, advanced(before, reached))
        return StoreResult(
            sum(result.rows for result in results),
            sum(result.repeats for result in results),
            sum(result.late for result in results),
        )

    def _add(self, table: Table, rows: pa.Table) -> StoreResult:
        self._connection.stage(table, rows.select(list(table.columns)))
        same_identity = " AND ".join(f"o.{name} = {table.staged}.{name}" for name in table.identity)
        is_stored = f"EXISTS (SELECT 1 FROM {table.name} o WHERE {same_identity})"
        self._connection.run(f"DELETE FROM {table.staged} WHERE {is_stored}")
        names = ", ".join(table.columns)
        insert = f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {table.staged}"
        added = self._connection.run(insert)
        late = self._add_to_sums(table, rows) if table is ACTIVITY else 0
        return StoreResult(rows.num_rows, rows.num_rows - added, late)

    def _add_to_sums(self, table: Table, rows: pa.Table) -> int:
        """Add the staged rows to the sums; returns the number of late rows."""
        newest_rows = self._connection.query(f"SELECT at FROM newest WHERE hub = '{table.name}'")
        newest_ms = newest_rows[0][0] if newest_rows else None
        watermark_ms = sums.watermark(newest_ms)
        for sum_table in sums.TABLES:
            self._connection.run(sums.add_rows(sum_table, table.staged, watermark_ms))
        late_rows = self._connection.query(
            f"SELECT count(*) FROM {table.staged} WHERE at < {watermark_ms}"
        )
        at = max(newest_ms or 0, pc.max(rows["at"]).as_py())
        self._connection.run_many(STORE_NEWEST, [(table.name, at)])
        return int(late_rows[0][0])

    def _store_positions(self, before: Positions, after: Positions) -> None:
        changed = [
            (hub, partition, following)
            for hub, positions in after.items()
            for partition, following in positions.items()
            if before.get(hub, {}).get(partition) != following
        ]
        if changed:
            self._connection.run_many(STORE_POSITION, changed)
