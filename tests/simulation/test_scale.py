"""Large fleets: computed store calls match simulated ones, and plans do not overlap."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from benchmarks._scale import (
    SIZES,
    at_rest,
    calls_at_rest,
    calls_cells,
    cold,
    listing,
    name,
    newcomer,
    plan,
)
from pumphouse.processor.options import ProcessorOptions
from pumphouse.simulation import PROFILES
from pumphouse.simulation.fleet import Fleet
from pumphouse.simulation.loop import SimLoop
from pumphouse.simulation.run import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs/internals/reliability.md").read_text()
RESTS_S = 300.0


async def rested(partitions: int, hosts: int) -> Counter[str]:
    """The store calls of a fleet of real hosts at rest."""
    fleet = Fleet(
        partitions=partitions, hosts=hosts, strategy="steady", face="pull", store="memory",
        options=OPTIONS, rng=Random(5), burst_s=40.0,
    )  # fmt: skip
    fleet.set_faults(PROFILES["none"])
    await asyncio.gather(*(fleet.add() for _ in range(hosts)))
    await asyncio.sleep(120)
    assert fleet.spread() <= 1
    before = fleet.store.calls.copy()
    await asyncio.sleep(RESTS_S)
    asked = fleet.store.calls - before
    fleet.start_flow("0")
    await fleet.close()
    return asked


@pytest.mark.parametrize(("partitions", "hosts"), [(32, 8), (12, 12), (40, 1)])
def test_a_fleet_at_rest_makes_the_computed_number_of_calls(partitions: int, hosts: int) -> None:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        asked = runner.run(rested(partitions, hosts))
    expected = calls_at_rest(partitions, hosts, ProcessorOptions())
    assert set(asked) <= {"list", "row"}
    # Intervals are up to a tenth shorter, so that hosts do not run in step.
    turns = RESTS_S / OPTIONS.interval_s
    assert expected.listings * (turns - 1) <= asked["list"] <= expected.listings * turns * 1.12
    assert expected.writes * (turns - 1) <= asked["row"] <= expected.writes * turns * 1.12
    total = expected.per_second * RESTS_S
    assert 0.95 * total <= asked.total() <= 1.12 * total


@pytest.mark.parametrize(("partitions", "hosts"), SIZES)
def test_the_page_has_the_computed_numbers(partitions: int, hosts: int) -> None:
    (row,) = (
        line for line in PAGE.splitlines() if line.startswith(f"| {partitions:,} x {hosts:,}")
    )
    assert row.endswith(f"| {' | '.join(calls_cells(partitions, hosts))} |")


@pytest.mark.parametrize(("partitions", "hosts"), SIZES[:2])
def test_after_a_cold_start_all_plans_together_claim_everything_once(
    partitions: int, hosts: int
) -> None:
    rows = cold(partitions, hosts)
    plans = [plan(rows, partitions, host) for host in range(hosts)]
    requested = Counter(partition for part in plans for partition in part)
    assert requested == Counter(str(n) for n in range(partitions))
    assert max(map(len, plans)) - min(map(len, plans)) <= 1


@pytest.mark.parametrize(("partitions", "hosts"), SIZES)
def test_a_new_host_requests_its_share_and_others_nothing(partitions: int, hosts: int) -> None:
    rows = newcomer(partitions, hosts)
    requested = plan(rows, partitions, hosts - 1)
    assert len(requested) == len(set(requested)) == partitions // hosts
    kept = Counter(row.owner for row in rows.ownerships if row.partition not in requested)
    assert max(kept.values()) - len(requested) <= 1
    for host in range(0, hosts - 1, max(1, hosts // 7)):
        assert plan(rows, partitions, host) == []


@pytest.mark.parametrize(("partitions", "hosts"), SIZES)
def test_at_rest_no_host_requests_anything(partitions: int, hosts: int) -> None:
    rows = at_rest(partitions, hosts)
    for host in range(0, hosts, max(1, hosts // 7)):
        assert plan(rows, partitions, host) == []


def test_partitions_of_a_tenth_of_the_hosts_are_claimed_once() -> None:
    partitions, hosts = SIZES[-1]
    gone = hosts // 10

    def owner(partition: int) -> str:
        return name(partition % hosts) if partition % hosts >= gone else ""

    rows = listing(partitions, hosts, owner)
    rows = type(rows)(rows.ownerships, rows.members[gone:])
    plans = [plan(rows, partitions, host) for host in range(gone, hosts, 60)]
    requested = Counter(partition for part in plans for partition in part)
    assert requested
    assert max(requested.values()) == 1
    assert {len(part) for part in plans} <= {1, 2}
