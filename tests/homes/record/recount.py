"""Counts all rows of a table, to compare the result with the stored sums."""

from __future__ import annotations

from pumphouse.homes.record.sums import MEASURES, SumTable, start_of


def recount(sum_table: SumTable, rows: str) -> str:
    """The query that computes the sums from all rows."""
    measures = ", ".join(f"sum({expression}) AS {name}" for name, expression in MEASURES.items())
    return (
        f"SELECT {start_of('at', sum_table.span_ms)} AS {sum_table.time},"
        f" coalesce({sum_table.key}, '') AS {sum_table.key}, {measures} FROM {rows} GROUP BY 1, 2"
    )
