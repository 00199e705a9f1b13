"""Those who send and those who count: what is seen of them, and what is done about it."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from pumphouse.cli.demo import pace
from pumphouse.cli.demo import processes as players
from pumphouse.cli.demo.gauges import Gauge, Stage
from pumphouse.cli.demo.stage_processes import COUNTED, Troupe, troupe_of
from pumphouse.cli.demo.stages import Cast
from pumphouse.client.factory import open_client
from pumphouse.errors import PumphouseError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub

HOMES = 100_000


@pytest.fixture
def said() -> list[str]:
    return []


class Watch:
    """The demonstration's clock: the loop's, and what a test adds to it."""

    def __init__(self) -> None:
        self.begun_s, self.ahead_s = asyncio.get_running_loop().time(), 0.0

    def __call__(self) -> float:
        return asyncio.get_running_loop().time() - self.begun_s + self.ahead_s


@pytest.fixture
async def watch() -> Watch:
    return Watch()


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub(dict.fromkeys(COUNTED, 2)) as running:
        yield running


@pytest.fixture
async def troupe(
    hub: EmbeddedHub,
    said: list[str],
    watch: Watch,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Troupe]:
    """The players only wait: what they were told is what counts here."""
    waiting = "import time; time.sleep(600)"
    monkeypatch.setattr(players, "command", lambda words: [sys.executable, "-c", waiting, *words])
    cast = Cast(tmp_path, HOMES)
    async with troupe_of(cast, hub.connection_string(), said.append, watch) as running:
        yield running


async def send(hub: EmbeddedHub, name: str, events: int) -> None:
    async with open_client(hub.connection_string(), name) as client:
        await (await client.sender("0")).send([Event(b"x")] * events)


async def look(troupe: Troupe) -> Gauge:
    async with aclosing(troupe.gauges(asyncio.Event(), None)) as gauges:
        return await anext(gauges)


async def test_what_waits_is_what_the_hubs_have_and_the_stages_have_not(
    troupe: Troupe, hub: EmbeddedHub
) -> None:
    await send(hub, "sensors", 50)
    status = {"stages": {"sift": {"state": "running", "taken": {"sensors": 20}}}}
    troupe.cast.status.write_text(json.dumps(status))
    gauge = await look(troupe)
    assert gauge.lag == 30
    assert gauge.counts == {"sensors": 50, "activity": 0, "alerts": 0}


async def test_a_hub_that_does_not_answer_ends_nothing(
    troupe: Troupe, hub: EmbeddedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(hub, "sensors", 50)
    assert (await look(troupe)).counts["sensors"] == 50
    monkeypatch.setattr("pumphouse.cli.demo.stage_processes.ANSWER_S", 0.05)
    await hub.stop()
    assert (await look(troupe)).counts["sensors"] == 50


async def test_a_player_that_ends_is_named(troupe: Troupe) -> None:
    troupe.players["spark"].process.kill()
    await troupe.players["spark"].process.wait()
    with pytest.raises(PumphouseError, match="spark ended with exit code -9"):
        await look(troupe)


async def fall_behind(troupe: Troupe, watch: Watch, lag_at: Callable[[int], float]) -> None:
    for second in range(180):
        watch.ahead_s += second - watch()
        counts, taken = {"sensors": 10**9}, 10**9 - int(lag_at(second))
        stages = (Stage("sift", "running", {"sensors": taken}),)
        await troupe.keep_pace(Gauge(float(second), troupe.homes, 0.0, counts, stages))


async def test_who_falls_behind_gets_fewer_homes(
    troupe: Troupe, watch: Watch, said: list[str]
) -> None:
    before = troupe.players["homes"]
    await fall_behind(troupe, watch, lambda second: second * pace.rate_of(HOMES))
    assert before.ended
    after = troupe.players["homes"]
    assert not after.ended
    assert after.part.words[:4] == ["homes", "send", "--homes", "70000"]
    assert "this machine is too small for 100,000 homes" in said[-2]
    assert said[-1].startswith("homes      70,000")


async def test_who_keeps_up_keeps_its_homes(troupe: Troupe, watch: Watch, said: list[str]) -> None:
    told = len(said)
    await fall_behind(troupe, watch, lambda second: second % 10 * pace.rate_of(HOMES))
    assert troupe.homes == HOMES
    assert len(said) == told
