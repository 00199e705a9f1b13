"""What the page shows of kinds that a file adds."""

from __future__ import annotations

from collections.abc import Sequence

from pumphouse.dashboard.views.alert_details import alert_details_json
from pumphouse.dashboard.views.alerts import AlertHistory
from pumphouse.dashboard.views.columns import columns_of_rows, read_columns
from pumphouse.dashboard.views.home_states import (
    ACTIVE,
    ACTIVITY,
    ALARM,
    ALARM_NOW,
    INACTIVE,
    NO_DATA,
    QUIET,
    HomeStates,
)
from pumphouse.dashboard.views.homes import home_json, homes_vocabulary, recorded_minutes
from pumphouse.dashboard.views.recorded_day import recorded_levels
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.record.recorded import RecordedActivity
from pumphouse.homes.schema import MINUTE_MS, SENSORS
from tests.dashboard.views.home_bodies import NOW, alert, body
from tests.homes.kinds.kinds_files import ALL_RULES, kinds_of

KINDS = kinds_of(ALL_RULES)
GAS, WATER, RADON = "carbon-monoxide", "water", "radon"


def homes_of(bodies: Sequence[bytes]) -> HomeStates:
    homes = HomeStates(10, KINDS)
    homes.add(read_columns(bodies, KINDS), NOW)
    return homes


def test_activities_of_added_kinds_are_read() -> None:
    bodies = [body(1, GAS, value=7), body(2, "toaster", value=1)]
    read = read_columns(bodies, KINDS)
    assert (read.kind.tolist(), read.invalid) == ([KINDS.names.index(GAS)], 1)
    assert read_columns(bodies[:1]).invalid == 1
    rows = [("h000001", GAS, NOW, NOW, 7.0, "home", 90, None)]
    assert len(columns_of_rows(rows, KINDS)) == 1
    assert (len(columns_of_rows(rows)), columns_of_rows(rows).invalid) == (0, 0)


def test_an_added_sensor_makes_its_home_active_or_an_alarm() -> None:
    bodies = [body(1, GAS, value=49), body(2, GAS, value=50), body(3, WATER, value=1)]
    bodies += [body(4, RADON, value=4), body(5, RADON, value=200), body(6, RADON, value=301)]
    homes = homes_of([*bodies, body(7, GAS, value=None, fault="stuck")])
    assert homes.states(NOW).tolist()[:7] == [
        NO_DATA, QUIET, ALARM_NOW, ACTIVE, ALARM_NOW, QUIET, ACTIVE,
    ]  # fmt: skip
    levels = [homes.sensors(home)[0].level for home in (1, 2, 3, 6)]
    assert levels == [INACTIVE, ALARM, ALARM, ACTIVITY]  # a change raises its alert in any mode


def test_a_home_in_detail_has_its_added_sensors() -> None:
    homes = homes_of([body(1, GAS, value=49), body(1, WATER, value=1), body(1, "door", value=1)])
    shown = home_json(homes, AlertHistory(), 1, NOW, QUIET)
    texts = {sensor["kind"]: sensor["text"] for sensor in shown["sensors"]}
    assert texts == {"door": "open", GAS: "49 ppm", WATER: "1"}
    rows = shown["day"]["rows"]
    assert list(rows) == [*SENSORS, GAS, WATER, RADON]
    assert [rows[name][-1] for name in ("door", GAS, WATER, RADON)] == ["2", "1", "4", "0"]
    alarm = homes_of([body(1, GAS, value=180)])
    assert home_json(alarm, AlertHistory(), 1, NOW, QUIET)["sensors"][0]["text"] == "180 ppm, alarm"


def test_the_recorded_day_has_added_sensors() -> None:
    recorded = RecordedActivity(
        sensor=GAS, seq=1, at=NOW, value=80.0, mode="home", fault=None, why="active", enqueued=None
    )
    assert set(recorded_levels("h000001", [recorded], KINDS).values()) == {ALARM}
    assert recorded_levels("h000001", [recorded]) == {}


def test_the_chart_and_the_texts_have_added_kinds() -> None:
    words = homes_vocabulary(KINDS)
    assert words["kinds"] == list(KINDS.names)
    assert [words["kinds"][index] for index in words["charted"]] == [*SENSORS, GAS, WATER, RADON]
    assert words["urgent"] == ["break-in", "fire", GAS, "smouldering"]
    assert words["rules"][GAS] == "Carbon monoxide is at 50 ppm or more."
    assert homes_vocabulary()["charted"] == list(range(len(SENSORS)))
    assert homes_vocabulary()["urgent"] == ["break-in", "fire"]
    minute = NOW // MINUTE_MS * MINUTE_MS
    (row,) = recorded_minutes({(minute, GAS): 3}, NOW, 1, KINDS)
    assert row == [minute, *([0] * len(DEFAULT.kinds)), 3, 0, 0]


def test_an_alert_in_detail_has_the_rule_of_the_file() -> None:
    history = AlertHistory()
    history.add(alert(1, kind=GAS))
    (shown,) = history.newest(1)
    details = alert_details_json(shown, [], None, can_change=False, kinds=KINDS)
    assert details["rule"] == "Carbon monoxide is at 50 ppm or more."
