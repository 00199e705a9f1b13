"""The commands of docs/spark.md that show what holds select tests."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "spark.md"
PYTEST = "pytest "


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the page, taken apart."""

    text: str
    markers: str  # of -m
    keyword: str  # of -k; a part of names
    path: str

    def selects(self, tests: list[str]) -> list[str]:
        return [each for each in tests if each.startswith(self.path) and self.keyword in each]


def read_command(text: str) -> Command:
    words = shlex.split(text.removeprefix(PYTEST))
    options = {words[at]: words[at + 1] for at in range(len(words) - 1) if words[at][0] == "-"}
    (path,) = [word for word in words if word.startswith("tests/")]
    assert set(options) <= {"-m", "-k"}, text
    return Command(text, options.get("-m", ""), options.get("-k", ""), path)


def commands() -> list[Command]:
    section = GUIDE.read_text().partition("## What holds\n")[2].partition("\n## ")[0]
    return [read_command(text) for text in re.findall(rf"`({PYTEST}[^`]+)`", section)]


def collected(markers: str, paths: set[str]) -> list[str]:
    """The tests that pytest selects."""
    chosen = ("-m", markers) if markers else ()
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider")
    done = subprocess.run(
        [*command, *chosen, *sorted(paths)], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return [line for line in done.stdout.splitlines() if line.startswith("tests/")]


@pytest.mark.timeout(600)
def test_every_command_of_what_holds_selects_tests() -> None:
    found = commands()
    assert len(found) >= 9
    for markers in {command.markers for command in found}:
        alike = [command for command in found if command.markers == markers]
        tests = collected(markers, {command.path for command in alike})
        for command in alike:
            assert command.selects(tests), command.text
