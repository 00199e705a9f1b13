"""One registry: the command line, Spark, errors and documents list the same strategies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pumphouse.cli.common.options import strategy_option
from pumphouse.errors import OptionError
from pumphouse.leases.strategies import STRATEGIES, parse_strategy, strategy_forms
from pumphouse.spark.catalogue import CATALOGUE

DOCS = Path(__file__).parents[3] / "docs"
FORMS = strategy_forms().split(", ")


def first_column(page: str, name: str) -> list[str]:
    """The names in the first column of the page's first table with this name in it."""
    tables = re.findall(r"(?:^\|.*\n)+", (DOCS / page).read_text(), re.MULTILINE)
    columns = (
        [
            cell
            for row in table.splitlines()[2:]
            for cell in re.findall(r"`([^`]+)`", first_cell(row))
        ]
        for table in tables
    )
    return next(column for column in columns if name in column)


def first_cell(row: str) -> str:
    return row.split("|")[1]


def test_every_form_is_parsed() -> None:
    assert [*STRATEGIES, "fixed:N"] == FORMS
    for form in FORMS:
        assert parse_strategy(form.replace("N", "3")).name == form.replace("N", "3")


def test_the_command_line_lists_the_registry() -> None:
    def no_command(strategy: str) -> None: ...

    (option,) = strategy_option(no_command).__click_params__  # type: ignore[attr-defined]
    assert option.help == f"How partitions are shared: {strategy_forms()}."
    page = (DOCS / "cli-reference.md").read_text()
    assert page.count(f"| {option.help} |") == 2  # process and simulate
    names = ", ".join(f"`{form}`" for form in FORMS)
    assert names in (DOCS / "cli.md").read_text()


def test_the_docs_list_the_registry() -> None:
    assert sorted(first_column("leases.md", "steady")) == sorted(FORMS)


def test_spark_lists_the_strategies_that_request_hand_overs() -> None:
    forms = strategy_forms(grabbing=False).split(", ")
    assert forms == [form for form in FORMS if not form.startswith("eph")]
    (option,) = [option for option in CATALOGUE if option.name == "assignment"]
    assert option.help.endswith(", ".join(forms))
    assert sorted(first_column("spark.md", "steady")) == sorted([*forms, "all"])


def test_the_error_lists_the_registry() -> None:
    with pytest.raises(OptionError, match=re.escape(strategy_forms())):
        parse_strategy("best")
