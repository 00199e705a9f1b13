"""The comparison with official hosts, in short: both sides play the same scene to its end."""

from __future__ import annotations

import pytest

from benchmarks._ledger import Ledger
from benchmarks._stage import LEAVE, Scene, Turn, ours, play
from benchmarks._stage_official import official
from benchmarks._strategies import cells, sides
from pumphouse.leases.strategies import STRATEGIES
from pumphouse.processor.options import ProcessorOptions

SMALL = Scene("4 partitions, 1 -> 2 hosts", 4, 1, joins=1, fewest=2)
DEATH = Scene("4 partitions, one of two dies", 4, 2, dies=1)
STEADY = ours(STRATEGIES["steady"], ProcessorOptions())


def test_our_hosts_need_the_fewest_moves_and_no_duplicates() -> None:
    found = play(SMALL, STEADY, seed=1, watch_s=300)
    assert (found.moves, found.handed, found.spread) == (2, 2, 0)
    assert (found.again, found.missed, found.unowned_s) == (0, 0, 0)
    assert found.seconds is not None
    assert found.seconds < 30
    assert found.calls > 0


def test_official_hosts_run_and_share() -> None:
    found = play(SMALL, official("greedy"), seed=1, watch_s=400)
    assert (found.moves, found.handed, found.spread, found.missed) == (2, 2, 0, 0)
    # It takes one partition per cycle of 30 s and more.
    assert found.seconds is not None
    assert found.seconds > 30
    assert found.calls > 0


@pytest.mark.parametrize(("turn", "lease_s"), [(STEADY, 30), (official("balanced"), 180)])
def test_partitions_of_a_dead_host_wait_for_its_lease(turn: Turn, lease_s: float) -> None:
    found = play(DEATH, turn, seed=2, watch_s=600)
    assert (found.handed, found.missed, found.moves) == (2, 0, 0)
    assert found.seconds is not None
    assert found.seconds > lease_s - turn.interval_s * 1.3
    assert found.unowned_s > 2 * (lease_s - turn.interval_s * 1.3)


def test_a_host_that_stops_gracefully_leaves_nothing_unhandled() -> None:
    found = play(LEAVE, STEADY, seed=3, watch_s=200)
    assert (found.again, found.missed, found.spread) == (0, 0, 0)
    assert found.handed in (3, 4)


def test_the_same_seed_gives_the_same_measurement() -> None:
    for turn in (STEADY, official("balanced")):
        assert play(SMALL, turn, 7, 200) == play(SMALL, turn, 7, 200)


def test_the_table_has_every_cell_and_every_side() -> None:
    found = [play(SMALL, STEADY, seed, 150) for seed in (1, 2)]
    assert len(list(cells(SMALL, STEADY, found))) == 7
    assert len([name for name, _ in sides() if "azure" in name]) == 2
    with pytest.raises(AssertionError, match="never handled"):
        list(cells(SMALL, STEADY, [found[0]._replace(missed=3)]))


def test_the_ledger_counts() -> None:
    now = [0.0]
    ledger = Ledger(("0", "1"), lambda: now[0])
    ledger.came("a")
    ledger.wrote("0", "a")
    ledger.wrote("1", "a")
    ledger.begin()
    now[0] = 10.0
    ledger.came("b")
    now[0] = 12.0
    ledger.wrote("1", "b")  # a move
    now[0] = 20.0
    ledger.went("b")  # partition 1 has no owner for three seconds
    now[0] = 23.0
    ledger.wrote("1", "a")  # taken over: no move, but it changed hands
    ledger.given("0", [1, 2, 3])
    ledger.given("0", [3, 4])
    ledger.done("0", [1, 2])
    found = ledger.measured({"0": 5})
    assert (found.moves, found.handed, found.again, found.spread) == (1, 2, 1, 0)
    assert (found.unowned_s, found.seconds) == (3.0, 23.0)
    assert found.missed == 3
