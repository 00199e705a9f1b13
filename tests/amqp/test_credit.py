"""Credit and windows: the remaining credit, also across the wrap at 2^32."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.credit import HALF, WRAP, advance, allowed, distance, needs_topping_up

numbers = st.integers(0, WRAP - 1)
distances = st.integers(-HALF, HALF - 1)
amounts = st.integers(0, HALF - 1)


@pytest.mark.parametrize(
    ("seen", "granted", "sent", "remaining"),
    [
        (0, 0, 0, 0),  # no credit at all
        (0, 10, 0, 10),
        (0, 10, 10, 0),  # used up
        (100, 50, 120, 30),  # the peer has not received the last twenty
        (0, 10, 11, 0),  # the peer withdrew credit: never below zero
        (WRAP - 1, 3, 1, 1),  # across the wrap
        (WRAP - 5, 5, 0, 0),
        (2, 5, WRAP - 1, 8),  # the peer claims to have received more than was sent
        (0, WRAP - 1, 0, WRAP - 1),
        (1, WRAP - 1, 0, WRAP - 1),  # the same claim must not exceed what a frame can hold
        (HALF, HALF, 0, WRAP - 1),
    ],
)
def test_the_remaining_credit(seen: int, granted: int, sent: int, remaining: int) -> None:
    assert allowed(seen, granted, sent) == remaining


@given(numbers, distances)
def test_distance_undoes_advance(start: int, offset: int) -> None:
    assert distance(start, advance(start, offset)) == offset


@given(numbers, numbers)
def test_advance_undoes_distance(start: int, end: int) -> None:
    assert advance(start, distance(start, end)) == end
    assert -HALF <= distance(start, end) < HALF


@given(numbers, amounts, amounts)
def test_a_sender_stops_exactly_at_the_grant(seen: int, granted: int, sent: int) -> None:
    """Sending the remaining credit leaves zero, for any counters."""
    now = advance(seen, min(sent, granted))
    remaining = allowed(seen, granted, now)
    assert remaining == granted - min(sent, granted)
    assert allowed(seen, granted, advance(now, remaining)) == 0


@given(numbers, amounts, amounts, numbers)
def test_the_start_of_the_counters_does_not_matter(
    seen: int, granted: int, sent: int, shift: int
) -> None:
    credit = allowed(seen, granted, advance(seen, sent))
    shifted_credit = allowed(advance(seen, shift), granted, advance(seen, sent + shift))
    assert credit == shifted_credit


@pytest.mark.parametrize(
    ("remaining", "full", "low"),
    [(10, 10, False), (6, 10, False), (5, 10, True), (0, 10, True), (-3, 10, True), (0, 1, True)],
)
def test_credit_is_granted_again_at_half(remaining: int, full: int, low: bool) -> None:
    assert needs_topping_up(remaining, full) is low
