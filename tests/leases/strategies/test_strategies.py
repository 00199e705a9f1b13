"""The rules of all strategies, on fleets as pictures (see fleet.py)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pumphouse.errors import OptionError
from pumphouse.leases.census import take_census
from pumphouse.leases.model import Listing
from pumphouse.leases.strategies import (
    BALANCED,
    EPH,
    EPH_JS,
    GREEDY,
    STEADY,
    STEADY_BY_RATE,
    STRATEGIES,
    Strategy,
    fixed,
    limited,
    parse_strategy,
    settled,
)
from tests.leases.strategies.fleet import LEASE_S, census_of, listing_of, partitions_of

ALL = [*STRATEGIES.values(), fixed(3)]
BALANCING = list(STRATEGIES.values())
SEEDS = range(30)
PICTURES = st.text("abcdABC._", min_size=1, max_size=16)


def asked(strategy: Strategy, picture: str, me: str, seed: int = 1) -> list[str]:
    return strategy(census_of(picture, me), Random(seed))


def victims(picture: str, partitions: list[str]) -> str:
    """The owners of these partitions, one letter each."""
    return "".join(picture.partition("|")[0][int(p)] for p in partitions)


# -- greedy: the processor notes ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "me", "count"),
    [
        ("....", "a", 4),  # alone: claim everything
        ("aaaa", "b", 2),  # nothing free: steal half
        ("Aab", "b", 1),  # expired is free
        ("aab", "b", 0),  # a gap of one is balance
        ("aa..", "b", 2),
        ("aa...", "b", 3),  # no host has the extra one yet
        ("aaa..", "b", 2),  # another host has it
        ("aab.|c", "b", 0),  # the free one is c's share
        ("aaaabbcc", "b", 1),  # an extra one is due to b, and a has two too many
        ("aaaabb..", "b", 2),
        ("aabbcc", "d", 1),  # below the floor it may steal from those just above it
        ("ab", "c", 0),  # more hosts than partitions: a hot standby
        ("aaaaaaaaa", "b", 4),
        ("aaaaaa|bc", "b", 2),  # c is a member without partitions
        ("aaa>ba>b|b", "b", 0),  # incoming ones count
        ("aaa>ca>c|bc", "b", 1),  # from a: those incoming to c cannot be requested
    ],
)
def test_greedy_claims_its_whole_missing_share(picture: str, me: str, count: int) -> None:
    assert all(len(asked(GREEDY, picture, me, seed)) == count for seed in SEEDS)


def test_greedy_claims_free_ones_first_and_then_steals() -> None:
    claims = asked(GREEDY, "aaaaaa..", "b")
    assert victims("aaaaaa..", claims) == "..aa"


def test_greedy_steals_from_the_biggest_first() -> None:
    picture = "aaaaaabbbb"
    assert victims(picture, asked(GREEDY, picture, "c")) == "aaa"
    assert {victims("aaaabbbb", asked(GREEDY, "aaaabbbb", "c", seed)) for seed in SEEDS} == {
        "ab",
        "ba",
    }


def test_greedy_chooses_at_random() -> None:
    assert {tuple(asked(GREEDY, "aaaa", "b", seed)) for seed in range(200)} == {
        (first, second) for first in "0123" for second in "0123" if first != second
    }


# -- balanced: the processor notes ----------------------------------------------------------------


def test_balanced_does_nothing_with_its_fair_share() -> None:
    assert asked(BALANCED, "aabb", "a") == []
    assert asked(BALANCED, "aab", "b") == []


def test_balanced_claims_one_free_partition_at_random() -> None:
    claims = [asked(BALANCED, "a.a.a.", "b", seed) for seed in range(60)]
    assert {len(claim) for claim in claims} == {1}
    assert {claim[0] for claim in claims} == {"1", "3", "5"}


def test_balanced_steals_one_at_random_if_none_is_free() -> None:
    claims = [asked(BALANCED, "aaaab", "b", seed) for seed in range(80)]
    assert {len(claim) for claim in claims} == {1}
    assert {claim[0] for claim in claims} == {"0", "1", "2", "3"}


def test_balanced_does_not_steal_while_one_is_free() -> None:
    assert all(asked(BALANCED, "aaaa.", "b", seed) == ["4"] for seed in SEEDS)


def test_balanced_steals_only_from_an_owner_above_its_share() -> None:
    picture = "aaaabbc"
    assert {victims(picture, asked(BALANCED, picture, "c", seed)) for seed in SEEDS} == {"a"}


# -- fixed: the fixed-partition processor ---------------------------------------------------------


def test_fixed_gains_at_most_one_partition_per_cycle() -> None:
    assert all(len(asked(fixed(3), "......", "a", seed)) == 1 for seed in SEEDS)


def test_fixed_claims_in_random_order() -> None:
    assert {asked(fixed(3), "a...", "b", seed)[0] for seed in range(50)} == {"1", "2", "3"}


@pytest.mark.parametrize(("picture", "count"), [("aa....", 1), ("aaa...", 0), ("aaaa..", 0)])
def test_fixed_stops_at_its_number(picture: str, count: int) -> None:
    assert len(asked(fixed(3), picture, "a")) == count


def test_fixed_may_have_more_than_its_share() -> None:
    assert len(asked(fixed(3), "aa..|bcd", "a")) == 1


def test_fixed_claims_expired_and_released_partitions() -> None:
    assert asked(fixed(3), "bbB", "a") == ["2"]
    assert asked(fixed(3), "bb_", "a") == ["2"]


@given(PICTURES, st.integers(1, 9), st.integers())
@example("bbbb", 3, 1)  # nothing is free, and a strategy that balances would steal
def test_fixed_never_steals(picture: str, count: int, seed: int) -> None:
    census = census_of(picture, "a")
    claims = fixed(count)(census, Random(seed))
    assert set(claims) <= set(census.free)
    assert census.own_count + len(claims) <= max(count, census.own_count)


def test_fixed_pins_its_partitions() -> None:
    strategy = fixed(3)
    assert (strategy.steals, strategy.yields, strategy.grabs) == (False, False, False)


# -- eph: the Event Processor Host ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "count"),
    [
        ("........", 8),  # alone
        ("bbbb....", 4),
        ("bbb....", 4),  # the ceiling of 7 / 2
        ("bbbaaaa.", 0),  # full: that one is for b
        ("BBBB", 4),  # expired ones are claimed in parallel
    ],
)
def test_eph_claims_free_partitions_up_to_the_ceiling(picture: str, count: int) -> None:
    claims = asked(EPH, picture, "a")
    assert len(claims) == count
    assert set(claims) <= set(census_of(picture, "a").free)


@pytest.mark.parametrize(
    ("picture", "stolen"),
    [
        ("bbbb", "b"),  # four against none
        ("bba", ""),  # a gap of one
        ("bbba", "b"),  # a gap of two
        ("bbbbbbbbbb", "b"),  # exactly one, however many it lacks
        ("bbbbccca", "b"),  # from the biggest
        ("bbbbb.", ".b"),  # after the free ones
        ("bbb..", ".."),  # the free ones have narrowed the gap
    ],
)
def test_eph_steals_exactly_one_from_the_biggest_at_a_gap_of_two(picture: str, stolen: str) -> None:
    assert {victims(picture, asked(EPH, picture, "a", seed)) for seed in SEEDS} == {stolen}


@given(PICTURES, st.integers())
def test_eph_never_steals_more_than_one(picture: str, seed: int) -> None:
    census = census_of(picture, "a")
    stolen = [p for p in EPH(census, Random(seed)) if p not in census.free]
    biggest = max((n for host, n in census.counts.items() if host != "a"), default=0)
    assert len(stolen) <= 1
    assert all(census.counts[census.assigned[p]] == biggest >= census.own_count + 2 for p in stolen)


def test_eph_grabs_held_partitions() -> None:
    assert EPH.grabs
    assert EPH_JS.grabs
    assert not any(each.grabs for each in (BALANCED, GREEDY, STEADY, STEADY_BY_RATE))


def test_eph_steals_only_partitions_that_have_an_owner() -> None:
    """All free ones are claimed, and one more is stolen: of b, not a free one a second time."""
    picture = "bbbbbbbb...."
    for seed in SEEDS:
        *claims, stolen = asked(EPH, picture, "a", seed)
        assert sorted(claims) == ["10", "11", "8", "9"]
        assert victims(picture, [stolen]) == "b"


# -- eph_js: the JavaScript host ------------------------------------------------------------------


def test_eph_js_claims_all_free_ones_of_its_share() -> None:
    assert len(asked(EPH_JS, "bb......", "a")) == 4


def test_eph_js_steals_all_it_needs_from_one_owner() -> None:
    picture = "bbbbbbcccccc"
    stolen = {victims(picture, asked(EPH_JS, picture, "a", seed)) for seed in SEEDS}
    assert stolen == {"bb", "cc"}  # neither falls below four, its share


def test_eph_js_steals_several_at_once() -> None:
    assert len(asked(EPH_JS, "bbbbbbbb", "a")) == 4


def test_eph_js_picks_one_of_the_largest_owners() -> None:
    for picture, largest in (("bbbbcccca", {"b", "c"}), ("bbbbbbccccca", {"bb"})):
        stolen = {victims(picture, asked(EPH_JS, picture, "a", seed)) for seed in SEEDS}
        assert stolen == largest


@given(PICTURES, st.integers())
def test_eph_js_takes_no_owner_below_its_share(picture: str, seed: int) -> None:
    census = census_of(picture, "a")
    stolen = Counter(
        census.assigned[p] for p in EPH_JS(census, Random(seed)) if p in census.assigned
    )
    assert len(stolen) <= 1
    for host, count in stolen.items():
        assert census.counts[host] - count >= census.level.floor
        assert census.counts[host] == max(n for h, n in census.counts.items() if h != "a")


def test_eph_js_has_hot_standbys() -> None:
    assert asked(EPH_JS, "bc", "a") == []


# -- all of them ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ALL, ids=str)
@given(picture=PICTURES, seed=st.integers(), most=st.none() | st.integers(1, 5))
def test_no_strategy_claims_its_own_or_beyond_its_limit(
    strategy: Strategy, picture: str, seed: int, most: int | None
) -> None:
    strategy = limited(strategy, most)
    census = census_of(picture, "a", before="." * 16 + "|a")
    claims = strategy(census, Random(seed))
    assert len(set(claims)) == len(claims)
    assert not set(claims) & {*census.mine, *census.incoming, *census.outgoing}
    room = (strategy.max_partitions or 99) - census.own_count
    assert len(claims) <= max(0, room)
    assert strategy.steals or set(claims) <= set(census.free)


@pytest.mark.parametrize("strategy", ALL, ids=str)
@given(picture=PICTURES, seed=st.integers(), rng=st.randoms(use_true_random=False))
def test_the_order_in_which_a_store_lists_does_not_matter(
    strategy: Strategy, picture: str, seed: int, rng: Random
) -> None:
    listing, partitions = listing_of(picture), partitions_of(picture)
    choice = strategy(take_census("a", partitions, listing, LEASE_S), Random(seed))
    rows, members = list(listing.ownerships), list(listing.members)
    for each in (rows, members, partitions):
        rng.shuffle(each)
    shuffled = take_census("a", partitions, Listing(tuple(rows), tuple(members)), LEASE_S)
    assert strategy(shuffled, Random(seed)) == choice


@pytest.mark.parametrize("strategy", BALANCING, ids=str)
def test_a_partition_free_in_two_cycles_is_claimed(strategy: Strategy) -> None:
    # b has its share, and a does not claim its own: it has a limit that b does not know.
    (claim,) = strategy(census_of("abbb..|a", "b", before="abbb..|a"), Random(1))
    assert claim in ("4", "5")
    assert strategy(census_of("abbb..|a", "b", before="abbb.a|a"), Random(1)) == ["4"]


@pytest.mark.parametrize("strategy", [BALANCED, STEADY, STEADY_BY_RATE], ids=str)
def test_a_partition_free_for_one_cycle_is_left_to_its_host(strategy: Strategy) -> None:
    assert strategy(census_of("abbb..|a", "b", before="abbbaa|a"), Random(1)) == []


def test_settled_means_nothing_to_claim_incoming_or_outgoing() -> None:
    assert settled(census_of("aabb", "a"), [])
    assert not settled(census_of("aaab", "b"), ["0"])
    assert not settled(census_of("aaa>bb", "b"), [])
    assert not settled(census_of("aaa>bb", "a"), [])
    assert not settled(census_of("aaa", "b"), [])  # it has not joined yet


def test_only_greedy_is_eager() -> None:
    assert [each.name for each in ALL if each.eager] == ["greedy"]


def test_only_steady_joins_first() -> None:
    assert [each.name for each in ALL if each.joins_first] == ["steady", "steady:rates"]


# -- by name --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["steady", "steady:rates", "greedy", "balanced", "eph", "eph_js", "fixed:4"]
)
def test_a_strategy_is_parsed_by_its_name(text: str) -> None:
    assert str(parse_strategy(text)) == text
    assert parse_strategy(f" {text.upper()} ").name == text


@pytest.mark.parametrize("text", ["", "fast", "fixed", "fixed:", "fixed:x", "steady:4", "fixed:-1"])
def test_an_unknown_strategy_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(OptionError, match=r"unknown strategy .*: use one of steady, .*fixed:N"):
        parse_strategy(text)


def test_a_limit_of_zero_is_refused() -> None:
    with pytest.raises(OptionError, match="at least 1"):
        parse_strategy("fixed:0")
    with pytest.raises(OptionError, match="at least 1"):
        parse_strategy("steady", max_partitions=0)


def test_the_lower_of_two_limits_counts() -> None:
    assert parse_strategy("steady").max_partitions is None
    assert parse_strategy("steady", 5).max_partitions == 5
    assert parse_strategy("fixed:4", 9).max_partitions == 4
    assert parse_strategy("fixed:4", 2).max_partitions == 2
