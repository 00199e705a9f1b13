"""Rates from successive samples of a group."""

from __future__ import annotations

from pumphouse.dashboard.views.rates import Rate, RateMeter
from tests.dashboard.views.group_overviews import group_overview


def test_a_rate_is_the_rise_over_the_time_between_samples() -> None:
    meter = RateMeter()
    first = meter.add(group_overview(checkpoints_at=(90, None)), 100.0, 1)
    assert (first.into, first.out) == (None, None)
    meter.add(group_overview(checkpoints_at=(100, 20), ends=(119, 99)), 102.0, 2)
    assert meter.rates() == {"0": Rate(10.0, 5.0), "1": Rate(0.0, 0.0)}
    assert meter.points[-1].to_json() == [2, 10.0, 5.0, 98]


def test_a_falling_number_counts_as_no_change() -> None:
    meter = RateMeter()
    meter.add(group_overview(checkpoints_at=(90, 40)), 0.0, 0)
    meter.add(group_overview(checkpoints_at=(10, 40), ends=(5, 99)), 1.0, 1)
    assert meter.total() == Rate(0.0, 0.0)


def test_old_samples_are_forgotten() -> None:
    meter = RateMeter()
    for second in range(40):
        meter.add(
            group_overview(checkpoints_at=(90, 40), ends=(second * 100, 99)), float(second), second
        )
    assert len(meter.samples) <= 14
    assert meter.rates()["0"].into == 100.0
