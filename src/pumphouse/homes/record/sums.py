"""Sums per minute and region, and per hour and home.

The sums are in the same database as the rows. The transaction that stores new rows adds them to the
sums. So the sums are correct after every batch and after every crash: a count of all rows gives the
same numbers.

Event time counts, not the time of arrival. The watermark is DELAY_MS before the newest reading. The
sums of a minute before the watermark rarely change. An activity before the watermark is counted,
and still included in the sums. (Spark's own windows would drop it.)

    staged rows -> add_rows -> minutes, home_hours      newest reading -> watermark -> behind it
                   ^^^^^^^^ this module                                   ^^^^^^^^^ and this

Queries of users name the columns, so two of them keep their first name: `readings` counts
activities, and `late` those behind the watermark. What `sift` counts as late is something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds, Range, Threshold
from pumphouse.homes.schema import HOUR_MS, MINUTE_MS

DELAY_MS: Final = 10 * MINUTE_MS  # behind the newest reading: the watermark

LATE: Final = "late"  # the column of the activities behind the watermark


def measures(kinds: Kinds) -> dict[str, str]:
    """The summed expressions, in SQL that SQLite, PostgreSQL and Spark share."""
    alarms = [
        f"(sensor = '{kinds.names[kind]}' AND {in_range(rule.values)})"
        for kind, rule in kinds.rules(Threshold)
    ]
    return {
        "readings": "1",
        "movements": "CASE WHEN sensor = 'motion' THEN coalesce(value, 0) ELSE 0 END",
        "opened": "CASE WHEN sensor IN ('door', 'window') AND why = 'change' AND value = 1"
        " THEN 1 ELSE 0 END",
        "alarms": f"CASE WHEN {' OR '.join(alarms) or '1 = 0'} THEN 1 ELSE 0 END",
        "faults": "CASE WHEN fault IS NOT NULL THEN 1 ELSE 0 END",
    }


def in_range(values: Range) -> str:
    limits = ((">=", values.at_least), ("<=", values.at_most))
    return " AND ".join(f"value {sign} {limit!r}" for sign, limit in limits if limit is not None)


MEASURES: Final = measures(DEFAULT)


@dataclass(frozen=True, slots=True)
class SumTable:
    """A table of sums: the measures for each span of time and each key."""

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


def add_rows(sum_table: SumTable, rows: str, watermark_ms: int, kinds: Kinds = DEFAULT) -> str:
    """The statement that adds the rows of a table to the sums."""
    names = [*MEASURES, LATE]
    late = f"CASE WHEN at < {watermark_ms:d} THEN 1 ELSE 0 END"
    expressions = (*measures(kinds).values(), late)
    sum_expressions = ", ".join(f"sum({expression})" for expression in expressions)
    updates = ", ".join(f"{name} = {sum_table.table}.{name} + excluded.{name}" for name in names)
    return (
        f"INSERT INTO {sum_table.table} ({sum_table.time}, {sum_table.key}, {', '.join(names)})"
        f" SELECT {start_of('at', sum_table.span_ms)} AS {sum_table.time},"
        f" coalesce({sum_table.key}, '') AS {sum_table.key}, {sum_expressions}"
        # Without WHERE, SQLite parses ON as the condition of a join.
        f" FROM {rows} WHERE true GROUP BY 1, 2"
        f" ON CONFLICT ({sum_table.time}, {sum_table.key}) DO UPDATE SET {updates}"
    )


def start_of(time: str, span_ms: int) -> str:
    return f"({time} - {time} % {span_ms})"


def watermark(newest_ms: int | None, delay_ms: int = DELAY_MS) -> int:
    """Readings before this time are behind the watermark; 0 before the first reading."""
    return 0 if newest_ms is None else max(0, newest_ms - delay_ms)
