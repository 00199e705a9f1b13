"""The census of rows and members. Pictures: see fleet.py."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.leases.census import Level, take_census, water_level
from pumphouse.leases.model import (
    Listing,
    Member,
    Ownership,
    aged,
    confirm,
    hand_over,
    nominate,
)
from tests.leases.strategies.fleet import LEASE_S, census_of, listing_of, partitions_of

# -- what is whose --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("picture", "free"),
    [
        ("....", "0123"),  # never owned
        ("a_a", "1"),  # released
        ("aAb", "1"),  # expired
        ("aA>bb", "1"),  # expired, though a successor waits
        ("AB_.", "0123"),
        ("aa", ""),
    ],
)
def test_a_partition_without_a_live_owner_is_free(picture: str, free: str) -> None:
    assert census_of(picture, "a").free == tuple(free)


def test_a_lease_expires_at_lease_s() -> None:
    row = Ownership("0", "b", 1, "1", age_s=29.9)
    assert take_census("a", ["0"], Listing((row,)), LEASE_S).free == ()
    old = replace(row, age_s=30.0)
    assert take_census("a", ["0"], Listing((old,)), LEASE_S).free == ("0",)


def test_my_own_lease_expires_too() -> None:
    census = census_of("Aa", "a")
    assert (census.mine, census.free, census.own_count) == (("1",), ("0",), 1)


def test_owners_members_and_this_host_are_members() -> None:
    assert census_of("aBc.|d", "e").members == ("a", "c", "d", "e")


def test_a_host_with_a_live_row_is_a_member() -> None:
    """Without a member record, as the official clients have none."""
    rows = (Ownership("0", "a", 1), Ownership("1", "b", 1, age_s=LEASE_S), Ownership("2", "c", 1))
    assert take_census("me", ["0", "1", "2"], Listing(rows), LEASE_S).members == ("a", "c", "me")


def test_a_host_without_beats_is_not_a_member() -> None:
    listing = Listing((), (Member("b", age_s=LEASE_S), Member("c", age_s=29.0)))
    assert take_census("a", ["0"], listing, LEASE_S).members == ("a", "c")


def test_a_requested_partition_is_incoming() -> None:
    census = census_of("aaa>bb", "b")
    assert (census.mine, census.incoming, census.own_count) == (("3",), ("2",), 2)
    assert census.counts == {"a": 2, "b": 2}
    asked = census_of("aaa>bb", "a")
    assert (asked.mine, asked.outgoing, asked.own_count) == (("0", "1"), ("2",), 2)


def test_an_incoming_partition_cannot_be_requested() -> None:
    assert census_of("aaa>bb", "c").held == {"a": ("0", "1"), "b": ("3",)}
    assert census_of("aaa>b!b", "c").held == {"a": ("0", "1"), "b": ("3",)}


def test_a_dead_successor_does_not_count() -> None:
    census = census_of("aa>Cb", "b")
    assert census.counts == {"a": 2, "b": 1}
    # No host may replace it before its deadline: the row cannot be requested.
    assert census.held["a"] == ("0",)
    assert census_of("aa>C!b", "b").held["a"] == ("0", "1")


def test_a_handed_over_partition_is_its_new_owners_until_the_deadline() -> None:
    given = hand_over(nominate(Ownership("1", "a", 1, "1"), "b", 20.0), 10.0)
    listing = Listing((Ownership("0", "a", 1, "1"), given))
    census = take_census("a", ["0", "1"], listing, LEASE_S)
    assert (census.counts, census.held) == ({"a": 1, "b": 1}, {"a": ("0",)})
    assert take_census("b", ["0", "1"], listing, LEASE_S).mine == ("1",)
    late = Listing((Ownership("0", "a", 1, "1"), aged(given, 10.0)))
    assert take_census("a", ["0", "1"], late, LEASE_S).free == ("1",)
    confirmed = Listing((confirm(given),))
    assert take_census("a", ["1"], confirmed, LEASE_S).held == {"b": ("1",)}


def test_an_overdue_request_of_mine_is_due() -> None:
    census = census_of("aa>b!a>b", "b")
    assert (census.incoming, census.due) == (("1", "2"), ("1",))
    assert census_of("aa>b!a>b", "a").due == ()


def test_partitions_pinned_by_another_host_are_left_out() -> None:
    census = census_of("a!a!bb.", "b")
    assert (census.total, census.free, census.mine) == (3, ("4",), ("2", "3"))
    assert dict(census.held) == {"b": ("2", "3")}
    mine = census_of("a!a!bb.", "a")
    assert (mine.total, mine.mine) == (5, ("0", "1"))
    assert census_of("A!b", "b").free == ("0",)  # a dead owner pins nothing


def test_partitions_without_a_row_are_free_and_rows_without_a_partition_are_ignored() -> None:
    rows = (Ownership("0", "b", 1, "1"), Ownership("9", "z", 1, "1"))
    census = take_census("a", ["0", "1", "2"], Listing(rows), LEASE_S)
    assert (census.free, census.counts, census.total) == (("1", "2"), {"a": 0, "b": 1}, 3)


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    census = take_census("a", ["10", "9", "2", "x"], Listing(), LEASE_S)
    assert census.free == ("2", "9", "10", "x")


def test_known_rates_are_in_the_census() -> None:
    assert census_of("ab.", "a", rates=[5.0, None, 7.0]).rates == {"0": 5.0, "1": None, "2": None}


def test_the_rate_is_remembered_when_the_owner_changes() -> None:
    before = census_of("ab", "a", rates=[5.0, 6.0])
    now = take_census("a", ["0", "1"], listing_of("ba", [None, 8.0]), LEASE_S, before=before)
    assert now.rates == {"0": 5.0, "1": 8.0}


@given(st.text("abcABC._", min_size=1, max_size=12), st.randoms(use_true_random=False))
def test_the_order_of_a_listing_does_not_matter(picture: str, rng: Random) -> None:
    listing = listing_of(picture)
    rows, members = list(listing.ownerships), list(listing.members)
    rng.shuffle(rows)
    rng.shuffle(members)
    partitions = partitions_of(picture)
    census = take_census("a", partitions, listing, LEASE_S)
    rng.shuffle(partitions)
    assert take_census("a", partitions, Listing(tuple(rows), tuple(members)), LEASE_S) == census
    assert list(census.counts) == sorted(census.counts)
    assert list(census.held) == sorted(census.held)


@given(st.text("abcABC._", min_size=1, max_size=12))
def test_every_partition_is_free_or_counts_for_one_host(picture: str) -> None:
    census = census_of(picture, "a")
    assert sorted([*census.free, *census.assigned]) == sorted(partitions_of(picture))
    assert sum(census.counts.values()) == len(census.assigned)


# -- joining, and what is neglected ---------------------------------------------------------------


def test_a_new_host_has_joined_when_a_listing_contains_it() -> None:
    assert not census_of("aaa", "b").joined
    assert census_of("aaa|b", "b").joined
    assert census_of("aab", "b").joined


def test_a_new_host_has_joined_by_its_second_census() -> None:
    assert census_of("aaa", "b", before="aaa").joined


def test_a_partition_free_in_two_censuses_is_unclaimed() -> None:
    census = census_of("a..A|b", "b", before="a.bA|b")
    assert census.unclaimed == ("1", "3")


def test_nothing_is_unclaimed_while_hosts_join() -> None:
    assert census_of("....", "b", before="....").unclaimed == ()
    assert census_of("....|b", "b", before="....|b").unclaimed == ("0", "1", "2", "3")


# -- shares ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("total", "hosts", "limits", "level"),
    [
        (32, 2, [], Level(16, 0)),
        (31, 16, [], Level(1, 15)),
        (3, 8, [], Level(0, 3)),
        (10, 3, [2], Level(4, 0)),  # the two others share the rest
        (10, 3, [2, 3], Level(5, 0)),
        (10, 2, [4, 4], Level(4, 0)),  # all full: two partitions stay free
        (10, 2, [9], Level(5, 0)),  # a limit that is not reached
        (11, 2, [5], Level(6, 0)),
        (0, 2, [], Level(0, 0)),
    ],
)
def test_partitions_are_spread_as_evenly_as_limits_allow(
    total: int, hosts: int, limits: list[int], level: Level
) -> None:
    assert water_level(total, hosts, limits) == level


def test_extra_partitions_go_to_the_hosts_with_the_most() -> None:
    assert census_of("abbcc", "a").shares == {"a": 1, "b": 2, "c": 2}


def test_names_decide_between_equal_hosts() -> None:
    assert census_of(".....|abc", "c").shares == {"a": 2, "b": 2, "c": 1}
    # Claims of c meanwhile do not change it: otherwise both a and b would leave it to each other.
    assert census_of("c....|ab", "b").shares == {"a": 2, "b": 2, "c": 1}


def test_limits_of_members_lower_their_shares() -> None:
    listing = Listing((), (Member("a", max_partitions=1), Member("b")))
    census = take_census("c", [str(n) for n in range(10)], listing, LEASE_S)
    assert census.shares == {"a": 1, "b": 5, "c": 4}
    assert census.limited(2).shares == {"a": 1, "b": 7, "c": 2}


def test_a_live_owners_limit_counts_after_its_beat_expired() -> None:
    listing = Listing((Ownership("0", "a", 1, "1"),), (Member("a", age_s=999.0, max_partitions=1),))
    assert take_census("b", ["0", "1", "2"], listing, LEASE_S).shares == {"a": 1, "b": 2}


@given(st.lists(st.none() | st.integers(1, 9), min_size=1, max_size=7), st.integers(0, 30))
def test_shares_are_even_within_limits(limits: list[int | None], total: int) -> None:
    members = tuple(Member(f"h{n}", max_partitions=most) for n, most in enumerate(limits))
    census = take_census("h0", [str(n) for n in range(total)], Listing((), members), LEASE_S)
    shares = list(census.shares.values())
    room = sum(total if most is None else most for most in limits)
    assert sum(shares) == min(total, room)
    pairs = list(zip(shares, limits, strict=True))
    assert all(most is None or share <= most for share, most in pairs)
    roomy = [share for share, most in pairs if most is None or share < most]
    assert not roomy or max(shares) - min(roomy) <= 1
