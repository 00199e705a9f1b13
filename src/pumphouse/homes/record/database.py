"""Stores records in a database: each batch, its sums and its positions in one transaction.

A batch is stored completely or not at all. A batch that Spark repeats after a crash is recognised
by its positions, and a reading that was sent twice by its identity. SQLite needs no
installation; PostgreSQL is for several readers and for more data than one disk holds.

    record -> Database.store -> activity, alerts, minutes, home_hours, positions
              ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.record import sums
from pumphouse.homes.record.alert_states import ALERT_TRACES, STORE_TRACE, set_recorded
from pumphouse.homes.record.connections import DatabaseConnection, connect
from pumphouse.homes.record.newest_values import add_to_sensor_minutes, set_sensor_values
from pumphouse.homes.record.positions import Positions, advanced, new_rows
from pumphouse.homes.record.recorded import NO_ROWS, StoredRows, TracedAlert
from pumphouse.homes.record.tables import (
    ACTIVITY,
    ALERTS,
    TABLES,
    Table,
    create_tables,
    stored_positions,
)

__all__ = ["Database", "DatabaseConnection", "StoreResult"]

NO_TRACES: Mapping[str, str] = {}
STORE_POSITION = (
    "INSERT INTO positions VALUES (?, ?, ?)"
    " ON CONFLICT (hub, partition) DO UPDATE SET following = excluded.following"
)
SELECT_TIMES = f"SELECT at FROM {ACTIVITY.staged}"
SELECT_ALERTS = f"SELECT kind, at, enqueued FROM {ALERTS.staged}"
SELECT_TRACED = (
    f"SELECT a.kind, t.trace, a.at, max(r.enqueued), a.enqueued FROM {ALERTS.staged} a"
    f" JOIN {ALERT_TRACES} t ON t.id = a.id LEFT JOIN {ACTIVITY.name} r"
    " ON r.home = a.home AND r.sensor = a.sensor AND r.at = a.at"
    " GROUP BY a.id, a.kind, t.trace, a.at, a.enqueued"
)
STORE_NEWEST = "INSERT INTO newest VALUES (?, ?) ON CONFLICT (hub) DO UPDATE SET at = excluded.at"


@dataclass(frozen=True, slots=True)
class StoreResult:
    """The rows of a batch, in numbers."""

    rows: int = 0  # after the stored positions
    duplicates: int = 0  # of these, rows that are stored already, and not stored a second time
    behind_watermark: int = 0  # of these, stored activities before the watermark
    stored: StoredRows = NO_ROWS  # only if the database reads them back


class Database:
    """Creates the tables and stores batches."""

    def __init__(self, connection: DatabaseConnection, kinds: Kinds = DEFAULT) -> None:
        self._connection, self._kinds = connection, kinds
        self.reads_back = False  # whether results have the stored rows, for metrics and traces
        create_tables(connection)

    def positions(self) -> Positions:
        return stored_positions(self._connection)

    def store(
        self,
        batch: Mapping[str, pa.Table],
        reached: Positions,
        at_ms: int | None = None,
        traces: Mapping[str, str] = NO_TRACES,
    ) -> StoreResult:
        """Store the new rows of each hub, and `reached` as the positions after them.

        `at_ms` is the current time, which is noted for each alert; `traces` has the contexts of
        some alerts, by their ids.
        """
        self._connection.begin()
        try:
            stored = self._store(batch, reached, at_ms, traces)
            self._connection.commit()
        except BaseException:
            self._connection.rollback()
            raise
        return stored

    def close(self) -> None:
        self._connection.close()

    # -- within the transaction

    def _store(
        self,
        batch: Mapping[str, pa.Table],
        reached: Positions,
        at_ms: int | None,
        traces: Mapping[str, str],
    ) -> StoreResult:
        before = self.positions()
        new = {hub: new_rows(rows, before.get(hub, {})) for hub, rows in batch.items()}
        results = [
            self._add(TABLES[hub], rows, at_ms) for hub, rows in new.items() if rows.num_rows
        ]
        self._store_positions(before, advanced(before, reached))
        if traces:
            self._connection.run_many(STORE_TRACE, list(traces.items()))
        return StoreResult(
            sum(result.rows for result in results),
            sum(result.duplicates for result in results),
            sum(result.behind_watermark for result in results),
            self._read_back([hub for hub, rows in new.items() if rows.num_rows]),
        )

    def _read_back(self, hubs: list[str]) -> StoredRows:
        """The rows that are staged, which are those that were inserted."""
        if not self.reads_back:
            return NO_ROWS
        activities, alerts = (
            self._connection.query(query) if table.name in hubs else []
            for table, query in ((ACTIVITY, SELECT_TIMES), (ALERTS, SELECT_ALERTS))
        )
        traced = self._connection.query(SELECT_TRACED) if alerts else []
        return StoredRows(
            [at for (at,) in activities],
            [(row[0], row[1], row[2]) for row in alerts],
            [TracedAlert(*row) for row in traced],
        )

    def _add(self, table: Table, rows: pa.Table, at_ms: int | None) -> StoreResult:
        self._connection.stage(table, rows.select(list(table.columns)))
        same_identity = " AND ".join(f"o.{name} = {table.staged}.{name}" for name in table.identity)
        is_stored = f"EXISTS (SELECT 1 FROM {table.name} o WHERE {same_identity})"
        self._connection.run(f"DELETE FROM {table.staged} WHERE {is_stored}")
        names = ", ".join(table.columns)
        insert = f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {table.staged}"
        added = self._connection.run(insert)
        behind = self._add_to_sums(table, rows) if table is ACTIVITY else 0
        if table is ALERTS:
            self._connection.run(set_recorded(table.staged, at_ms))
        return StoreResult(rows.num_rows, rows.num_rows - added, behind)

    def _add_to_sums(self, table: Table, rows: pa.Table) -> int:
        """Add the staged rows to the sums; returns the number of rows behind the watermark."""
        newest_rows = self._connection.query(f"SELECT at FROM newest WHERE hub = '{table.name}'")
        newest_ms = newest_rows[0][0] if newest_rows else None
        watermark_ms = sums.watermark(newest_ms)
        for sum_table in sums.TABLES:
            self._connection.run(sums.add_rows(sum_table, table.staged, watermark_ms, self._kinds))
        self._connection.run(add_to_sensor_minutes(table.staged))
        self._connection.run(set_sensor_values(table.staged))
        behind = self._connection.query(
            f"SELECT count(*) FROM {table.staged} WHERE at < {watermark_ms}"
        )
        at = max(newest_ms or 0, pc.max(rows["at"]).as_py())
        self._connection.run_many(STORE_NEWEST, [(table.name, at)])
        return int(behind[0][0])

    def _store_positions(self, before: Positions, after: Positions) -> None:
        changed = [
            (hub, partition, following)
            for hub, positions in after.items()
            for partition, following in positions.items()
            if before.get(hub, {}).get(partition) != following
        ]
        if changed:
            self._connection.run_many(STORE_POSITION, changed)


def open_database(url: str, kinds: Kinds = DEFAULT) -> Database:
    """Open sqlite:///PATH or PATH, or postgresql://USER:PASSWORD@HOST/NAME."""
    return Database(connect(url), kinds)
