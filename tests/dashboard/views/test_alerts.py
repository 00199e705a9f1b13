"""The history of alerts."""

from __future__ import annotations

import pytest

from pumphouse.dashboard.views import alerts as module
from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.alerts import AlertHistory, CountedAlert
from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.schema import DAY_MS
from tests.dashboard.views.home_bodies import NOW, alert

SHOWN, COUNTED = 30, 60


def test_a_duplicate_alert_is_ignored() -> None:
    alerts = AlertHistory()
    assert alerts.add(alert(42))
    assert not alerts.add(alert(42, at=NOW + 60_000))
    assert alerts.add(alert(42, since=2000))
    assert len(alerts.of_home("h000042")) == 2
    assert [item.alert.since for item in alerts.since(1, 10)] == [2000]
    assert alerts.per_minute(NOW, 2) == [0, 2]


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALERTS_MAX", SHOWN)
    monkeypatch.setattr(module, "COUNTED_MAX", COUNTED)
    monkeypatch.setattr(module, "TIDY_EVERY", 1)


@pytest.mark.usefixtures("limits")
def test_the_alert_history_is_bounded() -> None:
    alerts = AlertHistory()
    for number in range(COUNTED + 5):
        alerts.add(alert(1, since=number))
    assert len(alerts) == SHOWN
    assert len(alerts.of_home("h000001")) == 20
    assert alerts.open_count == COUNTED


@pytest.mark.usefixtures("limits")
def test_alerts_that_are_not_shown_are_counted() -> None:
    alerts, closed = AlertHistory(), AlertState(closed_at=NOW, closed_by="Ada")
    for number in range(SHOWN + 2):
        alerts.add(alert(number, since=number, at=NOW + number))
    oldest = alert(0, since=0, at=NOW)
    assert (alerts.find(oldest.id), oldest.id in alerts) == (None, True)
    assert alerts.add(oldest) == (), "a duplicate"
    assert (alerts.open_count, alerts.open_of_home("h000000")) == (SHOWN + 2, 1)
    assert alerts.count_last_day(NOW) == sum(alerts.per_minute(NOW, 1)) == SHOWN + 2
    assert alerts.set_state(oldest.id, closed) == "h000000"
    assert alerts.set_state(oldest.id, closed) is None, "nothing has changed"
    assert (alerts.open_count, alerts.open_of_home("h000000")) == (SHOWN + 1, 0)
    assert alerts.count_last_day(NOW) == SHOWN + 2
    assert alerts.set_state(oldest.id, AlertState()) == "h000000"
    assert alerts.open_count == SHOWN + 2
    assert (alerts.lacks_open, alerts.lacks_day(NOW)) == (False, False)


def test_a_counted_alert_of_the_database_replaces_that_of_the_hub() -> None:
    """Its state is known: it was closed before."""
    alerts, known = AlertHistory(), alert(1)
    alerts.add(known)
    for _ in range(2):
        alerts.count(known.id, CountedAlert(known.home, known.at, is_open=False))
        assert (alerts.open_count, len(alerts), alerts.count_last_day(NOW)) == (0, 0, 1)


def test_open_alerts_are_counted_and_come_first() -> None:
    alerts = AlertHistory()
    for home, at in ((1, NOW - 2000), (2, NOW - 1000), (2, NOW)):
        alerts.add(alert(home, since=at, at=at))
    assert (alerts.open_count, alerts.open_of_home("h000002")) == (3, 2)
    newest = alerts.newest(1)[0].alert
    assert newest.at == NOW
    closed = AlertState(closed_at=NOW, closed_by="Ada")
    assert alerts.set_state(newest.id, closed) == newest.home
    assert alerts.set_state(newest.id, closed) is None, "nothing has changed"
    assert alerts.set_state("fire:h000009:1", closed) is None
    assert (alerts.open_count, alerts.open_of_home("h000002")) == (2, 1)
    assert [shown.alert.at for shown in alerts.newest(3)] == [NOW - 1000, NOW - 2000, NOW]
    assert [shown.state.name for shown in alerts.since(3, 10)] == ["closed"]
    assert alerts.count_last_day(NOW) == 3


@pytest.mark.usefixtures("limits")
def test_counts_are_lower_bounds_after_an_alert_was_left_out() -> None:
    alerts = AlertHistory()
    for number in range(COUNTED):
        alerts.add(alert(1 + number % 7, since=number, at=NOW + number))
    assert (alerts.lacks_open, alerts.lacks_day(NOW)) == (False, False)
    counted = alerts.open_of_home("h000001")
    assert alerts.add(alert(9)) == ("h000009", "h000001"), "the oldest alert is of home 1"
    assert alerts.open_of_home("h000001") == counted - 1
    assert (alerts.lacks_open, alerts.lacks_day(NOW)) == (True, True)
    assert not alerts.lacks_day(NOW + DAY_MS), "what was left out is older than a day"


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("number", [SHOWN, COUNTED])
def test_closed_alerts_older_than_a_day_are_left_out_first(number: int) -> None:
    """They do not count, so the numbers stay exact."""
    alerts, closed = AlertHistory(), AlertState(closed_at=NOW, closed_by="Ada")
    for each in range(number):
        old = alert(each % 7, since=each, at=NOW - DAY_MS - each)
        alerts.add(old, closed if each % 2 else AlertState())
    for each in range(SHOWN // 2):
        assert len(alerts.add(alert(9, since=each, at=NOW))) == 1
    assert alerts.open_count == (number + SHOWN) // 2
    assert (alerts.lacks_open, alerts.lacks_day(NOW)) == (False, False)
    assert alerts.open_of_home("h000009") == SHOWN // 2


def test_the_database_may_have_more_alerts_than_the_page_reads() -> None:
    alerts = AlertHistory()
    alerts.left_out(NOW)
    assert alerts.lacks_open
    assert (alerts.lacks_day(NOW), alerts.lacks_day(NOW + DAY_MS)) == (True, False)
