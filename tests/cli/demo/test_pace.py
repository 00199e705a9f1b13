"""A growing lag reduces the number of homes. A lag that falls at the end of a batch does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.cli.demo import pace
from pumphouse.cli.demo.pace import Sample

HOMES = 100_000
A_SECOND = int(pace.rate_of(HOMES))


def samples(lag_at: Callable[[int], float], seconds: int = 180) -> list[Sample]:
    return [Sample(float(at), int(lag_at(at))) for at in range(seconds)]


def test_a_lag_that_rises_and_falls_with_batches_keeps_the_homes() -> None:
    saw = samples(lambda at: (at % 10) * A_SECOND * 3)
    assert pace.next_homes(HOMES, saw, 0.0) == HOMES


def test_a_growing_lag_reduces_the_homes() -> None:
    assert pace.next_homes(HOMES, samples(lambda at: at * A_SECOND * 0.5), 0.0) == 70_000


def test_a_growing_minimum_of_the_lag_reduces_the_homes() -> None:
    growing = samples(lambda at: at * A_SECOND * 0.4 + (at % 10) * A_SECOND)
    assert pace.next_homes(HOMES, growing, 0.0) == 70_000


def test_a_falling_lag_keeps_the_homes() -> None:
    assert pace.next_homes(HOMES, samples(lambda at: (400 - at) * A_SECOND), 0.0) == HOMES


def test_a_constant_lag_keeps_the_homes() -> None:
    assert pace.next_homes(HOMES, samples(lambda at: 60 * A_SECOND), 0.0) == HOMES


def test_a_recent_change_is_given_time() -> None:
    growing = samples(lambda at: at * A_SECOND)
    assert pace.next_homes(HOMES, growing, changed_s=100.0) == HOMES
    assert pace.next_homes(HOMES, growing[:90], 0.0) == HOMES
    assert pace.next_homes(HOMES, [], 0.0) == HOMES


@pytest.mark.parametrize(
    ("requested", "cores", "memory_gib", "given"),
    [
        (100_000, 2, 24.0, 100_000),
        (100_000, 1, 24.0, 50_000),
        (100_000, 2, 2.0, 50_000),
        (100, 2, 24.0, 100),
        (400_000, 4, 64.0, 200_000),
    ],
)
def test_the_machine_limits_the_first_number_of_homes(
    requested: int, cores: int, memory_gib: float, given: int
) -> None:
    assert pace.fitting(requested, cores, memory_gib) == given


@given(st.integers(1, 10_000_000))
def test_fewer_is_never_more(homes: int) -> None:
    assert pace.fewer(homes) <= max(homes, pace.LEAST_HOMES)
