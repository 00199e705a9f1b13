"""What happened in each minute of each region, and in each hour of each home?

The sums live in the database beside the rows, and change in the transaction that stores them: by
the rows that are new, and by nothing else. So they are right after every batch, after every crash,
and at the end: counting all rows anew gives the same numbers.

Event time counts, not the time of arrival. A watermark follows the newest reading at a distance;
a minute that lies wholly before it is final as far as anybody expects. A reading that comes later
than that is late: it is counted as late, and it still counts. (Spark's own windows drop it, and
their sums would differ from the truth by as much as came late.)

    staged rows -> add_rows -> minutes, home_hours      newest reading -> watermark -> late
                   ^^^^^^^^ this module                                   ^^^^^^^^^ and this
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pumphouse.homes.schema import HOUR_MS, MINUTE_MS, SMOKE_ALARM_PPM

DELAY_MS: Final = 10 * MINUTE_MS  # how much later than the newest a reading may come in good time

# What is summed, in words that SQLite, PostgreSQL and Spark read alike.
MEASURES: Final = {
    "readings": "1",
    "movements": "CASE WHEN sensor = 'motion' THEN coalesce(value, 0) ELSE 0 END",
    "opened": "CASE WHEN sensor IN ('door', 'window') AND why = 'change' AND value = 1"
    " THEN 1 ELSE 0 END",
    "alarms": f"CASE WHEN sensor = 'smoke' AND value >= {SMOKE_ALARM_PPM:g} THEN 1 ELSE 0 END",
    "faults": "CASE WHEN fault IS NOT NULL THEN 1 ELSE 0 END",
}
LATE: Final = "late"


@dataclass(frozen=True, slots=True)
class SumTable:
    """A table of sums: for each span of time and each key, the measures."""

    table: str
    time: str
    span_ms: int
    key: str

    @property
    def columns(self) -> str:
        measures = ", ".join(f"{name} DOUBLE PRECISION NOT NULL" for name in MEASURES)
        return (
            f"{self.time} BIGINT NOT NULL, {self.key} TEXT NOT NULL, {measures},"
            f" {LATE} BIGINT NOT NULL, PRIMARY KEY ({self.time}, {self.key})"
        )


MINUTES: Final = SumTable("minutes", "minute", MINUTE_MS, "region")
HOME_HOURS: Final = SumTable("home_hours", "hour", HOUR_MS, "home")
TABLES: Final = (MINUTES, HOME_HOURS)


def add_rows(sums: SumTable, rows: str, watermark_ms: int) -> str:
    """The statement that adds the rows of a table to the sums."""
    names = [*MEASURES, LATE]
    late = f"CASE WHEN at < {watermark_ms:d} THEN 1 ELSE 0 END"
    added = ", ".join(f"sum({what})" for what in (*MEASURES.values(), late))
    merged = ", ".join(f"{name} = {sums.table}.{name} + excluded.{name}" for name in names)
    return (
        f"INSERT INTO {sums.table} ({sums.time}, {sums.key}, {', '.join(names)})"
        f" SELECT {start_of('at', sums.span_ms)} AS {sums.time},"
        f" coalesce({sums.key}, '') AS {sums.key}, {added}"
        # Without a condition SQLite takes ON for that of a join.
        f" FROM {rows} WHERE true GROUP BY 1, 2"
        f" ON CONFLICT ({sums.time}, {sums.key}) DO UPDATE SET {merged}"
    )


def start_of(time: str, span_ms: int) -> str:
    return f"({time} - {time} % {span_ms})"


def recount(sums: SumTable, rows: str) -> str:
    """The query that counts all rows anew, for whom the sums must agree with."""
    counted = ", ".join(f"sum({what}) AS {name}" for name, what in MEASURES.items())
    return (
        f"SELECT {start_of('at', sums.span_ms)} AS {sums.time},"
        f" coalesce({sums.key}, '') AS {sums.key}, {counted} FROM {rows} GROUP BY 1, 2"
    )


def watermark(newest_ms: int | None, delay_ms: int = DELAY_MS) -> int:
    """Before this, readings are late; before the first reading none is."""
    return 0 if newest_ms is None else max(0, newest_ms - delay_ms)
