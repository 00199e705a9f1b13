"""The sender and Spark processes of the demo: figures, failures and pace."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from pumphouse.cli.demo import pace, processes
from pumphouse.cli.demo.gauges import Gauge, Stage
from pumphouse.cli.demo.stage_processes import COUNTED_HUBS, StageProcesses, open_stage_processes
from pumphouse.cli.demo.stages import DemoPlan
from pumphouse.client.factory import open_client
from pumphouse.dashboard.views.alert_delays import AlertDelays
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub

HOMES = 100_000


@pytest.fixture
def reports() -> list[str]:
    return []


class OffsetClock:
    """The clock of the demonstration: the time of the loop plus an offset."""

    def __init__(self) -> None:
        self.begun_s, self.ahead_s = asyncio.get_running_loop().time(), 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() - self.begun_s + self.ahead_s


@pytest.fixture
async def clock() -> OffsetClock:
    return OffsetClock()


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub(dict.fromkeys(COUNTED_HUBS, 2)) as running:
        yield running


@pytest.fixture
async def stage_processes(
    hub: EmbeddedHub,
    reports: list[str],
    clock: OffsetClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[StageProcesses]:
    """The processes only wait; the tests check their commands."""
    waiting = "import time; time.sleep(600)"
    monkeypatch.setattr(
        processes, "command", lambda arguments: [sys.executable, "-c", waiting, *arguments]
    )
    plan = DemoPlan(tmp_path, HOMES)
    async with open_stage_processes(
        plan, hub.connection_string(), reports.append, clock
    ) as running:
        yield running


async def send(hub: EmbeddedHub, name: str, events: int) -> None:
    async with open_client(hub.connection_string(), name) as client:
        await (await client.sender("0")).send([Event(b"x")] * events)


async def next_gauge(stage_processes: StageProcesses) -> Gauge:
    async with aclosing(stage_processes.gauges(asyncio.Event(), None)) as gauges:
        return await anext(gauges)


async def test_the_lag_is_the_difference_of_hub_and_stage(
    stage_processes: StageProcesses, hub: EmbeddedHub
) -> None:
    await send(hub, "sensors", 50)
    status = {"stages": {"sift": {"state": "running", "taken": {"sensors": 20}}}}
    stage_processes.plan.status.write_text(json.dumps(status))
    gauge = await next_gauge(stage_processes)
    assert gauge.lag == 30
    assert gauge.counts == {"sensors": 50, "activity": 0, "alerts": 0}


async def test_a_gauge_has_the_delays_of_that_moment(stage_processes: StageProcesses) -> None:
    delays = AlertDelays()
    stage_processes.read_delays = lambda: delays
    assert (await next_gauge(stage_processes)).delays == AlertDelays()
    delays = AlertDelays(3, 1.5, 2.5)
    assert (await next_gauge(stage_processes)).delays == AlertDelays(3, 1.5, 2.5)


async def test_an_unresponsive_hub_keeps_its_count(
    stage_processes: StageProcesses, hub: EmbeddedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(hub, "sensors", 50)
    assert (await next_gauge(stage_processes)).counts["sensors"] == 50
    monkeypatch.setattr("pumphouse.cli.demo.stage_processes.RESPONSE_S", 0.05)
    await hub.stop()
    assert (await next_gauge(stage_processes)).counts["sensors"] == 50


async def test_an_ended_process_is_reported(stage_processes: StageProcesses) -> None:
    stage_processes.processes["spark"].process.kill()
    await stage_processes.processes["spark"].process.wait()
    with pytest.raises(PumphouseError, match="spark ended with exit code -9"):
        await next_gauge(stage_processes)


async def simulate_lag(
    stage_processes: StageProcesses, clock: OffsetClock, lag_at: Callable[[int], float]
) -> None:
    for second in range(180):
        clock.ahead_s += second - clock()
        counts, taken = {"sensors": 10**9}, 10**9 - int(lag_at(second))
        stages = (Stage("sift", "running", {"sensors": taken}),)
        await stage_processes.keep_pace(
            Gauge(float(second), stage_processes.homes, 0.0, counts, stages)
        )


async def test_a_growing_lag_reduces_the_homes(
    stage_processes: StageProcesses, clock: OffsetClock, reports: list[str]
) -> None:
    before = stage_processes.processes["homes"]
    await simulate_lag(stage_processes, clock, lambda second: second * pace.rate_of(HOMES))
    assert before.has_ended
    after = stage_processes.processes["homes"]
    assert not after.has_ended
    assert after.spec.arguments[:4] == ["homes", "send", "--homes", "70000"]
    assert "this machine is too small for 100,000 homes" in reports[-2]
    assert reports[-1].startswith("homes      70,000")


async def test_a_stable_lag_keeps_the_homes(
    stage_processes: StageProcesses, clock: OffsetClock, reports: list[str]
) -> None:
    count = len(reports)
    await simulate_lag(stage_processes, clock, lambda second: second % 10 * pace.rate_of(HOMES))
    assert stage_processes.homes == HOMES
    assert len(reports) == count
