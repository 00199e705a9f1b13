"""The user's handler in a simulated fleet: its exceptions are reported and violate nothing."""

from __future__ import annotations

import asyncio
import math
import runpy
from collections.abc import Iterator
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from pumphouse.errors import OptionError, OwnershipLost
from pumphouse.events import Event
from pumphouse.processor.handlers import Handling
from pumphouse.processor.options import STOP, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.simulation import PROFILES, Faults, Result, Scenario, parse_faults, simulate
from pumphouse.simulation.adapters import FACES
from pumphouse.simulation.history import History

SMALL: dict[str, Any] = {"hosts": 2, "partitions": 2, "hours": 0.2}
CALLED = ("push", "functions", "fixed", "handler")  # with a PoisonPolicy
EXAMPLE = Path(__file__).parents[2] / "examples" / "simulate_your_handler.py"


class FailingHandler:
    """A handler that raises on one event, the first `times` it gets it."""

    def __init__(self, bad: int = 7, times: float = math.inf) -> None:
        self.bad, self.times = bad, times
        self.tried: dict[str, int] = {}
        self.handled: dict[str, set[int]] = {}

    async def __call__(self, partition: Any, batch: list[Event]) -> None:
        numbers = [event.sequence or 0 for event in batch]
        if self.bad in numbers:
            self.tried[partition.id] = self.tried.get(partition.id, 0) + 1
            if self.tried[partition.id] <= self.times:
                raise ValueError("cannot parse")
        self.handled.setdefault(partition.id, set()).update(numbers)

    def gaps(self) -> dict[str, set[int]]:
        """By partition, the events that were skipped."""
        return {
            partition: set(range(max(numbers) + 1)) - numbers
            for partition, numbers in self.handled.items()
        }


def run(handler: Any, face: str = "pull", profile: str = "none", **more: Any) -> Result:
    scenario = Scenario(**{**SMALL, **more}, face=face, faults=parse_faults(profile))
    return simulate(scenario, handler=handler)


# -- a handler that raises ------------------------------------------------------------------------


@pytest.mark.parametrize("face", FACES)
def test_the_first_exception_is_in_the_result(face: str) -> None:
    result = run(FailingHandler(), face)
    assert result.handler_failed is not None
    assert result.handler_failed.startswith("ValueError: cannot parse (event")
    assert " of partition " in result.handler_failed
    assert result.figures.reports["ValueError"] > 0
    assert not result.ok
    assert not result.violations


@pytest.mark.parametrize("face", CALLED)
def test_only_the_event_that_cannot_be_handled_is_skipped(face: str) -> None:
    handle = FailingHandler()
    result = run(handle, face)
    assert not result.violations
    assert result.figures.reports["PoisonEvent"] == 2
    assert handle.gaps() == {"0": {7}, "1": {7}}
    assert min(map(max, handle.handled.values())) > 20


def test_a_pull_loop_that_raises_is_offered_its_partition_again() -> None:
    """From its checkpoint and after a back-off; nothing is skipped."""
    handle = FailingHandler(times=3)
    result = run(handle)
    assert not result.violations
    assert result.figures.reports["ValueError"] == 6
    assert handle.gaps() == {"0": set(), "1": set()}
    assert min(map(max, handle.handled.values())) > 20
    assert set(handle.tried.values()) == {4}


def test_a_pull_loop_that_always_raises_stays_at_its_event() -> None:
    handle = FailingHandler()
    result = run(handle)
    assert not result.violations
    assert all(max(numbers, default=-1) < 7 for numbers in handle.handled.values())
    # Repeatedly, at most half a minute apart.
    assert min(handle.tried.values()) > result.simulated_s / 60


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (2, 3))]
)
def test_a_handler_that_sometimes_raises_violates_no_invariant(face: str, seed: int) -> None:
    calls = 0

    async def handle(partition: Any, batch: list[Event]) -> None:
        nonlocal calls
        calls += 1
        if calls % 7 == 0:
            raise RuntimeError(f"call {calls}")

    result = run(handle, face, "harsh", hosts=3, partitions=4, hours=0.3, seed=seed)
    assert not result.violations
    assert result.handler_failed is not None
    assert result.handler_failed.startswith("RuntimeError: call 7 (")


@pytest.mark.parametrize(("face", "concurrency"), [("pull", 1), *product(CALLED, (1, 4))])
def test_a_handler_that_cancels_its_task_violates_no_invariant(face: str, concurrency: int) -> None:
    profile = "harsh,handler_raises=0,handler_cancels=0.3"
    result = run(None, face, profile, hosts=3, partitions=4, hours=0.3, concurrency=concurrency)
    assert result.ok, result.violations
    assert result.figures.reports["RuntimeError"] >= result.faults["handler cancels"] > 5


@pytest.mark.parametrize("face", FACES)
def test_the_message_of_a_bug_is_in_the_result(face: str) -> None:
    def handle(partition: Any, batch: Any) -> None:
        batch.nope()

    result = run(handle, face)
    assert not result.violations
    assert "'list' object has no attribute 'nope'" in str(result.handler_failed)


def test_the_message_is_in_the_history(monkeypatch: pytest.MonkeyPatch) -> None:
    result, scene = with_scene(monkeypatch, FailingHandler())
    raised = [line for line in scene if line.startswith("raised ")]
    assert raised[0].endswith(" ValueError: cannot parse")
    assert len(raised) == sum(line.endswith(" ValueError") for line in scene)  # all are reported
    assert result.handler_failed is not None


