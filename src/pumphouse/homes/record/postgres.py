"""The records in PostgreSQL, through psycopg: rows go in by COPY, as columns of text."""

from __future__ import annotations

import re
from io import BytesIO
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from pumphouse.errors import ConnectionFailed, OptionError
from pumphouse.homes.record.database import Table

CONNECT_S = 15
STATEMENT_MS = 120_000


class PostgresConnection:
    """A connection on which every statement has a deadline."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise OptionError(
                "records in PostgreSQL need a package: pip install 'pumphouse[postgres]'"
            ) from None
        settings = f"-c statement_timeout={STATEMENT_MS} -c client_min_messages=warning"
        try:
            self._link = psycopg.connect(
                url, autocommit=True, connect_timeout=CONNECT_S, options=settings
            )
        except psycopg.ProgrammingError as wrong:
            raise OptionError(
                f"the URL of the database is wrong: {without_quotes(wrong)}; "
                "write postgresql://USER:PASSWORD@HOST/NAME"
            ) from None
        except psycopg.OperationalError as failed:
            raise ConnectionFailed(f"PostgreSQL: {first_line(failed)}") from None

    def begin(self) -> None:
        self.run("BEGIN")
        # One batch after the other, also if two pipelines were started by mistake.
        self.run("SELECT pg_advisory_xact_lock(hashtext('pumphouse.homes'))")

    def commit(self) -> None:
        self.run("COMMIT")

    def rollback(self) -> None:
        if not self._link.broken:
            self.run("ROLLBACK")

    def close(self) -> None:
        self._link.close()

    def run(self, statement: str) -> int:
        return self._link.execute(statement).rowcount

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return self._link.execute(query).fetchall()

    def stage(self, table: Table, rows: pa.Table) -> int:
        raw = f"raw_{table.name}"
        columns = ", ".join(f"{name} {kind}" for name, kind in table.columns.items())
        self.run(f"CREATE TEMP TABLE IF NOT EXISTS {raw} ({columns}) ON COMMIT DELETE ROWS")
        self.run(
            f"CREATE TEMP TABLE IF NOT EXISTS {table.staged} ({table.definition()})"
            " ON COMMIT DELETE ROWS"
        )
        text = BytesIO()
        csv.write_csv(storable(rows), text, csv.WriteOptions(include_header=False))
        statement = f"COPY {raw} ({', '.join(rows.column_names)}) FROM STDIN (FORMAT csv)"
        with (
            self._link.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            copy.write(text.getbuffer())
        return self.run(f"INSERT INTO {table.staged} SELECT * FROM {raw} ON CONFLICT DO NOTHING")

    def many(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._link.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s"), rows)


def storable(rows: pa.Table) -> pa.Table:
    """Without the one character that JSON may hold and PostgreSQL may not."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_string(column.type):
            clean = pc.replace_substring(rows[column.name], "\0", "\N{REPLACEMENT CHARACTER}")
            rows = rows.set_column(place, column, clean)
    return rows


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def without_quotes(error: Exception) -> str:
    """What is wrong with a URL, but not the part of it that is: that may be the password."""
    return re.sub(r'"[^"]*"', "...", first_line(error)).rstrip(" :")
