"""The records in a database: a batch, its sums and its position in one transaction.

Either all of it is there or nothing; so a batch that comes again after a crash is recognised by the
position, and a reading that the stage before sent twice by its identity. SQLite needs nothing
installed; PostgreSQL is for several readers, and for more than one disk holds.

    record -> Database.store -> activity, alerts, minutes, home_hours, positions
              ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.errors import OptionError
from pumphouse.homes.record import sums as minutes
from pumphouse.homes.record.positions import Positions, advanced, new_rows
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB


@dataclass(frozen=True, slots=True)
class Table:
    """A table of rows as they came, named like their hub."""

    name: str
    columns: Mapping[str, str]
    identity: tuple[str, ...]  # what a repeat has in common with the first

    @property
    def staged(self) -> str:
        return f"staged_{self.name}"

    def definition(self) -> str:
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        return f"{columns}, PRIMARY KEY ({', '.join(self.identity)})"


ORIGIN = {"partition": "TEXT NOT NULL", "sequence": "BIGINT NOT NULL", "enqueued": "BIGINT"}
ACTIVITY = Table(
    ACTIVITY_HUB,
    {
        "home": "TEXT NOT NULL",
        "sensor": "TEXT NOT NULL",
        "seq": "BIGINT NOT NULL",
        "at": "BIGINT NOT NULL",
        "value": "DOUBLE PRECISION",
        "since": "BIGINT",
        "mode": "TEXT",
        "battery": "INTEGER",
        "fault": "TEXT",
        "why": "TEXT",
        "region": "TEXT",
        **ORIGIN,
    },
    # By time first: new rows then come close together in the tree.
    identity=("seq", "home", "sensor"),
)
ALERTS = Table(
    ALERTS_HUB,
    {
        "id": "TEXT NOT NULL",
        "home": "TEXT NOT NULL",
        "kind": "TEXT",
        "sensor": "TEXT",
        "at": "BIGINT NOT NULL",
        "since": "BIGINT",
        "region": "TEXT",
        "text": "TEXT",
        **ORIGIN,
    },
    identity=("id",),
)
TABLES = {table.name: table for table in (ACTIVITY, ALERTS)}
SCHEMA = (
    *(f"CREATE TABLE IF NOT EXISTS {one.name} ({one.definition()})" for one in TABLES.values()),
    f"CREATE INDEX IF NOT EXISTS activity_by_home ON {ACTIVITY_HUB} (home, at)",
    f"CREATE INDEX IF NOT EXISTS alerts_by_home ON {ALERTS_HUB} (home, at)",
    *(f"CREATE TABLE IF NOT EXISTS {one.table} ({one.columns})" for one in minutes.TABLES),
    "CREATE TABLE IF NOT EXISTS positions (hub TEXT NOT NULL, partition TEXT NOT NULL,"
    " following BIGINT NOT NULL, PRIMARY KEY (hub, partition))",
    "CREATE TABLE IF NOT EXISTS newest (hub TEXT NOT NULL PRIMARY KEY, at BIGINT NOT NULL)",
)
KEEP_POSITION = (
    "INSERT INTO positions VALUES (?, ?, ?)"
    " ON CONFLICT (hub, partition) DO UPDATE SET following = excluded.following"
)
KEEP_NEWEST = "INSERT INTO newest VALUES (?, ?) ON CONFLICT (hub) DO UPDATE SET at = excluded.at"


@dataclass(frozen=True, slots=True)
class StoreResult:
    """What became of a batch: rows of the hubs that are new, and of these the repeats and late."""

    rows: int = 0
    repeats: int = 0
    late: int = 0


class DatabaseConnection(Protocol):
    """What differs between databases; see sqlite.py and postgres.py beside this."""

    def begin(self) -> None:
        """A transaction in which nobody else stores."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def run(self, statement: str) -> int:
        """The number of rows that it changed."""

    def ask(self, query: str) -> list[tuple[Any, ...]]: ...

    def stage(self, table: Table, rows: pa.Table) -> int:
        """Rows into an empty table for this transaction, repeats among them dropped; how many."""

    def many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """The statement once for each row, in which a ? stands for each value."""


class Database:
    """The tables, and how a batch gets into them."""

    def __init__(self, connection: DatabaseConnection) -> None:
        self._connection = connection
        connection.begin()
        for statement in SCHEMA:
            connection.run(statement)
        connection.commit()

    def positions(self) -> Positions:
        found: dict[str, dict[str, int]] = {}
        for hub, partition, following in self._connection.ask("SELECT * FROM positions"):
            found.setdefault(hub, {})[partition] = following
        return found

    def store(self, batch: Mapping[str, pa.Table], reached: Positions) -> StoreResult:
        """Store the rows of each hub that are new, and that all up to `reached` are."""
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
        done = [self._add(TABLES[hub], rows) for hub, rows in new.items() if rows.num_rows]
        self._move_on(before, advanced(before, reached))
        return StoreResult(
            sum(one.rows for one in done),
            sum(one.repeats for one in done),
            sum(one.late for one in done),
        )

    def _add(self, table: Table, rows: pa.Table) -> StoreResult:
        self._connection.stage(table, rows.select(list(table.columns)))
        same = " AND ".join(f"o.{name} = {table.staged}.{name}" for name in table.identity)
        known = f"EXISTS (SELECT 1 FROM {table.name} o WHERE {same})"
        self._connection.run(f"DELETE FROM {table.staged} WHERE {known}")
        names = ", ".join(table.columns)
        copied = f"INSERT INTO {table.name} ({names}) SELECT {names} FROM {table.staged}"
        added = self._connection.run(copied)
        late = self._add_to_sums(table, rows) if table is ACTIVITY else 0
        return StoreResult(rows.num_rows, rows.num_rows - added, late)

    def _add_to_sums(self, table: Table, rows: pa.Table) -> int:
        """How many were late."""
        newest = self._connection.ask(f"SELECT at FROM newest WHERE hub = '{table.name}'")
        known = newest[0][0] if newest else None
        mark = minutes.watermark(known)
        for sums in minutes.TABLES:
            self._connection.run(minutes.add_rows(sums, table.staged, mark))
        late = self._connection.ask(f"SELECT count(*) FROM {table.staged} WHERE at < {mark}")
        at = max(known or 0, pc.max(rows["at"]).as_py())
        self._connection.many(KEEP_NEWEST, [(table.name, at)])
        return int(late[0][0])

    def _move_on(self, before: Positions, after: Positions) -> None:
        moved = [
            (hub, partition, following)
            for hub, found in after.items()
            for partition, following in found.items()
            if before.get(hub, {}).get(partition) != following
        ]
        if moved:
            self._connection.many(KEEP_POSITION, moved)


def open_database(url: str) -> Database:
    """sqlite:///PATH or PATH, or postgresql://USER:PASSWORD@HOST/NAME."""
    if url.startswith(("postgresql:", "postgres:")):
        from pumphouse.homes.record.postgres import PostgresConnection

        return Database(PostgresConnection(url))
    from pumphouse.homes.record.sqlite import SqliteConnection
    from pumphouse.leases.store_url import parse_store_url

    try:
        place = parse_store_url(url)
    except OptionError:  # which would tell of stores that are no databases
        raise no_database("this") from None
    if place.kind != "sqlite":
        raise no_database(f"{place.kind}:")
    return Database(SqliteConnection(place.path))


def no_database(kind: str) -> OptionError:
    return OptionError(f"{kind} names no database; use sqlite:///PATH or postgresql://HOST/NAME")
