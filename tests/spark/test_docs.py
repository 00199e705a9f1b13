"""The option table of docs/spark.md says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from pumphouse.spark.catalogue import BOTH, CATALOGUE, READ, REMOVED, WRITE

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
SIDES = {BOTH: "both", READ: "reading", WRITE: "writing"}


def rows(title: str) -> list[list[str]]:
    """The cells of the table whose first column has this title."""
    _, _, table = PAGE.partition(f"| {title} |")
    lines = table.split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [[name.strip("`"), *others] for name, *others in cells]


def test_every_option_is_documented_as_it_is() -> None:
    written = {row[0]: (row[1], row[2]) for row in rows("option")}
    assert written == {one.name: (one.default or "-", SIDES[one.side]) for one in CATALOGUE}
    said = {row[0]: row[3] for row in rows("option")}
    for option in CATALOGUE:
        assert option.help in said[option.name]
        assert all(word in said[option.name] for word in option.words)


def test_every_option_that_is_gone_is_documented() -> None:
    assert rows("option of the Scala connector") == [[one.name, one.instead] for one in REMOVED]


def test_settings_that_the_text_names_exist() -> None:
    known = {one.name for one in CATALOGUE}
    told = set(re.findall(r"\.option\(\"([A-Za-z.]+)\"", PAGE)) - {"checkpointLocation"}
    assert told <= known