def test_a_memory_address_does_not_change_the_digest() -> None:
    def handle(partition: Any, batch: Any) -> None:
        raise ValueError(f"{object()}\nand a second line")

    first_run, second_run = run(handle), run(handle)
    assert first_run.digest == second_run.digest
    assert "<object object at 0x…> and a second line (" in str(first_run.handler_failed)


def test_an_exception_group_of_a_handler_is_not_a_failed_host() -> None:
    async def fails() -> None:
        raise ValueError("in a task")

    async def handle(partition: Any, batch: list[Event]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fails())

    for face in FACES:
        result = run(handle, face)
        assert not result.violations
        assert str(result.handler_failed).startswith("ExceptionGroup: ")


@pytest.mark.parametrize("face", FACES)
def test_a_lost_partition_is_not_a_handler_failure(face: str) -> None:
    calls = 0

    async def handle(partition: Any, batch: list[Event]) -> None:
        nonlocal calls
        calls += 1
        if calls == 5:  # as its own checkpoint() might
            raise OwnershipLost(partition.id, partition.epoch)

    result = run(handle, face)
    assert result.ok, result.violations
    assert calls > 5
    assert result.handler_failed is None


@pytest.mark.parametrize("face", ["push", "functions"])
def test_a_partition_stopped_by_the_policy_violates_nothing(face: str) -> None:
    options = ProcessorOptions(poison=PoisonPolicy(then=STOP))
    handle = FailingHandler()
    result = run(handle, face, options=options)
    assert not result.violations
    assert all(max(numbers, default=-1) < 7 for numbers in handle.handled.values())


def test_a_handler_without_exceptions_has_no_failure() -> None:
    result = run(FailingHandler(bad=-1), profile="default")
    assert result.ok
    assert result.handler_failed is None
    assert simulate(Scenario(**SMALL, faults=PROFILES["harsh"])).handler_failed is None


# -- violations are still detected ----------------------------------------------------------------


def with_scene(monkeypatch: pytest.MonkeyPatch, handler: Any) -> tuple[Result, list[str]]:
    """A run with its whole history."""
    scene: list[str] = []

    add = History.add

    def added(self: History, at_s: float, kind: str, text: str) -> None:
        scene.append(f"{kind} {text}")
        add(self, at_s, kind, text)

    monkeypatch.setattr(History, "add", added)
    return run(handler), scene


def test_a_partition_that_is_not_offered_again_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def forget(self: PartitionSupervisor, seconds: float) -> None:
        await self.term.unless_stopped(asyncio.Event().wait())

    monkeypatch.setattr(PartitionSupervisor, "_wait", forget)
    result = run(FailingHandler(times=1))
    assert "I3" in {violation.name for violation in result.violations}


def test_an_event_skipped_without_retries_is_a_violation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Handling._try

    async def hasty(self: Any, partition: Any, batch: list[Event], retries: int) -> Any:
        return await kept(self, partition, batch, 0)

    monkeypatch.setattr(Handling, "_try", hasty)
    result = run(FailingHandler(), "push")
    assert "I3" in {violation.name for violation in result.violations}


@pytest.mark.parametrize("times", [1, 2])
def test_a_good_event_lost_beside_a_bad_one_is_a_violation(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = PartitionClient._receive

    async def careless(self: PartitionClient, asked_s: float) -> list[Event]:
        return [event for event in await kept(self, asked_s) if event.sequence != 20]

    monkeypatch.setattr(PartitionClient, "_receive", careless)
    result = run(FailingHandler(times=times), "push")
    assert {violation.name for violation in result.violations} & {"I3", "I4"}


def test_a_pull_host_that_fails_by_itself_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: PartitionClient) -> Any:
        raise RuntimeError("not the handler's")
        yield []

    monkeypatch.setattr(PartitionClient, "batches", broken)
    result = run(None)
    assert result.violations[0].name == "I0"
    assert "not the handler's" in result.violations[0].text
    assert result.handler_failed is None


# -- infinite and invalid numbers -----------------------------------------------------------------


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["hours", "burst_s"])
def test_a_scenario_with_infinite_numbers_is_refused(name: str, number: float) -> None:
    with pytest.raises(OptionError, match=name.removesuffix("_s")):
        Scenario(**{**SMALL, name: number})


@pytest.mark.parametrize("wrong", [0.0, -1.0])
def test_burst_s_must_be_above_zero(wrong: float) -> None:
    with pytest.raises(OptionError, match="burst_s"):
        Scenario(**SMALL, burst_s=wrong)


def rates() -> Iterator[tuple[str, float]]:
    for first_run in fields(Faults):
        for number in (math.nan, math.inf, -math.inf):
            yield first_run.name, number


@pytest.mark.parametrize(("name", "number"), list(rates()))
def test_a_rate_that_is_not_finite_is_refused(name: str, number: float) -> None:
    with pytest.raises(OptionError, match=f"the rate of {name} must .*{number:g}"):
        Faults(**{name: number})
    with pytest.raises(OptionError, match=f"the rate of {name} must .*{number:g}"):
        parse_faults(f"default,{name}={number:g}")


def test_an_infinite_sum_of_rates_is_refused() -> None:
    with pytest.raises(OptionError, match="sum of the rates"):
        Faults(crash=1e308, pause=1e308)


# -- the example ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seed", [6, *(pytest.param(seed, marks=pytest.mark.proof) for seed in (7, 8, 10, 12))]
)
def test_the_example_holds_with_any_seed(seed: int) -> None:
    """With some of them retention removes unhandled events."""
    runpy.run_path(str(EXAMPLE))["main"](seed)
