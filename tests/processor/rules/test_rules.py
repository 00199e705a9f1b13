"""The rule table in docs/internals/rules.md: every test that it names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/internals/rules.md").read_text()
SOURCES = re.findall(r"^\*\*(.+)\*\*$", PAGE, re.MULTILINE)
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)


@cache
def functions_of(file: str) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse((ROOT / file).read_text())
    return {node.name for node in tree.body if isinstance(node, functions)}


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_test_of_a_rule_exists(file: str, name: str) -> None:
    assert name in functions_of(file), f"{file} has no {name}"


def test_every_rule_of_every_description_has_one() -> None:
    assert SOURCES == [
        "The processor notes",
        "The fixed-partition processor",
        "The Event Processor Host",
        "The partition manager of the Event Processor Host",
        "The JavaScript host",
    ]
    rules = [row for row in ROWS if not row.startswith("| rule |")]
    assert len(rules) == len(NAMED) > 60
