"""docs/internals/reliability.md names the test of every fault; each of these tests exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/internals/reliability.md").read_text()
NAMED_TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


def functions_in(path: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, functions)}


@pytest.mark.parametrize(("file", "name"), NAMED_TESTS, ids=[name for _, name in NAMED_TESTS])
def test_a_named_test_exists(file: str, name: str) -> None:
    assert (ROOT / file).is_file(), f"{file} does not exist"
    assert name in functions_in(ROOT / file), f"{file} has no {name}"


def test_every_fault_has_a_test() -> None:
    table = PAGE.partition("## What happens when")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 20
    assert [row for row in rows if "::test_" not in row] == []
