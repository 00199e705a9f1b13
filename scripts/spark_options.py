"""Writes the option tables of docs/spark.md from the catalogue.

.venv/bin/python scripts/spark_options.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pumphouse.spark.catalogue import CATALOGUE, REMOVED

PAGE = Path(__file__).parents[1] / "docs" / "spark.md"


def write_tables(page: str) -> str:
    """The page with its tables replaced."""
    page = replace_rows(page, "| option |", [option.table_row() for option in CATALOGUE])
    removed = [option.table_row() for option in REMOVED]
    return replace_rows(page, "| option of the Scala connector |", removed)


def replace_rows(page: str, title: str, rows: Sequence[str]) -> str:
    """Replace the rows of the table whose head starts with this title."""
    before, separator, rest = page.partition(f"\n{title}")
    assert separator, f"{PAGE} has no table {title}"
    head, rule, *_ = rest.splitlines()
    _, blank, after = rest.partition("\n\n")
    return "\n".join([before, f"{title}{head}", rule, *rows]) + blank + after


if __name__ == "__main__":
    PAGE.write_text(write_tables(PAGE.read_text()))
