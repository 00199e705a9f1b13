"""Connections to the database of the records: the interface, and which one a URL names.

This module needs neither pyarrow nor psycopg, so that a program can read the records without them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pumphouse.errors import OptionError, PumphouseError
from pumphouse.homes.record.tables import Table
from pumphouse.leases.store_url import parse_store_url

if TYPE_CHECKING:
    import pyarrow as pa


class DatabaseConnection(Protocol):
    """A connection to a database; the implementations are in sqlite.py and postgres.py."""

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """What a statement raises if the database refuses it or does not respond."""

    def begin(self) -> None:
        """Start a transaction that excludes other writers."""

    def begin_reading(self) -> None:
        """Start a transaction whose queries all see the same state of the database."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...

    def run(self, statement: str) -> int:
        """Run a statement; returns the number of changed rows."""

    def query(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, which has a ? for each value."""

    def stage(self, table: Table, rows: pa.Table) -> int:
        """Empty the staging table, and write the rows to it without duplicates.

        Returns the number of rows written.
        """

    def run_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        """Run a statement once for each row, with a ? for each value."""


def connect(url: str, *, create: bool = True) -> DatabaseConnection:
    """Connect to sqlite:///PATH or PATH, or postgresql://USER:PASSWORD@HOST/NAME.

    Without `create`, an SQLite file that does not exist is an error.
    """
    # The drivers are imported here, because psycopg is an optional package.
    if url.startswith(("postgresql:", "postgres:")):
        from pumphouse.homes.record.postgres import PostgresConnection

        return PostgresConnection(url)
    from pumphouse.homes.record.sqlite import SqliteConnection

    path = sqlite_path(url)
    if not create and not Path(path).exists():
        raise PumphouseError(f"{path} does not exist yet; `pumphouse homes run` writes it")
    return SqliteConnection(path)


def sqlite_path(url: str) -> str:
    try:
        location = parse_store_url(url)
    except OptionError:  # the text of this error lists lease stores, not databases
        raise unsupported_database("") from None
    if location.kind != "sqlite":
        raise unsupported_database(f" {location.kind}:")
    return location.path


def unsupported_database(kind: str) -> OptionError:
    return OptionError(f"unsupported database{kind}: use sqlite:///PATH or postgresql://HOST/NAME")
