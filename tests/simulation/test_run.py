"""A run: the same seed gives the same history, every fault is injected, handlers run."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.simulation import PROFILES, Scenario, simulate

SMALL: dict[str, Any] = {"hosts": 3, "partitions": 4, "hours": 0.3}


DIGESTS = """
from pumphouse.simulation import PROFILES, Scenario, simulate
for face in ("pull", "push", "functions", "fixed", "partitions"):
    scenario = Scenario(3, 4, 0.1, 11, PROFILES["harsh"], face=face)
    print(simulate(scenario).digest)
print(simulate(Scenario(3, 4, 0.1, 11, PROFILES["harsh"], face="handler", concurrency=4)).digest)
"""


def digests(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    first = digests("1")
    assert len(set(first.split())) == 6
    assert digests("2") == first


def test_another_seed_gives_another_history() -> None:
    first_run, second = (simulate(Scenario(**SMALL, seed=seed)) for seed in (1, 2))
    assert first_run.digest != second.digest


def test_progress_changes_nothing() -> None:
    reported: list[float] = []
    silent = simulate(Scenario(**SMALL))
    assert simulate(Scenario(**SMALL), progress=lambda at_s, _: reported.append(at_s)).digest == (
        silent.digest
    )
    assert reported


FAULT_KINDS = (
    "crash", "pause", "restart", "store before", "store after", "store failed", "store slow",
    "store stale", "store away", "hub away", "evicted", "lost", "handler slow", "handler stuck",
    "handler raises", "poison", "clock wrong", "grow", "join", "leave", "expired",
)  # fmt: skip


def test_every_kind_of_fault_is_injected_and_counted() -> None:
    result = simulate(Scenario(4, 6, 1.5, 1, PROFILES["harsh"], face="push", burst_s=20))
    assert result.ok, result.violations
    assert set(result.faults) == set(FAULT_KINDS)
    assert min(result.faults.values()) > 0


def test_an_empty_scenario_is_refused() -> None:
    for wrong in ({"hosts": 0}, {"partitions": 0}, {"hours": 0.0}):
        with pytest.raises(OptionError, match="at least one host"):
            Scenario(**{**SMALL, **wrong})
    with pytest.raises(OptionError, match="invalid processor API 'poker'"):
        simulate(Scenario(**SMALL, face="poker"))


@pytest.mark.parametrize("face", ["pull", "push", "fixed"])
def test_the_users_handler_handles_every_event(face: str) -> None:
    numbers: dict[str, set[int]] = {}

    async def handle(partition: Any, batch: list[Event]) -> None:
        await asyncio.sleep(0.01)
        numbers.setdefault(partition.id, set()).update(event.sequence or 0 for event in batch)

    result = simulate(Scenario(**SMALL, face=face, faults=PROFILES["hosts"]), handler=handle)
    assert result.ok, result.violations
    assert sum(map(len, numbers.values())) == result.sent


def test_a_handler_may_be_a_plain_function() -> None:
    numbers: list[Event] = []

    def handle(partition: Any, batch: list[Event]) -> None:
        numbers.extend(batch)

    result = simulate(Scenario(**SMALL, faults=PROFILES["none"]), handler=handle)
    assert result.ok
    assert len(numbers) == result.sent == result.figures.handled
    assert result.figures.duplicates == 0
