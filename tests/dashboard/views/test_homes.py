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
    changed_grid,
    find_home,
    home_json,
    homes_json,
    new_alerts,
    whole_grid,
)
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
    shown = homes_json(homes, alerts, homes.states(NOW), NOW, minutes=3)
    json.dumps(shown, allow_nan=False)
    assert shown["states"] == [98, 1, 0, 0, 0, 1]
    assert (shown["known"], shown["size"], shown["alerts_day"]) == (2, 100, 1)
    assert shown["regions"][1] == [6, 0, 0, 0, 0, 1]
    assert shown["minutes"][-1][-1] == 1
    assert [item["home"] for item in new_alerts(alerts, 0)] == ["h000017"]


def test_the_view_of_a_home_is_plain_data() -> None:
    homes, alerts = states_from(body(value=1), body(sensor="smoke", value=4)), AlertHistory()
    alerts.add(alert(42))
    shown = json.loads(json.dumps(home_json(homes, alerts, 42, NOW), allow_nan=False))
    assert (shown["home"], shown["region"], shown["word"]) == ("h000042", "Kiln Lane", "open")
    assert [(item["kind"], item["text"]) for item in shown["sensors"]] == [
        ("door", "open"),
        ("smoke", "4 ppm"),
    ]
    assert shown["alerts"][0]["id"] == "break-in:h000042:1000"
    assert shown["day"]["from"] + 144 * shown["day"]["slot_ms"] > NOW


@pytest.mark.parametrize(
    ("text", "home"),
    [("42", 42), ("h000042", 42), (" H42 ", 42), ("0", 0), ("100", None), ("", None),
     ("h", None), ("-1", None), ("4\uff12", None), ("0000042", None)],
)  # fmt: skip
def test_a_home_is_found_by_name_or_number(text: str, home: int | None) -> None:
    assert find_home(text, 100) == home
