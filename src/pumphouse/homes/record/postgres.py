"""The connection to PostgreSQL through psycopg: rows are written by COPY as CSV."""

from __future__ import annotations

import re
from io import BytesIO
from typing import TYPE_CHECKING, Any

from pumphouse.errors import ConnectionFailed, OptionError
from pumphouse.homes.record.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

CONNECT_S = 15
STATEMENT_MS = 120_000


class PostgresConnection:
    """A connection whose statements all have a deadline."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise OptionError(
                "records in PostgreSQL need psycopg: pip install 'pumphouse[postgres]'"
            ) from None
        self.errors: tuple[type[Exception], ...] = (psycopg.Error,)
        settings = f"-c statement_timeout={STATEMENT_MS} -c client_min_messages=warning"
        try:
            self._connection = psycopg.connect(
                url, autocommit=True, connect_timeout=CONNECT_S, options=settings
            )
        except psycopg.ProgrammingError as wrong:
            raise OptionError(
                f"invalid URL of the database: {without_quotes(wrong)}: "
                "use postgresql://USER:PASSWORD@HOST/NAME"
            ) from None
        except psycopg.OperationalError as failed:
            raise ConnectionFailed(
                f"cannot connect to PostgreSQL: {first_line(failed)}. Check that the server runs, "
                "and the URL of the database"
            ) from None

    def begin(self) -> None:
        self.run("BEGIN")
        # Serialises batches, also if two pipelines run by mistake.
        self.run("SELECT pg_advisory_xact_lock(hashtext('pumphouse.homes'))")

    def begin_reading(self) -> None:
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        if not self._connection.broken:
            self.run("ROLLBACK")

    def close(self) -> None:
        self._connection.close()

    def run(self, statement: str) -> int:
        return self._connection.execute(statement).rowcount

    def query(self, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        # Without values psycopg does not interpret %, which some queries use as an operator.
        if not values:
            return self._connection.execute(query).fetchall()
        return self._connection.execute(query.replace("?", "%s"), values).fetchall()

    def stage(self, table: Table, rows: pa.Table) -> int:
        from pyarrow import csv  # here, because only the stage needs it, not the page

        raw = f"raw_{table.name}"
        columns = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
        self.run(f"CREATE TEMP TABLE IF NOT EXISTS {raw} ({columns}) ON COMMIT DELETE ROWS")
        self.run(
            f"CREATE TEMP TABLE IF NOT EXISTS {table.staged} ({table.definition()})"
            " ON COMMIT DELETE ROWS"
        )
        csv_data = BytesIO()
        csv.write_csv(storable(rows), csv_data, csv.WriteOptions(include_header=False))
        statement = f"COPY {raw} ({', '.join(rows.column_names)}) FROM STDIN (FORMAT csv)"
        with (
            self._connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.write(csv_data.getbuffer())
        return self.run(f"INSERT INTO {table.staged} SELECT * FROM {raw} ON CONFLICT DO NOTHING")

    def run_many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)


def storable(rows: pa.Table) -> pa.Table:
    """Rows without NUL characters, which JSON may contain and PostgreSQL rejects."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, column in enumerate(rows.schema):
        if pa.types.is_string(column.type):
            clean = pc.replace_substring(rows[column.name], "\0", "\N{REPLACEMENT CHARACTER}")
            rows = rows.set_column(index, column, clean)
    return rows


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_quotes(error: Exception) -> str:
    """The error without the quoted part of the URL, which may be the password."""
    return re.sub(r'"[^"]*"', "...", first_line(error)).rstrip(" :")
