"""Checks the documentation: every link and anchor resolves, every public name is documented.

    .venv/bin/python scripts/check_docs.py   # exit 1 with one line for each problem

A public name needs a docstring and a comment `<!-- api: NAME -->` on a page in docs/api, from which
the site makes its reference.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib import import_module
from inspect import getdoc, isclass, isfunction
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[1]
NAMES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [ROOT / name for name in NAMES]
PAGES += sorted(ROOT.glob("docs/**/*.md"))

# Public without exception; of other packages only what docs/api names.
PUBLIC = """pumphouse pumphouse.errors pumphouse.client.bulk pumphouse.leases.model
    pumphouse.leases.checkpoints pumphouse.spark pumphouse.simulation"""

FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
API = re.compile(r"^<!-- api: ([\w.]+) -->$", re.MULTILINE)


def broken_links(pages: list[Path], root: Path = ROOT) -> Iterator[str]:
    """Relative links whose file or anchor does not exist."""
    for page in pages:
        for path, anchor in LINK.findall(CODE.sub("", FENCE.sub("", page.read_text()))):
            target = page.parent / path if path else page
            if not target.exists():
                yield f"{page.relative_to(root)}: {path} does not exist"
            elif anchor and anchor not in anchors(target):
                yield f"{page.relative_to(root)}: {path} has no heading #{anchor}"


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub and the site give to the headings of a page."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def undocumented_names(pages: list[Path]) -> Iterator[str]:
    """Public names without a docstring or without a place in docs/api, and unknown ones there."""
    listed = [name for page in pages for name in API.findall(page.read_text())]
    values = {id(value): name for name in listed if (value := resolve(name)) is not None}
    for name in listed:
        if resolve(name) is None:
            yield f"docs/api lists {name}, which does not exist"
    for name in [*public_names(), *listed]:
        value = resolve(name)
        if value is None:
            continue
        if name not in listed and id(value) not in values:
            yield f"{name} is public but not in docs/api: add <!-- api: {name} -->"
        if (isclass(value) or isfunction(value)) and not getdoc(value):
            yield f"{name} is public but has no docstring"


def public_names() -> Iterator[str]:
    for module_name in PUBLIC.split():
        module = import_module(module_name)
        names = getattr(module, "__all__", None)
        yield from (f"{module_name}.{n}" for n in (defined_in(module) if names is None else names))


def defined_in(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isclass(value) or isfunction(value))
        and value.__module__ == module.__name__
    ]


def resolve(name: str) -> object | None:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute, None)
    except ImportError:
        return None


if __name__ == "__main__":
    problems = [*broken_links(PAGES), *undocumented_names(sorted(ROOT.glob("docs/api/*.md")))]
    sys.exit("\n".join(dict.fromkeys(problems)) or 0)
