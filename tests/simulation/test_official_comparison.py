"""The comparison with official hosts: both sides simulate the same scenario to its end."""

from __future__ import annotations

import pytest

from benchmarks._fleet_observer import FleetObserver
from benchmarks._fleet_scenarios import LEAVE, FleetKind, Scenario, ours, simulate
from benchmarks._official_hosts import official
from benchmarks._strategies import cells, sides
from pumphouse.leases.strategies import STRATEGIES
from pumphouse.processor.options import ProcessorOptions

SMALL = Scenario("4 partitions, 1 -> 2 hosts", 4, 1, joins=1, fewest=2)
DEATH = Scenario("4 partitions, one of two dies", 4, 2, dies=1)
STEADY = ours(STRATEGIES["steady"], ProcessorOptions())


def test_our_hosts_need_the_fewest_moves_and_no_duplicates() -> None:
    result = simulate(SMALL, STEADY, seed=1, watch_s=300)
    assert (result.moves, result.handed, result.spread) == (2, 2, 0)
    assert (result.again, result.missed, result.unowned_s) == (0, 0, 0)
    assert result.seconds is not None
    assert result.seconds < 30
    assert result.calls > 0


def test_official_hosts_run_and_share() -> None:
    result = simulate(SMALL, official("greedy"), seed=1, watch_s=400)
    assert (result.moves, result.handed, result.spread, result.missed) == (2, 2, 0, 0)
    # It claims one partition per cycle of 30 s and more.
    assert result.seconds is not None
    assert result.seconds > 30
    assert result.calls > 0


@pytest.mark.parametrize(("kind_of_fleet", "lease_s"), [(STEADY, 30), (official("balanced"), 180)])
def test_partitions_of_a_dead_host_wait_for_its_lease(
    kind_of_fleet: FleetKind, lease_s: float
) -> None:
    result = simulate(DEATH, kind_of_fleet, seed=2, watch_s=600)
    assert (result.handed, result.missed, result.moves) == (2, 0, 0)
    assert result.seconds is not None
    assert result.seconds > lease_s - kind_of_fleet.interval_s * 1.3
    assert result.unowned_s > 2 * (lease_s - kind_of_fleet.interval_s * 1.3)


def test_a_host_that_stops_gracefully_leaves_nothing_unhandled() -> None:
    result = simulate(LEAVE, STEADY, seed=3, watch_s=200)
    assert (result.again, result.missed, result.spread) == (0, 0, 0)
    assert result.handed in (3, 4)


def test_the_same_seed_gives_the_same_measurement() -> None:
    for kind_of_fleet in (STEADY, official("balanced")):
        assert simulate(SMALL, kind_of_fleet, 7, 200) == simulate(SMALL, kind_of_fleet, 7, 200)


def test_the_table_has_every_cell_and_every_side() -> None:
    result = [simulate(SMALL, STEADY, seed, 150) for seed in (1, 2)]
    assert len(list(cells(SMALL, STEADY, result))) == 7
    assert len([name for name, _ in sides() if "azure" in name]) == 2
    with pytest.raises(AssertionError, match="never handled"):
        list(cells(SMALL, STEADY, [result[0]._replace(missed=3)]))


def test_the_ledger_counts() -> None:
    now = [0.0]
    observer = FleetObserver(("0", "1"), lambda: now[0])
    observer.came("a")
    observer.wrote("0", "a")
    observer.wrote("1", "a")
    observer.begin()
    now[0] = 10.0
    observer.came("b")
    now[0] = 12.0
    observer.wrote("1", "b")  # a move
    now[0] = 20.0
    observer.went("b")  # partition 1 has no owner for three seconds
    now[0] = 23.0
    observer.wrote("1", "a")  # a takeover: not a move, but another owner
    observer.given("0", [1, 2, 3])
    observer.given("0", [3, 4])
    observer.done("0", [1, 2])
    result = observer.measured({"0": 5})
    assert (result.moves, result.handed, result.again, result.spread) == (1, 2, 1, 0)
    assert (result.unowned_s, result.seconds) == (3.0, 23.0)
    assert result.missed == 3
