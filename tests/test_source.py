"""Rules for every module: no import cycle, no private names of others, a bounded length."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "pumphouse"
LINES_MAX = 450

# These use internals of other packages for which there is no public name; each file says why.
OTHERS_INTERNALS = (
    "client/azure/",
    "homes/pipeline.py",
    "homes/sift/buckets.py",
    "homes/stage_start.py",
    "leases/stores/blob/metadata.py",
)
# Public in spite of their underscore.
PUBLIC = ("_replace", "_exit")


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def runtime_statements(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes, without what is under `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from runtime_statements(child)


def runtime_imports(tree: ast.AST, known: set[str]) -> set[str]:
    """The modules among `known` that a module imports when it runs, also inside functions."""
    names = set()
    for node in runtime_statements(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            imported = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= imported & known or {node.module}
    return names & known


def test_there_is_no_import_cycle() -> None:
    known = set(MODULES)
    graph = {
        name: runtime_imports(ast.parse(path.read_text()), known) - {name}
        for name, path in MODULES.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as cycle:
        pytest.fail(f"import cycle: {' -> '.join(cycle.args[1])}")


def test_an_import_inside_a_function_counts() -> None:
    tree = ast.parse("def f():\n    from a import b\nif TYPE_CHECKING:\n    import c\n")
    assert runtime_imports(tree, {"a", "b", "c"}) == {"a"}


def foreign_private_names(tree: ast.AST) -> list[str]:
    """Attributes like `other._name` that no class of this module has."""
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    own = {
        node.attr
        for node in attributes
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
    }
    own |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    return [
        f"line {node.lineno}: {ast.unparse(node)}"
        for node in attributes
        if node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in own
        and node.attr not in PUBLIC
    ]


def test_no_module_uses_private_names_of_another() -> None:
    used = {
        name: foreign_private_names(ast.parse(path.read_text()))
        for name, path in MODULES.items()
        if not path.relative_to(SOURCE).as_posix().startswith(OTHERS_INTERNALS)
    }
    assert {name: names for name, names in used.items() if names} == {}


def test_a_private_name_of_another_class_is_found() -> None:
    own = "class A:\n    def f(self, other):\n        return self._x + other._x\n"
    assert foreign_private_names(ast.parse(own)) == []
    assert foreign_private_names(ast.parse("def f(a):\n    return a._x\n")) == ["line 2: a._x"]


def test_no_module_is_too_long() -> None:
    files = [*SOURCE.rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    lengths = {
        file.relative_to(ROOT).as_posix(): len(file.read_text().splitlines())
        for file in files
        if "node_modules" not in file.parts
    }
    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}
