"""The delay from sensor to page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.delays import SAMPLES_MAX, Delays
from tests.dashboard.views.home_bodies import NOW


def add(delays: Delays, at_ms: Sequence[int], enqueued_ms: Sequence[int], now_ms: int) -> None:
    delays.add(np.array(at_ms, np.int64), np.array(enqueued_ms, np.int64), now_ms)


def test_delays_are_medians_of_all_fresh_activities() -> None:
    delays = Delays()
    assert delays.to_json(NOW)["total_s"] is None
    # Three in one batch; the age of an activity is not the sum of the two medians.
    add(delays, [NOW - 4000, NOW - 5000, NOW - 9300], [NOW - 3000, NOW - 3500, NOW - 300], NOW)
    assert delays.to_json(NOW) == {"hub_s": 1.5, "page_s": 3.0, "total_s": 5.0}
    add(delays, [NOW - 900_000], [NOW - 800_000], NOW)  # old: ignored
    add(delays, [], [], NOW)
    assert delays.to_json(NOW)["total_s"] == 5.0
    assert delays.to_json(NOW + 11_000)["total_s"] is None


def test_the_samples_are_bounded() -> None:
    delays = Delays()
    for number in range(3):
        add(delays, [NOW - 1000 * number] * SAMPLES_MAX, [NOW] * SAMPLES_MAX, NOW)
    assert delays._count == SAMPLES_MAX
    assert delays.to_json(NOW)["hub_s"] == 2.0
