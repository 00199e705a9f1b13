"""`pumphouse simulate`: table, JSON, violations and replay."""

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
from pumphouse.cli.simulate import APIS, HISTORY_LINES
from tests.simulation.mutants.all_mutants import MUTANTS

SMALL = ["simulate", "--hosts", "2", "--partitions", "3", "--hours", "0.2"]


def test_a_table() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--seed", "7", "--faults", "default,crash=30"])
    assert done.exit_code == 0, done.output
    first, *rest = done.stdout.splitlines()
    assert first.startswith("1 seed, ")
    result = dict(line.rsplit(maxsplit=1) for line in rest if len(line.split()) > 1)
    assert int(result["fault: crash"]) > 0
    assert int(result["seeds with violations"]) == 0
    assert {"moves", "handled again", "store calls: list", "writes refused"} <= result.keys()
    assert any(line.startswith("longest delay from send to handling") for line in rest)


def test_several_seeds_as_json() -> None:
    done = CliRunner().invoke(main, [*SMALL, "--seeds", "2", "--jobs", "1", "-o", "json"])
    assert done.exit_code == 0, done.output
    first, second = map(json.loads, done.stdout.splitlines())
    assert (first["seed"], second["seed"]) == (1, 2)
    assert first["ok"]
    assert first["history"] != second["history"]
    assert first["violations"] == first["last_events"] == []


def test_a_violation_ends_with_status_1_and_can_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    MUTANTS["no_stamp"].apply(monkeypatch)
    done = CliRunner().invoke(main, [*SMALL, "--seed", "3", "-o", "json"])
    assert done.exit_code == 1
    result = json.loads(done.stdout)
    assert result["violations"][0].startswith("I15 at ")
    assert result["last_events"]
    assert f"replay: {result['replay']}" in done.stderr
    again = CliRunner().invoke(main, [*shlex.split(result["replay"])[1:], "-o", "json"])
    assert json.loads(again.stdout)["history"] == result["history"]


def test_a_violation_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["no_stamp"].apply(monkeypatch)
    done = CliRunner().invoke(main, [*SMALL, "--seed", "3"])
    assert done.exit_code == 1
    first, *events, last = done.stderr.splitlines()
    assert re.match(r"seed 3: I15 at \d+\.\d{3}: .* before it has stamped the checkpoint", first)
    assert 1 < len(events) <= HISTORY_LINES
    times = [float(line.split()[0]) for line in events]
    assert times == sorted(times)
    assert times[-1] <= float(first.split()[4].rstrip(":"))
    assert " reads " in events[-1]
    again = CliRunner().invoke(main, shlex.split(last.removeprefix("replay: "))[1:])
    assert (again.exit_code, again.stderr) == (1, done.stderr)
    result = dict(line.rsplit(maxsplit=1) for line in done.stdout.splitlines()[1:] if line.strip())
    assert result["seeds with violations"] == "1"


@pytest.mark.parametrize("hours", ["0.1234567", repr(1 / 3), "0.2", "1e-3"])
def test_a_replay_has_the_same_duration(hours: str) -> None:
    """The replay command contains all digits of the hours."""
    args = ["simulate", "--hosts", "2", "--partitions", "3", "--hours", hours, "-o", "json"]
    result = json.loads(CliRunner().invoke(main, args).stdout)
    words = shlex.split(result["replay"])
    assert float(words[words.index("--hours") + 1]) == float(hours)
    again = json.loads(CliRunner().invoke(main, [*words[1:], "-o", "json"]).stdout)
    assert again["history"] == result["history"]
    assert again["replay"] == result["replay"]


@pytest.mark.parametrize("api", APIS)
def test_every_processor_api_can_be_replayed(api: str) -> None:
    result = json.loads(CliRunner().invoke(main, [*SMALL, "--api", api, "-o", "json"]).stdout)
    assert ("--strategy" in result["replay"]) == (api != "fixed")
    words = shlex.split(result["replay"])[1:]
    again = CliRunner().invoke(main, [*words, "-o", "json"])
    assert json.loads(again.stdout)["history"] == result["history"]


def test_the_old_option_face_selects_the_api_and_warns() -> None:
    old = CliRunner().invoke(main, [*SMALL, "--face", "fixed", "-o", "json"])
    new = CliRunner().invoke(main, [*SMALL, "--api", "fixed", "-o", "json"])
    assert (old.exit_code, old.stderr) == (0, "pumphouse: --face is deprecated: use --api\n")
    assert new.stderr == ""
    assert json.loads(old.stdout)["history"] == json.loads(new.stdout)["history"]
    assert "--face" not in CliRunner().invoke(main, ["simulate", "--help"]).stdout


def test_a_failed_handler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(partition: Any, batch: list[Any]) -> None:
        raise ValueError("cannot parse")

    monkeypatch.setattr(simulation, "simulate", partial(simulation.simulate, handler=handle))
    done = CliRunner().invoke(main, SMALL)
    assert done.exit_code == 1
    message = "the handler raised ValueError: cannot parse (event"
    assert f"seed 1: {message}" in done.stderr
    assert "replay" not in done.stderr  # the command line cannot run this handler
    rows = [line for line in done.stdout.splitlines() if line.startswith("handler failed")]
    assert len(rows) == 1
    assert "ValueError: cannot parse" in rows[0]
    done = CliRunner().invoke(main, [*SMALL, "-o", "json"])
    result = json.loads(done.stdout)
    assert not result["ok"]
    assert result["handler_failed"].startswith("ValueError: cannot parse (event")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--faults", "mild"], "unknown fault profile 'mild'"),
        (["--strategy", "best"], "unknown strategy 'best'"),
        (["--hosts", "0"], "Invalid value for '--hosts'"),
        (["--hours", "nan"], "hours must be finite (got nan)"),
        (["--hours", "inf"], "hours must be finite (got inf)"),
        (["--faults", "default,crash=nan"], "the rate of crash must be finite (got nan)"),
        (["--faults", "stale=inf"], "the rate of stale must be finite (got inf)"),
        (["--api", "fixed", "--strategy", "steady"], "--strategy has no effect with --api fixed"),
        (["--concurrency", "4"], "concurrency needs an API with a handler (got 'pull')"),
        (["--face", "pull", "--api", "pull"], "--face is the old name of --api: remove --face"),
        (["--face", "fixed", "--strategy", "steady"], "--strategy has no effect with --api fixed"),
    ],
)
def test_invalid_options_are_rejected(args: list[str], message: str) -> None:
    done = CliRunner().invoke(main, ["simulate", *args])
    assert done.exit_code == 2
    assert message in done.stderr
