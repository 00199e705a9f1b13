"""Any fleet comes to rest within one of even, with every strategy, while hosts come and go.

Hosts play rounds in turn, each seeing what the one before did, or all at once from one listing.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.leases.strategies import STEADY, STRATEGIES, Strategy, fixed, limited
from tests.leases.strategies.fleet import Fleet, lower_bound

BALANCING = [each for each in STRATEGIES.values() if each.name != "steady:rates"]  # see test_steady
HOSTS = "abcdef"


@dataclass(frozen=True)
class Drawn:
    """An initial fleet: some hosts own partitions, some do not, some have died."""

    picture: str
    at_once: bool
    seed: int

    def fleet(self, strategy: Strategy) -> Fleet:
        return Fleet.from_text(self.picture, strategy, Random(self.seed))


@st.composite
def fleets(draw: st.DrawFn) -> Drawn:
    hosts = HOSTS[: draw(st.integers(1, len(HOSTS)))]
    owners = hosts[: draw(st.integers(1, len(hosts)))]  # the others own nothing
    owners += draw(st.sampled_from(["", ".", "._XY"]))
    cells = draw(st.text(owners, min_size=1, max_size=24))
    return Drawn(f"{cells}|{hosts}", draw(st.booleans()), draw(st.integers()))


@pytest.mark.parametrize("strategy", BALANCING, ids=str)
@given(drawn=fleets())
def test_any_fleet_settles_within_one_of_even_and_then_rests(
    strategy: Strategy, drawn: Drawn
) -> None:
    fleet = drawn.fleet(strategy)
    # Strategies that move one at a time need a round for each; random choices may need more.
    fleet.settle(3 * len(fleet.partitions) + 10, at_once=drawn.at_once)
    assert fleet.is_even
    rested = fleet.text()
    assert [fleet.run_round(at_once=drawn.at_once) for _ in range(5)] == [0] * 5
    assert fleet.text() == rested


@given(drawn=fleets())
def test_steady_needs_two_rounds_and_the_fewest_moves(drawn: Drawn) -> None:
    fleet = drawn.fleet(STEADY)
    fewest = lower_bound(fleet.counts(), len(fleet.partitions))
    assert fleet.settle(6, at_once=drawn.at_once) <= 2  # to request, and to receive
    assert fleet.moves == fewest
    assert fleet.refused == 0


@pytest.mark.parametrize("strategy", BALANCING, ids=str)
@given(drawn=fleets(), later=st.data())
def test_a_fleet_settles_while_hosts_come_and_go(
    strategy: Strategy, drawn: Drawn, later: st.DataObject
) -> None:
    fleet = drawn.fleet(strategy)
    for _ in range(6):
        change = later.draw(st.sampled_from(["join", "crash", "nothing"]))
        if change == "join" and (missing := sorted(set(HOSTS) - set(fleet.hosts))):
            fleet.join(later.draw(st.sampled_from(missing)), strategy)
        elif change == "crash" and len(fleet.hosts) > 1:
            fleet.crash(later.draw(st.sampled_from(sorted(fleet.hosts))))
        fleet.run_round(at_once=drawn.at_once)
    for _ in range(4):  # until the leases and beats of the dead have expired
        fleet.run_round(at_once=drawn.at_once)
    fleet.settle(3 * len(fleet.partitions) + 10, at_once=drawn.at_once)
    assert fleet.is_even


@pytest.mark.parametrize("strategy", BALANCING, ids=str)
def test_partitions_of_a_dead_host_are_claimed_within_a_lease_and_a_round(
    strategy: Strategy,
) -> None:
    fleet = Fleet.from_text("aabbcc", strategy, Random(2))
    fleet.crash("c")
    for _ in range(3):
        fleet.run_round()
    fleet.settle(8)
    assert fleet.counts() == {"a": 3, "b": 3}


def test_a_request_of_a_dead_host_lapses() -> None:
    fleet = Fleet.from_text("aaaa|b", STEADY)
    fleet.run_round()
    fleet.run_round()
    assert fleet.counts() == {"a": 2, "b": 2}
    fleet.join("c")
    fleet.run_round(at_once=True)
    fleet.run_round(at_once=True)  # c requests
    fleet.crash("c")
    for _ in range(9):
        fleet.run_round()
    assert fleet.is_even


def test_an_owner_without_hand_overs_loses_the_partition_at_the_deadline() -> None:
    fleet = Fleet.from_text("aaaa|b", STEADY)
    fleet.hosts["a"] = fixed(4)  # like an official client, it keeps renewing
    fleet.run_round(at_once=True)
    assert fleet.text().count(">b") == 2
    for _ in range(4):
        fleet.run_round(at_once=True)
    assert fleet.counts() == {"a": 2, "b": 2}


# -- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", BALANCING, ids=str)
@given(drawn=fleets(), most=st.lists(st.none() | st.integers(1, 6), min_size=6, max_size=6))
def test_with_limits_every_possible_partition_is_owned(
    strategy: Strategy, drawn: Drawn, most: list[int | None]
) -> None:
    fleet = drawn.fleet(strategy)
    limits = dict(zip(HOSTS, most, strict=True))
    fleet.hosts = {host: limited(strategy, limits[host]) for host in fleet.hosts}
    fleet.limits = {host: limits[host] for host in fleet.hosts}
    began = fleet.counts()
    fleet.settle(4 * len(fleet.partitions) + 10, at_once=drawn.at_once)
    counts, total = fleet.counts(), len(fleet.partitions)
    allowed = {host: total if limits[host] is None else limits[host] or 0 for host in counts}
    assert all(counts[host] <= max(allowed[host], began[host]) for host in counts)
    assert sum(counts.values()) >= min(total, sum(allowed.values()))


@given(drawn=fleets(), most=st.lists(st.none() | st.integers(1, 6), min_size=6, max_size=6))
def test_steady_is_even_within_known_limits(drawn: Drawn, most: list[int | None]) -> None:
    fleet = drawn.fleet(STEADY)
    limits = dict(zip(HOSTS, most, strict=True))
    fleet.hosts = {host: limited(STEADY, limits[host]) for host in fleet.hosts}
    fleet.limits = {host: limits[host] for host in fleet.hosts}
    assert fleet.settle(8, at_once=drawn.at_once) <= 2
    counts = fleet.counts()
    roomy = [n for host, n in counts.items() if limits[host] is None or n < (limits[host] or 0)]
    assert not roomy or max(roomy) - min(roomy) <= 1


# -- fixed ----------------------------------------------------------------------------------------


@given(
    partitions=st.integers(1, 20),
    numbers=st.lists(st.integers(1, 8), min_size=1, max_size=5),
    at_once=st.booleans(),
    seed=st.integers(),
)
def test_fixed_hosts_fill_up_one_by_one_and_nothing_ever_moves(
    partitions: int, numbers: list[int], at_once: bool, seed: int
) -> None:
    hosts = {f"h{n}": fixed(count) for n, count in enumerate(numbers)}
    fleet = Fleet([str(p) for p in range(partitions)], hosts, Random(seed))
    gained = 0
    for _ in range(60):
        fleet.run_round(at_once=at_once)
        owned = sum(fleet.counts().values())
        assert owned - gained <= len(hosts)
        gained = owned
    assert gained == min(partitions, sum(numbers))
    assert fleet.moves == 0
    counts = list(fleet.counts().values())
    assert all(count <= most for count, most in zip(counts, numbers, strict=True))
