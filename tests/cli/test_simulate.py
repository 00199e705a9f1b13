"""`pumphouse simulate`: a table, or a line of JSON per seed; a violation can be replayed."""

from __future__ import annotations

import json
import re
import shlex
from functools import partial
from typing import Any

import pytest
from click.testing import CliRunner

from pumphouse import simulation
from pumphouse.cli import main
from pumphouse.cli.simulate import FACES, SCENE_LINES
from tests.simulation.mutants import MUTANTS

SMALL = ["simulate", "--hosts", "2", "--partitions", "3", "--hours", "0.2"]


def test_a_table() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--seed", "7", "--faults", "default,crash=30"])
    assert done.exit_code == 0, done.output
    first, *rest = done.stdout.splitlines()
    assert first.startswith("1 seed, ")
    told = dict(line.rsplit(maxsplit=1) for line in rest if len(line.split()) > 1)
    assert int(told["fault: crash"]) > 0
    assert int(told["violations"]) == 0
    assert {"moves", "handled again", "store calls: list", "writes refused"} <= told.keys()
    assert any(line.startswith("worst gap") for line in rest)


def test_several_seeds_as_json() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--seeds", "2", "--jobs", "1", "-o", "json"])
    assert done.exit_code == 0, done.output
    one, two = map(json.loads, done.stdout.splitlines())
    assert (one["seed"], two["seed"]) == (1, 2)
    assert one["ok"]
    assert one["history"] != two["history"]
    assert one["violations"] == one["last_events"] == []


def test_a_violation_ends_with_status_1_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    MUTANTS["no_stamp"].apply(monkeypatch)
    done = CliRunner().invoke(main, [*SMALL, "--seed", "3", "-o", "json"])
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert told["violations"][0].startswith("I15 at ")
    assert told["last_events"]
    assert f"replay: {told['replay']}" in done.stderr
    again = CliRunner().invoke(main, [*shlex.split(told["replay"])[1:], "-o", "json"])
    assert json.loads(again.stdout)["history"] == told["history"]


def test_a_violation_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["no_stamp"].apply(monkeypatch)
    done = CliRunner().invoke(main, [*SMALL, "--seed", "3"])
    assert done.exit_code == 1
    first, *events, last = done.stderr.splitlines()
    assert re.match(r"seed 3: I15 at \d+\.\d{3}: .* before it has stamped the checkpoint", first)
    assert 1 < len(events) <= SCENE_LINES
    times = [float(line.split()[0]) for line in events]
    assert times == sorted(times)
    assert times[-1] <= float(first.split()[4].rstrip(":"))
    assert " reads " in events[-1]
    again = CliRunner().invoke(main, shlex.split(last.removeprefix("replay: "))[1:])
    assert (again.exit_code, again.stderr) == (1, done.stderr)
    told = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[1:] if line.strip())
    assert told["violations"] == "1"


@pytest.mark.parametrize("hours", ["0.1234567", repr(1 / 3), "0.2", "1e-3"])
def test_a_replay_lasts_exactly_as_long(hours: str) -> None:
    """Written as it was understood, and understood as it was written."""
    args = ["simulate", "--hosts", "2", "--partitions", "3", "--hours", hours, "-o", "json"]
    told = json.loads(CliRunner().invoke(main, args).stdout)
    words = shlex.split(told["replay"])
    assert float(words[words.index("--hours") + 1]) == float(hours)
    again = json.loads(CliRunner().invoke(main, [*words[1:], "-o", "json"]).stdout)
    assert again["history"] == told["history"]
    assert again["replay"] == told["replay"]


@pytest.mark.parametrize("face", FACES)
def test_every_face_can_be_replayed(face: str) -> None:
    told = json.loads(CliRunner().invoke(main, [*SMALL, "--face", face, "-o", "json"]).stdout)
    assert ("--strategy" in told["replay"]) == (face != "fixed")
    words = shlex.split(told["replay"])[1:]
    again = CliRunner().invoke(main, [*words, "-o", "json"])
    assert json.loads(again.stdout)["history"] == told["history"]


def test_a_handler_that_failed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(partition: Any, batch: list[Any]) -> None:
        raise ValueError("cannot parse")

    monkeypatch.setattr(simulation, "simulate", partial(simulation.simulate, handler=handle))
    done = CliRunner().invoke(main, SMALL)
    assert done.exit_code == 1
    sentence = "the handler raised ValueError: cannot parse (event"
    assert f"seed 1: {sentence}" in done.stderr
    assert "replay" not in done.stderr  # a command knows nothing of that handler
    rows = [line for line in done.stdout.splitlines() if line.startswith("handler failed")]
    assert len(rows) == 1
    assert "ValueError: cannot parse" in rows[0]
    done = CliRunner().invoke(main, [*SMALL, "-o", "json"])
    told = json.loads(done.stdout)
    assert not told["ok"]
    assert told["handler_failed"].startswith("ValueError: cannot parse (event")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--faults", "mild"], "unknown fault profile 'mild'"),
        (["--strategy", "best"], "unknown strategy 'best'"),
        (["--hosts", "0"], "Invalid value for '--hosts'"),
        (["--hours", "nan"], "hours must be finite (got nan)"),
        (["--hours", "inf"], "hours must be finite (got inf)"),
        (["--faults", "default,crash=nan"], "the rate of crash must be finite (got nan)"),
        (["--faults", "stale=inf"], "the rate of stale must be finite (got inf)"),
        (["--face", "fixed", "--strategy", "steady"], "--face fixed needs no --strategy"),
    ],
)
def test_what_is_not_understood(args: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["simulate", *args])
    assert done.exit_code == 2
    assert sentence in done.stderr
