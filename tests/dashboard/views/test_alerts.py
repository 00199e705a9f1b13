"""The history of alerts."""

from __future__ import annotations

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.alerts import ALERTS_MAX, AlertHistory
from tests.dashboard.views.home_bodies import NOW, alert


def test_a_duplicate_alert_is_ignored() -> None:
    alerts = AlertHistory()
    assert alerts.add(alert(42))
    assert not alerts.add(alert(42, at=NOW + 60_000))
    assert alerts.add(alert(42, since=2000))
    assert len(alerts.of_home("h000042")) == 2
    assert [item.since for item in alerts.since(1, 10)] == [2000]
    assert alerts.per_minute(NOW, 2) == [0, 2]


def test_the_alert_history_is_bounded() -> None:
    alerts = AlertHistory()
    for number in range(ALERTS_MAX + 5):
        alerts.add(alert(number % 7, since=number))
    assert len(alerts) == ALERTS_MAX
    assert len(alerts.of_home("h000003")) == 20
