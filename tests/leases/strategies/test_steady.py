"""The steady strategy: every host computes the same plan with the fewest moves (fleet.py)."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.leases.strategies import STEADY, STEADY_BY_RATE, Strategy, limited
from pumphouse.leases.strategies.ring import assign, hashed
from tests.leases.strategies.fleet import Fleet, census_of, listing_of, lower_bound

PICTURES = st.text("abcdABC._", min_size=1, max_size=24)


def parts(picture: str) -> dict[str, list[str]]:
    """The choice of every live host of a picture."""
    hosts = [member.name for member in listing_of(picture).members]
    return {host: STEADY(census_of(picture, host), Random(1)) for host in hosts}


@pytest.mark.parametrize(
    ("picture", "counts"),
    [
        ("aaaa|b", {"a": 0, "b": 2}),
        ("aaaa|bc", {"a": 0, "b": 1, "c": 1}),
        ("....|ab", {"a": 2, "b": 2}),
        ("aabb", {"a": 0, "b": 0}),
        ("aab", {"a": 0, "b": 0}),
        ("aab.", {"a": 0, "b": 1}),
        ("aaa.|b", {"a": 0, "b": 2}),  # one free, one requested
        ("aaa>ba>b", {"a": 0, "b": 0}),  # incoming already
        ("ab|cd", {"a": 0, "b": 0, "c": 0, "d": 0}),  # hot standbys
        ("aaaabbbbc", {"a": 0, "b": 0, "c": 2}),
    ],
)
def test_every_host_requests_what_it_lacks(picture: str, counts: dict[str, int]) -> None:
    assert {host: len(part) for host, part in parts(picture).items()} == counts


def test_a_new_host_claims_nothing_in_its_first_cycle() -> None:
    assert STEADY(census_of("aaaa", "b"), Random(1)) == []
    assert STEADY(census_of("....", "b"), Random(1)) == []
    assert len(STEADY(census_of("....|b", "b"), Random(1))) == 4


@given(PICTURES)
def test_no_two_hosts_choose_the_same_partition(picture: str) -> None:
    requested = list(parts(picture).values())
    assert all(not set(mine) & set(other) for mine, other in combinations(requested, 2))


@given(PICTURES)
def test_everything_free_is_claimed_with_the_fewest_moves(picture: str) -> None:
    requested = parts(picture)
    if not requested:
        return
    census = census_of(picture, next(iter(requested)))
    claims = [p for part in requested.values() for p in part]
    assert set(census.free) <= set(claims)
    assert len(claims) - len(census.free) == lower_bound(census.counts, census.total)


@pytest.mark.parametrize("at_once", [False, True])
def test_no_host_is_taken_below_its_share(at_once: bool) -> None:
    fleet = Fleet.from_text("aaaaaabbbbbbcccccccc|defg")
    fleet.settle(5, at_once=at_once)
    assert sorted(fleet.counts().values()) == [2, 3, 3, 3, 3, 3, 3]
    assert fleet.moves == 11


@given(PICTURES)
def test_steady_uses_no_randomness(picture: str) -> None:
    census = census_of(picture, "a")
    assert STEADY(census, Random(1)) == STEADY(census, Random(2))


def test_hosts_that_start_together_share_without_a_move() -> None:
    fleet = Fleet([str(n) for n in range(256)], {}, Random(3))
    for host in "abcdefgh":
        fleet.join(host)
    for _ in range(2):
        fleet.run_round(at_once=True)
    assert set(fleet.counts().values()) == {32}
    assert (fleet.moves, fleet.refused) == (0, 0)


def test_one_host_more_or_less_changes_few_claims() -> None:
    hosts = [f"host-{n}" for n in range(8)]
    pool = [str(n) for n in range(256)]
    full = assign(pool, dict.fromkeys(hosts, 32))
    fewer = assign(pool, dict.fromkeys(hosts[:-1], 37))
    stayed = [p for p in pool if full[p] != hosts[-1]]
    assert sum(full[p] == fewer[p] for p in stayed) > 0.75 * len(stayed)


@given(
    st.integers(0, 40), st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9), max_size=8)
)
def test_an_assignment_fills_the_room_of_every_host(count: int, room: dict[str, int]) -> None:
    pool = [str(n) for n in range(count)]
    dealt = assign(pool, room)
    assert len(dealt) == min(count, sum(room.values()))
    given_to = list(dealt.values())
    assert all(given_to.count(host) <= room[host] for host in room)


def test_a_point_on_the_ring_is_the_same_in_every_process() -> None:
    assert [hashed("0"), hashed("host-a")] == [1524971041, 3483334732]
    assert assign("0123", {"a": 2, "b": 2}) == {"0": "a", "1": "a", "3": "b", "2": "b"}


# -- limits ---------------------------------------------------------------------------------------


def test_a_host_stays_within_its_limit() -> None:
    census = census_of("........|ab", "a")
    assert len(limited(STEADY, 2)(census, Random(1))) == 2


def test_others_claim_what_a_limited_host_leaves() -> None:
    fleet = Fleet.from_text("..........|abc")
    fleet.hosts["a"] = limited(STEADY, 2)
    fleet.limits = {"a": 2}
    assert fleet.settle(5) == 1
    assert fleet.counts() == {"a": 2, "b": 4, "c": 4}


def test_others_claim_it_without_knowing_the_limit() -> None:
    fleet = Fleet.from_text("..........|abc")
    fleet.hosts["a"] = limited(STEADY, 1)
    fleet.settle(9)
    counts = fleet.counts()
    assert sum(counts.values()) == 10
    assert counts["a"] == 1


def test_a_host_above_its_limit_gives_partitions_up() -> None:
    fleet = Fleet.from_text("aaaaaaa|b")
    fleet.hosts["a"] = limited(STEADY, 2)
    fleet.limits = {"a": 2}
    fleet.settle(5)
    assert (fleet.counts(), fleet.moves) == ({"a": 2, "b": 5}, 5)


def test_partitions_beyond_all_limits_stay_free() -> None:
    fleet = Fleet.from_text(".....|ab", limited(STEADY, 2))
    fleet.settle(5)
    assert fleet.counts() == {"a": 2, "b": 2}


# -- weighed by events per second -----------------------------------------------------------------


def rated(picture: str, rates: list[float | None], me: str) -> list[str]:
    return STEADY_BY_RATE(census_of(picture, me, rates=rates), Random(1))


def test_without_rates_shares_are_filled_as_by_steady() -> None:
    assert len(rated("aaaa|b", [], "b")) == 2
    assert len(rated("....|ab", [], "b")) == 2


def test_busy_partitions_are_spread_over_hosts() -> None:
    # a has two busy and two idle ones: b gets one of each.
    (first, second) = sorted(rated("aaaa|b", [100, 100, 1, 1], "b"))
    assert (first in "01", second in "23") == (True, True)


def test_free_partitions_go_to_idle_hosts_the_busiest_first() -> None:
    rates: list[float | None] = [90, 1, 2, 50]
    assert rated("AABa|b", rates, "a") == ["2"]
    assert rated("AABa|b", rates, "b") == ["0", "1"]


@given(st.data())
def test_hosts_with_different_rates_agree_on_free_partitions(data: st.DataObject) -> None:
    """I8: rates differ between listings, and still every partition of a dead host is claimed."""
    left: list[float | None] = data.draw(
        st.lists(st.floats(0, 100) | st.none(), min_size=5, max_size=5)
    )
    taken: list[str] = []
    for host in "bcd":
        seen = data.draw(st.lists(st.floats(0, 100), min_size=5, max_size=5))
        taken += rated("AAAAAbbccd", [*left, *seen], host)
    assert sorted(taken) == list("01234")


def test_a_claim_meanwhile_does_not_change_other_turns() -> None:
    rates: list[float | None] = [9, 7, 5, 3, 1]
    first, then = rated("AAAAA|bc", rates, "b"), rated("bAbAb|bc", rates, "c")
    assert (first, then) == (["0", "2", "4"], ["1", "3"])


def test_in_a_balanced_fleet_a_busy_host_exchanges_with_an_idle_one() -> None:
    rates: list[float | None] = [100, 100, 1, 1]
    assert rated("aabb", rates, "b") in (["0"], ["1"])
    assert rated("aabb", rates, "a") == []  # its half follows when the counts require it
    assert rated("aa>bbb", rates, "a") in (["2"], ["3"])


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ([100, 100, 90, 90], "within a fifth of the mean"),
        ([100, None, 1, 1], "a rate is not known"),
        ([200, 1, 1, 1], "nothing would be won"),
        ([0, 0, 0, 0], "nothing happens"),
        ([100, 100, 1, 1], "it is"),
    ],
)
def test_small_gains_are_not_exchanged(rates: list[float | None], why: str) -> None:
    assert bool(rated("aabb", rates, "b")) == (why == "it is")


def test_differences_by_chance_are_not_exchanged() -> None:
    """The same ratios as above, of some events in a minute."""
    assert rated("aabb", [1.0, 1.0, 0.01, 0.01], "b") != []
    assert rated("aabb", [0.02, 0.02, 0.0, 0.0], "b") == []


def test_nothing_is_exchanged_while_anything_is_incoming() -> None:
    rates: list[float | None] = [100, 100, 1, 1, 1, 1]
    assert rated("aabbcc", rates, "b") or rated("aabbcc", rates, "c")
    assert rated("aab>cbc>bc", rates, "b") == rated("aab>cbc>bc", rates, "c") == []


def test_an_exchange_is_not_reversed() -> None:
    """It starts at 20 % above the mean and stops at 10 %: between them nothing is exchanged."""
    assert rated("aaaabbbb", [20, 10, 10, 5, 20, 10, 5, 1], "b") == []  # 1.11 of the mean
    assert rated("aaaabbbb", [25, 15, 10, 5, 15, 10, 5, 1], "b") != []  # 1.28


@given(
    st.integers(1, 5).flatmap(
        lambda hosts: st.tuples(
            st.just("abcde"[:hosts]),
            st.lists(
                st.tuples(st.sampled_from("abcde"[:hosts] + "."), st.floats(0, 100)),
                min_size=1,
                max_size=16,
            ),
        )
    ),
    st.booleans(),
    st.integers(),
)
def test_constant_rates_come_to_rest_with_even_counts(
    drawn: tuple[str, list[tuple[str, float]]], at_once: bool, seed: int
) -> None:
    hosts, cells = drawn
    picture = "".join(owner for owner, _ in cells) + "|" + hosts
    fleet = Fleet.from_text(picture, STEADY_BY_RATE, Random(seed))
    fleet.rate = lambda partition: cells[int(partition)][1]
    fleet.settle(60, at_once=at_once)
    assert fleet.is_even


def test_an_exchange_that_another_host_would_complete_is_not_made() -> None:
    """If e took partition 2 of b, counts would then give partition 0 of e to a, and not to b."""
    rates = [1.0, 6.0, 4.0, 8.0, 3.0, 3.0, 0.0]
    fleet = Fleet.from_text("aabcaaa|abcde", STEADY_BY_RATE, Random(1))
    fleet.rate = lambda partition: rates[int(partition)]
    fleet.settle(60)
    assert fleet.is_even


def test_rates_become_more_even_than_by_counting() -> None:
    """Forty partitions, a fifth of them busy; one host owns all, three join."""
    worst: dict[Strategy, list[float]] = {STEADY: [], STEADY_BY_RATE: []}
    for seed in range(20):
        busy = set(Random(seed).sample(range(40), 8))
        for strategy, loads in worst.items():
            fleet = Fleet.from_text("a" * 40 + "|bcd", strategy, Random(seed))
            fleet.rate = {str(p): 50.0 if p in busy else 1.0 for p in range(40)}.get
            fleet.settle(60)
            loads.append(heaviest(fleet) / (8 * 50 + 32) * 4)
    assert max(worst[STEADY]) > 1.7
    assert max(worst[STEADY_BY_RATE]) < 1.1


def heaviest(fleet: Fleet) -> float:
    loads = dict.fromkeys(fleet.hosts, 0.0)
    for partition, row in fleet.rows.items():
        loads[row.owner] += fleet.rate(partition) or 0.0
    return max(loads.values())
