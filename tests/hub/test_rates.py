"""Rates, computed from samples."""

from __future__ import annotations

from pumphouse.hub.rates import IDLE, Rate, Rates, Totals


def test_a_rate_is_the_difference_to_the_oldest_sample() -> None:
    rates: Rates[str] = Rates()
    assert rates.rate("a", 0.0, Totals(5, 5)) == IDLE
    rates.sample(0.0, {"a": Totals(0, 0)})
    assert rates.rate("a", 0.0, Totals(5, 5)) == IDLE  # no time has passed
    assert rates.rate("a", 2.0, Totals(100, 50)) == Rate(50.0, 25.0)
    assert rates.rate("b", 2.0, Totals(100, 50)) == IDLE
    for second in range(1, 31):
        rates.sample(float(second), {"a": Totals(100, 50), "b": Totals(0, 0)})
    assert rates.rate("a", 30.5, Totals(100, 50)) == IDLE  # the burst is no longer in the window
    assert rates.rate("b", 31.0, Totals(11, 0)) == Rate(1.0, 0.0)
