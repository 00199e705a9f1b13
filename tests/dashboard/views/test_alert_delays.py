"""The delay from sensor to alert."""

from __future__ import annotations

from pumphouse.dashboard.views.alert_delays import AlertDelays, alert_delays
from pumphouse.dashboard.views.alerts import AlertHistory
from tests.dashboard.views.home_bodies import NOW, alert

MINUTE_MS = 60_000


def history(*delays_ms: int, received_ms: int = NOW) -> AlertHistory:
    alerts = AlertHistory()
    for home, delay_ms in enumerate(delays_ms):
        alerts.add(alert(home, at=received_ms - delay_ms), enqueued=received_ms)
    return alerts


def test_without_a_recent_alert_the_delay_is_unknown() -> None:
    old = history(2000, received_ms=NOW - 5 * MINUTE_MS)
    old.add(alert(99), enqueued=None)  # a database of an earlier version
    delays = alert_delays(old.all(), NOW)
    assert delays == AlertDelays()
    assert delays.to_json() == {"alerts": 0, "p50_s": None, "p99_s": None}


def test_delays_are_those_of_the_last_five_minutes() -> None:
    recent = history(1000, 2000, received_ms=NOW - 5 * MINUTE_MS + 1)
    recent.add(alert(98, at=NOW - 3 * 86_400_000), enqueued=NOW - 6 * MINUTE_MS)
    assert alert_delays(recent.all(), NOW) == AlertDelays(2, 1.0, 2.0)


def test_a_percentile_is_one_of_the_delays() -> None:
    hundred = history(*range(1000, 101_000, 1000))
    assert alert_delays(hundred.all(), NOW) == AlertDelays(100, 50.0, 99.0)
    assert alert_delays(history(1044).all(), NOW) == AlertDelays(1, 1.04, 1.04)
    assert alert_delays(history(1000, 2000, 9000).all(), NOW) == AlertDelays(3, 2.0, 9.0)


def test_a_sensor_whose_clock_is_ahead_has_no_negative_delay() -> None:
    assert alert_delays(history(-500).all(), NOW) == AlertDelays(1, 0.0, 0.0)


def test_an_alert_counts_with_its_first_arrival() -> None:
    alerts = history(1000)
    assert not alerts.add(alert(0, at=NOW - 1000), enqueued=NOW + 7000)
    assert alert_delays(alerts.all(), NOW) == AlertDelays(1, 1.0, 1.0)
