"""The connection to an SQLite file: no installation, one machine."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumphouse.errors import OptionError
from pumphouse.homes.record.tables import Table
from pumphouse.private_files import create_private_folder, private_opener

if TYPE_CHECKING:
    import pyarrow as pa

BUSY_S = 30.0  # how long to wait for a lock that another process holds


class SqliteConnection:
    """A file in WAL mode, in which readers and the writer do not block each other."""

    errors: tuple[type[Exception], ...] = (sqlite3.Error,)

    def __init__(self, path: str) -> None:
        try:
            create_private_folder(Path(path).parent)
            with open(path, "ab", opener=private_opener):  # SQLite would let others read it
                pass
            # Spark calls from different threads, one at a time.
            self._file = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._file.execute("PRAGMA journal_mode=WAL")
        except (OSError, sqlite3.Error) as failed:
            raise OptionError(
                f"{path} cannot be used as a database: {failed}. Choose another with --database"
            ) from None
        self._file.execute("PRAGMA synchronous=FULL")

    def begin(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")

    def begin_reading(self) -> None:
        self._file.execute("BEGIN DEFERRED")

    def commit(self) -> None:
        self._file.execute("COMMIT")

    def rollback(self) -> None:
        if self._file.in_transaction:
            self._file.execute("ROLLBACK")

    def close(self) -> None:
        self._file.close()

    def run(self, statement: str) -> int:
        return self._file.execute(statement).rowcount

    def query(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        return self._file.execute(query, values).fetchall()

    def stage(self, table: Table, rows: pa.Table) -> int:
        self._file.execute(f"CREATE TEMP TABLE IF NOT EXISTS {table.staged} ({table.definition()})")
        self._file.execute(f"DELETE FROM {table.staged}")
        placeholders = ", ".join("?" * rows.num_columns)
        columns = [column.to_pylist() for column in rows.columns]
        return self._file.executemany(
            f"INSERT OR IGNORE INTO {table.staged} VALUES ({placeholders})",
            zip(*columns, strict=True),
        ).rowcount

    def run_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        self._file.executemany(statement, rows)
