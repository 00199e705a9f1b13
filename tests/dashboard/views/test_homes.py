"""The Homes page as plain data."""

from __future__ import annotations

import json
from base64 import b64decode
from random import Random

import numpy as np
import pytest

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.alerts import AlertHistory
from pumphouse.dashboard.views.homes import (
    SentMinutes,
    changed_grid,
    find_home,
    home_json,
    homes_json,
    homes_vocabulary,
    new_alerts,
    recorded_minutes,
    whole_grid,
    with_alerts,
)
from pumphouse.homes.schema import MINUTE_MS
from tests.dashboard.views.home_bodies import NOW, alert, body, states_from


def test_the_grid_is_sent_whole_once_and_then_as_changes() -> None:
    rng = Random(3)
    before = np.array([rng.randrange(6) for _ in range(1000)], np.uint8)
    after = before.copy()
    after[[5, 700]] = (before[[5, 700]] + 1) % 6
    assert b64decode(whole_grid(before)) == before.tobytes()
    packed = np.frombuffer(b64decode(changed_grid(before, after)), "<u4")
    assert {int(item) >> 3: int(item) & 7 for item in packed} == {5: after[5], 700: after[700]}
    assert changed_grid(after, after) == ""


def test_the_view_of_all_homes_is_plain_data() -> None:
    homes, alerts = states_from(body(), body(17, "glass", 0, 1)), AlertHistory()
    alerts.add(alert(17))
    homes.set_open_alerts(17, alerts.open_of_home("h000017"))
    shown = homes_json(homes, alerts, homes.states(NOW), NOW)
    json.dumps(shown, allow_nan=False)
    assert shown["homes_by_state"] == [98, 1, 0, 0, 0, 0, 1]
    assert (shown["size"], shown["alerts_day"], shown["alerts_open"]) == (100, 1, 1)
    assert shown["homes_in_alert"] == 1
    assert shown["regions"][1] == [6, 0, 0, 0, 0, 0, 1]
    assert with_alerts(homes.per_minute(NOW, 3), alerts, NOW)[-1][-1] == 1
    assert [item["home"] for item in new_alerts(alerts, 0)] == ["h000017"]


def test_the_view_of_a_home_is_plain_data() -> None:
    homes, alerts = states_from(body(value=1), body(sensor="smoke", value=4)), AlertHistory()
    alerts.add(alert(42))
    shown = json.loads(
        json.dumps(home_json(homes, alerts, 42, NOW, home_states.OPEN), allow_nan=False)
    )
    assert (shown["home"], shown["region"], shown["state_name"]) == ("h000042", "Kiln Lane", "open")
    assert shown["last_reading"] > 0
    assert (shown["word"], shown["heard"]) == ("open", shown["last_reading"])  # the old keys
    assert [(item["kind"], item["text"]) for item in shown["sensors"]] == [
        ("door", "open"),
        ("smoke", "4 ppm"),
    ]
    assert shown["alerts"][0]["id"] == "break-in:h000042:1000"
    assert shown["day"]["from"] + 144 * shown["day"]["slot_ms"] > NOW


def test_a_state_has_its_name_also_under_the_old_key() -> None:
    states = homes_vocabulary()["states"]
    assert [state["name"] for state in states] == [state["word"] for state in states]
    assert [state["name"] for state in states] == list(home_states.STATE_WORDS)


def test_only_minutes_that_changed_are_sent() -> None:
    minute = NOW // MINUTE_MS * MINUTE_MS
    sent = SentMinutes()
    counts = {(minute, "motion"): 3, (minute - MINUTE_MS, "smoke"): 1, (0, "door"): 9}
    rows = recorded_minutes(counts, NOW, 2)
    assert rows == [[minute - MINUTE_MS, 0, 0, 0, 0, 1, 0, 0], [minute, 3, 0, 0, 0, 0, 0, 0]]
    assert sent.take_changed(rows) == rows
    assert sent.take_changed(rows) == []
    late = recorded_minutes(counts | {(minute - MINUTE_MS, "door"): 1}, NOW, 2)
    assert sent.take_changed(late) == [[minute - MINUTE_MS, 0, 1, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "home"),
    [("42", 42), ("h000042", 42), (" H42 ", 42), ("0", 0), ("100", None), ("", None),
     ("h", None), ("-1", None), ("4\uff12", None), ("0000042", None)],
)  # fmt: skip
def test_a_home_is_found_by_name_or_number(text: str, home: int | None) -> None:
    assert find_home(text, 100) == home
