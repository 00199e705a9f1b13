"""`pumphouse simulate`: a table, or a line of JSON per seed; a violation can be replayed."""

from __future__ import annotations

import json
import shlex

import pytest
from click.testing import CliRunner

from pumphouse.cli import main
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


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--faults", "mild"], "'mild' is no profile of faults"),
        (["--strategy", "best"], "'best' is no strategy"),
        (["--hosts", "0"], "Invalid value for '--hosts'"),
    ],
)
def test_what_is_not_understood(args: list[str], sentence: str) -> None:
    done = CliRunner().invoke(main, ["simulate", *args])
    assert done.exit_code == 2
    assert sentence in done.stderr
