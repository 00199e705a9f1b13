"""The records in an SQLite file: nothing to install, one machine."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa

from pumphouse.errors import OptionError
from pumphouse.homes.record.database import Table

BUSY_S = 30.0  # somebody may be reading, or have an earlier batch in hand


class SqliteConnection:
    """A file, in the mode in which readers and the writer do not wait for each other."""

    def __init__(self, path: str) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Spark calls from threads of its own, one at a time.
            self._file = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
        except (OSError, sqlite3.Error) as failed:
            raise OptionError(f"{path} cannot be used as a database: {failed}") from None
        self._file.execute("PRAGMA synchronous=FULL")
        self._staged: set[str] = set()

    def begin(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._file.execute("COMMIT")

    def rollback(self) -> None:
        if self._file.in_transaction:
            self._file.execute("ROLLBACK")

    def close(self) -> None:
        self._file.close()

    def run(self, statement: str) -> int:
        return self._file.execute(statement).rowcount

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return self._file.execute(query).fetchall()

    def stage(self, table: Table, rows: pa.Table) -> int:
        self._file.execute(f"CREATE TEMP TABLE IF NOT EXISTS {table.staged} ({table.definition()})")
        self._file.execute(f"DELETE FROM {table.staged}")
        marks = ", ".join("?" * rows.num_columns)
        columns = [column.to_pylist() for column in rows.columns]
        return self._file.executemany(
            f"INSERT OR IGNORE INTO {table.staged} VALUES ({marks})", zip(*columns, strict=True)
        ).rowcount

    def many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._file.executemany(statement, rows)
