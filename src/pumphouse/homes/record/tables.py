"""The tables of the records, one per hub and with its name, and the statements to create them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from pumphouse.homes.record import alert_states, newest_values, sums
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB

if TYPE_CHECKING:
    from pumphouse.homes.record.positions import Positions


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the records of one hub."""

    name: str
    columns: Mapping[str, str]
    identity: tuple[str, ...]  # the columns that are equal in duplicates

    @property
    def staged(self) -> str:
        """The name of the temporary table into which a batch is loaded first."""
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
    # seq grows with time. It comes first, so that new rows are adjacent in the index.
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
    *(
        f"CREATE TABLE IF NOT EXISTS {table.name} ({table.definition()})"
        for table in TABLES.values()
    ),
    f"CREATE INDEX IF NOT EXISTS activity_by_home ON {ACTIVITY_HUB} (home, at)",
    f"CREATE INDEX IF NOT EXISTS alerts_by_home ON {ALERTS_HUB} (home, at)",
    *(f"CREATE TABLE IF NOT EXISTS {table.table} ({table.columns})" for table in sums.TABLES),
    "CREATE TABLE IF NOT EXISTS positions (hub TEXT NOT NULL, partition TEXT NOT NULL,"
    " following BIGINT NOT NULL, PRIMARY KEY (hub, partition))",
    "CREATE TABLE IF NOT EXISTS newest (hub TEXT NOT NULL PRIMARY KEY, at BIGINT NOT NULL)",
    *alert_states.CREATE,
    *newest_values.CREATE,
    *newest_values.FILL,
)


class SchemaConnection(Protocol):
    """The part of a connection that is needed to create tables."""

    def begin(self) -> None: ...

    def commit(self) -> None: ...

    def run(self, statement: str) -> int: ...

    def query(self, query: str) -> list[tuple[Any, ...]]: ...


def create_tables(connection: SchemaConnection) -> None:
    """Create the tables that do not exist; those that an earlier version lacks are filled."""
    connection.begin()
    for statement in SCHEMA:
        connection.run(statement)
    connection.commit()


def stored_positions(connection: SchemaConnection) -> Positions:
    """The position after the stored events, by hub and partition."""
    positions: dict[str, dict[str, int]] = {}
    for hub, partition, following in connection.query("SELECT * FROM positions"):
        positions.setdefault(hub, {})[partition] = following
    return positions
