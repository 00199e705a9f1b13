"""The public names: the lazy table, the imports for type checkers and the packages agree."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pumphouse

SOURCE = Path(pumphouse.__file__).read_text()


def imported_for_type_checkers() -> dict[str, str]:
    """Name -> module, from the block under `if TYPE_CHECKING`."""
    blocks = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.If)]
    statements = [node for node in blocks[0].body if isinstance(node, ast.ImportFrom)]
    return {
        alias.asname or "": node.module or ""
        for node in statements
        for alias in node.names
        if alias.name == alias.asname  # only `A as A` re-exports a name
    }


def test_type_checkers_see_the_same_names() -> None:
    assert imported_for_type_checkers() == pumphouse._MODULE_OF_NAME


def test_all_is_a_literal_with_the_same_names() -> None:
    """With an expression, `from pumphouse import *` gives type checkers no names."""
    assigned = [
        node.value
        for node in ast.parse(SOURCE).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert [ast.literal_eval(value) for value in assigned] == [sorted(pumphouse._MODULE_OF_NAME)]


@pytest.mark.parametrize("name", pumphouse.__all__)
def test_a_public_name_can_be_imported(name: str) -> None:
    value = getattr(pumphouse, name)
    assert value is getattr(import_module(pumphouse._MODULE_OF_NAME[name]), name)
    assert name in dir(pumphouse)


def test_an_unknown_name_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'pumphouse' has no attribute 'Nothing'"):
        pumphouse.Nothing  # noqa: B018


START_HUB = """
import asyncio
from pumphouse.hub.embedded import EmbeddedHub

async def start():
    async with EmbeddedHub({"orders": 2}, data=sys.argv[1]):
        pass

asyncio.run(start())
"""


@pytest.mark.parametrize(
    ("code", "slow"),
    [
        ("import pumphouse", {"numpy", "asyncio", "click", "importlib.abc", "inspect", "tempfile"}),
        ("import pumphouse.client.native.client", {"numpy", "click", "importlib.abc", "aiohttp"}),
        (START_HUB, {"numpy", "click", "importlib.abc", "aiohttp", "azure"}),
    ],
    ids=["the package", "the native client", "starting a durable hub"],
)
def test_slow_modules_are_imported_when_they_are_used(
    code: str, slow: set[str], tmp_path: Path
) -> None:
    program = f"import sys\n{code}\nprint({slow!r} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"
