"""The delay from sensor to page."""

from __future__ import annotations

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.delays import Delays
from tests.dashboard.views.home_bodies import NOW


def test_delays_are_medians_of_fresh_readings() -> None:
    delays = Delays()
    assert delays.to_json(NOW)["total_s"] is None
    for late in (1000, 2000, 9000):
        delays.add(NOW - late - 300, NOW - 300, NOW)
    delays.add(NOW - 900_000, NOW - 800_000, NOW)  # old: ignored
    assert delays.to_json(NOW) == {"hub_s": 2.0, "page_s": 0.3, "total_s": 2.3}
    assert delays.behind_ms == 800_000
    assert delays.to_json(NOW + 11_000)["total_s"] is None
