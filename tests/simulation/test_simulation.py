"""The simulation itself: the same seed gives the same history, and time is virtual."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import OptionError, ReaderEvicted
from pumphouse.events import Event, Position
from pumphouse.leases.model import Granted, Group, Ownership, Refused, claim
from pumphouse.simulation import PROFILES, Scenario, parse_faults, simulate
from pumphouse.simulation.history import History
from pumphouse.simulation.hub import HUB, NAMESPACE, SimHub
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import HostClock, HostProcess, SimLoop
from pumphouse.simulation.run import OPTIONS
from pumphouse.simulation.store import SimStore

SMALL: dict[str, Any] = {"hosts": 3, "partitions": 4, "hours": 0.3}


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(work)


# -- the same seed, the same history --------------------------------------------------------------

DIGESTS = """
from pumphouse.simulation import PROFILES, Scenario, simulate
for face in ("pull", "push", "functions", "fixed"):
    scenario = Scenario(3, 4, 0.3, 11, PROFILES["harsh"], face=face)
    print(simulate(scenario).digest)
"""


def digests(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_same_seed_gives_the_same_history_in_any_process() -> None:
    first = digests("1")
    assert len(set(first.split())) == 4
    assert digests("2") == first


def test_another_seed_gives_another_history() -> None:
    one, two = (simulate(Scenario(**SMALL, seed=seed)) for seed in (1, 2))
    assert one.digest != two.digest


def test_progress_changes_nothing() -> None:
    told: list[float] = []
    silent = simulate(Scenario(**SMALL))
    assert simulate(Scenario(**SMALL), progress=lambda at_s, _: told.append(at_s)).digest == (
        silent.digest
    )
    assert told


# -- the loop -------------------------------------------------------------------------------------


def test_a_sleep_takes_no_real_time() -> None:
    async def scene() -> float:
        before_s = asyncio.get_running_loop().time()
        await asyncio.sleep(365 * 86400)
        return asyncio.get_running_loop().time() - before_s

    started_s = time.monotonic()
    assert run(scene()) == pytest.approx(365 * 86400)
    assert time.monotonic() - started_s < 3600


def test_a_frozen_process_resumes_and_a_dead_one_does_not() -> None:
    async def scene() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        heard: list[tuple[str, float]] = []

        async def tick(process: HostProcess) -> None:
            while True:
                await asyncio.sleep(1)
                heard.append((process.name, loop.time()))

        ticking: list[asyncio.Task[None]] = []
        frozen, dead, well = HostProcess("frozen"), HostProcess("dead"), HostProcess("well")
        for process in (frozen, dead, well):
            ticking.append(loop.create_task(tick(process), context=loop.context_of(process)))
        await asyncio.sleep(2.5)
        frozen.frozen = True
        loop.kill(dead)
        await asyncio.sleep(10)
        heard.append(("thaw", loop.time()))
        loop.thaw(frozen)
        await asyncio.sleep(1.5)
        loop.kill(frozen)
        loop.kill(well)
        return heard

    heard = run(scene())
    thaw = heard.index(next(one for one in heard if one[0] == "thaw"))
    assert [name for name, _ in heard[:thaw]].count("frozen") == 2
    assert [name for name, _ in heard].count("dead") == 2
    assert [name for name, _ in heard[thaw:]].count("frozen") == 2
    assert [name for name, _ in heard[:thaw]].count("well") == 12


def test_a_host_clock_may_be_ahead_and_fast() -> None:
    async def scene() -> None:
        right, wrong = HostClock(), HostClock(ahead_s=3600, rate=1.01)
        before_s, ahead_s = right.monotonic(), wrong.monotonic()
        await wrong.sleep(101)
        assert right.monotonic() - before_s == pytest.approx(100)
        assert wrong.monotonic() - ahead_s == pytest.approx(101)
        assert wrong.now() - right.now() > 3600

    run(scene())


# -- the hub --------------------------------------------------------------------------------------


def test_an_evicted_reader_returns_prefetched_events_and_then_raises() -> None:
    async def scene() -> None:
        hub = SimHub(1, Random(1))
        one, two = (hub.client(HostProcess(name), Random(1)) for name in ("one", "two"))
        first = await one.reader(ReaderOptions("0", epoch=1, name="one"))
        hub.publish("0", [b"a", b"b"])
        second = await two.reader(ReaderOptions("0", epoch=2, name="two"))
        hub.publish("0", [b"c"])
        assert [event.body for event in await first.receive(1)] == [b"a"]
        assert [event.body for event in await first.receive()] == [b"b"]
        with pytest.raises(ReaderEvicted) as evicted:
            await first.receive()
        assert evicted.value.epoch == 2
        with pytest.raises(ReaderEvicted):
            await one.reader(ReaderOptions("0", epoch=1))
        assert [event.body for event in await second.receive()] == [b"a", b"b", b"c"]
        assert await second.receive(deadline_s=5) == []

    run(scene())


def test_a_reader_starts_at_its_position() -> None:
    async def scene() -> None:
        hub = SimHub(1, Random(1))
        hub.publish("0", [b"a", b"b", b"c"])
        log = hub.logs["0"]
        hub.retain("0", 2)
        positions = {
            Position("earliest"): 1,
            Position("latest"): 3,
            Position("sequence", "1"): 2,
            Position("sequence", "1", inclusive=True): 1,
            Position("offset", "128"): 2,
            Position("time", "0"): 0,
        }
        assert {position: log.start_of(position) for position in positions} == positions

    run(scene())


# -- the store ------------------------------------------------------------------------------------


def watched(semantics: str) -> tuple[SimStore, Checks]:
    checks = Checks(History(), OPTIONS, grabs=False)
    return SimStore(checks, Group(NAMESPACE, HUB), OPTIONS.lease_s, semantics), checks


@pytest.mark.parametrize(
    ("semantics", "age_s", "tells"),
    [("memory", 9.5, True), ("blob", 8, False), ("bloblease", 0, True)],
)
def test_the_semantics_decide_ages_and_refusals(semantics: str, age_s: float, tells: bool) -> None:
    async def scene() -> None:
        store, _ = watched(semantics)
        await asyncio.sleep(0.25)
        (granted,) = store.claim(HostProcess("one"), [claim(None, "0", "one")])
        assert isinstance(granted, Granted)
        await asyncio.sleep(9.5)
        (row,) = store.list_rows().ownerships
        assert row.age_s == pytest.approx(age_s)
        (refused,) = store.claim(HostProcess("two"), [claim(None, "0", "two")])
        assert isinstance(refused, Refused)
        assert (refused.current is not None) == tells

    run(scene())


def test_an_unknown_semantics_is_refused() -> None:
    with pytest.raises(OptionError, match="unknown store 'etcd'"):
        simulate(Scenario(**SMALL, store="etcd"))


# -- checks ---------------------------------------------------------------------------------------


def test_a_violation_names_invariant_and_partition() -> None:
    async def scene() -> Checks:
        _, checks = watched("memory")
        one, two = HostProcess("one"), HostProcess("two")
        checks.row_written(one, None, Ownership("0", "one", 3, "a"))
        checks.row_written(two, Ownership("0", "one", 3, "a"), Ownership("0", "two", 3, "b"))
        return checks

    checks = run(scene())
    assert [violation.name for violation in checks.violations] == ["I1", "I1"]
    assert "0 goes from one to two, epoch 3" in str(checks.violations[0])
    assert any("one writes 0 one epoch 3" in line for line in checks.scene)


def handing(checks: Checks, process: HostProcess, first: int, last: int) -> None:
    batch = [Event(b"", {}, None, "0", n, str(128 * n), 0) for n in range(first, last + 1)]
    checks.handler_returned(checks.handler_started(process, Client, 1, batch))


class Client:
    """A partition client, as far as the checks look at it."""

    id, epoch, batches_handed_out, reason = "0", 1, 1, None


@pytest.mark.parametrize(("first", "broken"), [(4, []), (7, []), (8, ["I3"])])
def test_only_retained_events_can_be_gaps(first: int, broken: list[str]) -> None:
    async def scene() -> Checks:
        _, checks = watched("memory")
        process = HostProcess("one")
        row = Ownership("0", "one", 1, "a")
        checks.row_written(process, None, row)
        checks.row_granted(process, row, checks.now_s)
        handing(checks, process, 0, 3)
        assert checks.expired("0", 7) == 3
        handing(checks, process, first, 9)
        return checks

    checks = run(scene())
    assert [violation.name for violation in checks.violations] == broken
    assert checks.figures.expired == 3


@pytest.mark.parametrize(("late_s", "broken"), [(0.1, ["I6"]), (28.5, [])])
def test_an_owner_follows_the_deadline_that_it_received(late_s: float, broken: list[str]) -> None:
    """A listing that was long on its way tells it too early, and the owner cannot know."""

    async def scene() -> Checks:
        _, checks = watched("blob")
        one, two = HostProcess("one"), HostProcess("two")
        row = Ownership("0", "one", 1, "a")
        checks.row_written(one, None, row)
        checks.row_granted(one, row, checks.now_s)
        asked_s = checks.now_s
        asked = replace(row, etag="b", successor="two", deadline_s=30.0)
        checks.row_written(two, row, asked)
        handing(checks, one, 0, 3)
        checks.row_received(one, replace(asked, deadline_s=30.0 - late_s), asked_s)
        checks.row_written(one, asked, Ownership("0", "two", 2, "c", deadline_s=10.0))
        return checks

    assert [violation.name for violation in run(scene()).violations] == broken


# -- faults and handlers --------------------------------------------------------------------------


def test_profiles_can_be_changed() -> None:
    assert parse_faults("default") == PROFILES["default"]
    assert parse_faults("harsh,crash=0, stale=0.5").stale == 0.5
    assert parse_faults("crash=3").crash == 3
    for text, sentence in (
        ("mild", "unknown fault profile 'mild'"),
        ("default,flood=1", "unknown fault 'flood'"),
        ("default,crash=much", "must be a number"),
        ("default,stale=2", "a probability"),
        ("default,crash=-1", "below 0"),
    ):
        with pytest.raises(OptionError, match=sentence):
            parse_faults(text)


ASKED_FOR = (
    "crash", "pause", "restart", "store before", "store after", "store failed", "store slow",
    "store stale", "store away", "hub away", "evicted", "lost", "handler slow", "handler stuck",
    "handler raises", "poison", "clock wrong", "grow", "join", "leave", "expired",
)  # fmt: skip


def test_every_kind_of_fault_is_made_and_counted() -> None:
    faults: Counter[str] = Counter()
    for seed in (1, 2, 3):
        scenario = Scenario(4, 6, 1.5, seed, PROFILES["harsh"], face="push", burst_s=20)
        result = simulate(scenario)
        assert result.ok, result.violations
        faults.update(result.faults)
    assert {kind for kind in ASKED_FOR if not faults[kind]} == set()
    assert set(faults) == set(ASKED_FOR)


def test_an_empty_scenario_is_refused() -> None:
    for wrong in ({"hosts": 0}, {"partitions": 0}, {"hours": 0.0}):
        with pytest.raises(OptionError, match="at least one host"):
            Scenario(**{**SMALL, **wrong})
    with pytest.raises(OptionError, match="unknown face"):
        simulate(Scenario(**SMALL, face="poker"))


@pytest.mark.parametrize("face", ["pull", "push", "fixed"])
def test_the_users_handler_handles_every_event(face: str) -> None:
    seen: dict[str, set[int]] = {}

    async def handle(partition: Any, batch: list[Event]) -> None:
        await asyncio.sleep(0.01)
        seen.setdefault(partition.id, set()).update(event.sequence or 0 for event in batch)

    result = simulate(Scenario(**SMALL, face=face, faults=PROFILES["hosts"]), handler=handle)
    assert result.ok, result.violations
    assert sum(map(len, seen.values())) == result.sent


def test_a_handler_may_be_a_plain_function() -> None:
    seen: list[Event] = []

    def handle(partition: Any, batch: list[Event]) -> None:
        seen.extend(batch)

    result = simulate(Scenario(**SMALL, faults=PROFILES["none"]), handler=handle)
    assert result.ok
    assert len(seen) == result.sent == result.figures.handled
    assert result.figures.duplicates == 0
