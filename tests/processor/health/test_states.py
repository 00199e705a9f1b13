"""DelayTrend: growing delays, distinguished from those of idle and catching-up partitions."""

from __future__ import annotations

import pytest

from pumphouse.processor.health.states import GROWS_FOR_S, GROWTH_S, WINDOW_S, DelayTrend

TICK_S = 2.5


def trend(delays: list[float | None], busy: bool = True) -> DelayTrend:
    """One new batch per tick with these delays; None: no new batch, and no current one."""
    seen, batches = DelayTrend(), 0
    for number, delay_s in enumerate(delays):
        batches += delay_s is not None
        seen.add(number * TICK_S, batches, delay_s, busy and delay_s is not None)
    return seen


GROWING = [float(n) for n in range(20)]  # one second more per tick, for 47.5 s


@pytest.mark.parametrize(
    ("delays", "grows"),
    [
        ([], False),
        (GROWING, True),
        ([3600.0 + delay for delay in GROWING], True),  # the clocks differ
        (list(reversed(GROWING)), False),  # it catches up
        ([5.0] * 40, False),
        ([0.0, 1.0, 30.0], False),  # one slow batch
        ([*GROWING, None], False),  # it waits for events
    ],
)
def test_a_delay_that_grows(delays: list[float | None], grows: bool) -> None:
    assert trend(delays).grows is grows


def test_the_growth_and_its_time_are_bounds() -> None:
    for growth_s, after_s, grows in [
        (GROWTH_S, GROWS_FOR_S, True),
        (GROWTH_S - 0.1, GROWS_FOR_S, False),
        (GROWTH_S, GROWS_FOR_S - 0.1, False),
    ]:
        seen = DelayTrend()
        seen.add(0.0, 1, 1.0, busy=True)
        seen.add(after_s, 2, 1.0 + growth_s, busy=True)
        assert seen.grows is grows


def test_a_slow_current_batch_keeps_the_trend() -> None:
    seen = trend(list(GROWING))
    seen.add(60.0, len(GROWING), 19.0, busy=True)
    assert seen.grows


def test_a_delay_that_stays_high_is_the_normal_one_after_a_while() -> None:
    seen = trend([*GROWING, *[19.0] * round(WINDOW_S / TICK_S)])
    assert not seen.grows
