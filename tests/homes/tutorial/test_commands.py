"""The commands of the tutorials exist and accept their options."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from pumphouse.cli import main
from pumphouse.homes.pipeline import HUBS
from pumphouse.hub.emulator_config import parse_config

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "homes.md").read_text()
PAGES = PAGE + (DOCS / "tutorial-new-sensor.md").read_text()
# A command may continue on the line after a backslash.
LINES = re.findall(r"^pumphouse .*$", PAGES.replace("\\\n", " "), re.MULTILINE)


def parse(words: list[str]) -> None:
    """Parse a command without running it."""
    command: click.Command = main
    context = click.Context(main, info_name="pumphouse")
    while isinstance(command, click.Group):
        subcommand = command.get_command(context, words[0])
        assert subcommand is not None, words[0]
        command, words = subcommand, words[1:]
    command.make_context(command.name, words)


def test_the_tutorial_has_commands() -> None:
    assert len(LINES) >= 6


@pytest.mark.parametrize("line", LINES)
def test_the_commands_of_the_tutorial_are_valid(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kinds.toml").write_text("")
    for name in re.findall(r"\w+\.(?:json|csv|txt)", line):
        (tmp_path / name).write_text("{}")
    monkeypatch.chdir(tmp_path)
    parse(shlex.split(line)[1:])


def test_an_invalid_command_is_detected() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(["homes", "run", "--stage", "sift"])


def test_the_hubs_of_the_tutorial_are_those_of_the_stages() -> None:
    (block,) = re.findall(r"```json\n(\{\"UserConfig\".*?)```", PAGE, re.DOTALL)
    hubs = {spec.name: spec for spec in parse_config(block)}
    assert set(hubs) == {name for names in HUBS.values() for name in names}
    assert "sift" in hubs["sensors"].groups
    for name in ("activity", "alerts"):
        assert {"watch", "record"} <= set(hubs[name].groups)
