"""The history of alerts."""

from __future__ import annotations

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.alerts import ALERTS_MAX, AlertHistory
from pumphouse.homes.record.alert_states import AlertState
from tests.dashboard.views.home_bodies import NOW, alert


def test_a_duplicate_alert_is_ignored() -> None:
    alerts = AlertHistory()
    assert alerts.add(alert(42))
    assert not alerts.add(alert(42, at=NOW + 60_000))
    assert alerts.add(alert(42, since=2000))
    assert len(alerts.of_home("h000042")) == 2
    assert [item.alert.since for item in alerts.since(1, 10)] == [2000]
    assert alerts.per_minute(NOW, 2) == [0, 2]


def test_the_alert_history_is_bounded() -> None:
    alerts = AlertHistory()
    for number in range(ALERTS_MAX + 5):
        alerts.add(alert(number % 7, since=number))
    assert len(alerts) == ALERTS_MAX
    assert len(alerts.of_home("h000003")) == 20
    assert alerts.open_count == ALERTS_MAX


def test_open_alerts_are_counted_and_come_first() -> None:
    alerts = AlertHistory()
    for home, at in ((1, NOW - 2000), (2, NOW - 1000), (2, NOW)):
        alerts.add(alert(home, since=at, at=at))
    assert (alerts.open_count, alerts.open_of_home("h000002")) == (3, 2)
    newest = alerts.newest(1)[0].alert
    assert newest.at == NOW
    closed = AlertState(closed_at=NOW, closed_by="Ada")
    assert alerts.set_state(newest.id, closed) == newest
    assert alerts.set_state(newest.id, closed) is None, "nothing has changed"
    assert alerts.set_state("fire:h000009:1", closed) is None
    assert (alerts.open_count, alerts.open_of_home("h000002")) == (2, 1)
    assert [shown.alert.at for shown in alerts.newest(3)] == [NOW - 1000, NOW - 2000, NOW]
    assert [shown.state.word for shown in alerts.since(3, 10)] == ["closed"]
    assert alerts.count_last_day(NOW) == 3
