"""Output for terminals: names and texts of other programs are escaped."""

from __future__ import annotations

import io
import json
import logging
import sys

import pytest

from pumphouse.cli.common import console
from pumphouse.cli.common.options import LogFormatter
from pumphouse.cli.describe import cells, show_table
from pumphouse.cli.doctor import Finding, show
from pumphouse.errors import PumphouseError
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.processor.admin.overview import overview
from tests.processor.admin.test_overview import partition

HOSTILE = "vm\x1b]0;owned\x07\x9b31m\r\nok   all is well\u202e"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_a_table_escapes_its_cells(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_table(("NAME", "STATE"), [(HOSTILE, "ok")])
    text = capsys.readouterr().out
    assert is_harmless(text)
    assert text.count("\n") == 2


def test_a_highlighted_word_keeps_our_colour_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "use_colour", lambda: True)
    console.print_table(("A",), [(console.highlight("stuck\x1b[2J", bad=True),)])
    assert capsys.readouterr().out == "A\n\x1b[31mstuck\\x1b[2J\x1b[0m\n"


def test_groups_describe_escapes_owners(capsys: pytest.CaptureFixture[str]) -> None:
    group = Group("ns", "orders", "g")
    row = Ownership("0", HOSTILE, 3, successor=HOSTILE, deadline_s=5.0)
    mark = Checkpoint(group, "0", 5, HOSTILE, 3)
    state = overview("g", "orders", [partition()], Listing((row,)), [mark], 30.0, None)
    assert HOSTILE in cells(state.lines[0])[1]
    show_table(state)
    assert is_harmless(capsys.readouterr().out)


@pytest.mark.parametrize("output", ["text", "json"])
def test_doctor_escapes_its_findings(capsys: pytest.CaptureFixture[str], output: str) -> None:
    show(Finding("fail", f"the hub check failed: {HOSTILE}", HOSTILE), output)
    text = capsys.readouterr().out
    assert is_harmless(text)
    assert text.count("\n") == 1
    if output == "json":
        assert json.loads(text)["fix"] == HOSTILE


def test_an_error_cannot_add_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit), console.exit_on_errors():
        raise PumphouseError(HOSTILE)
    text = capsys.readouterr().err
    assert is_harmless(text)
    assert "\n  ok   all" in text


def test_log_lines_of_any_package_are_escaped() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogFormatter("%(message)s"))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord(
            "azure", logging.ERROR, "", 0, f"failed {HOSTILE}", (), sys.exc_info()
        )
    handler.handle(record)
    lines = stream.getvalue().rstrip("\n").split("\n")
    assert all(line.isprintable() for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
