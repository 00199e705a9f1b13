"""The state of all homes, from activities in any order."""

from __future__ import annotations

import json
from base64 import b64decode
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.dashboard.views import home_states as towns
from pumphouse.dashboard.views.alerts import ALERTS_MAX, AlertBook
from pumphouse.dashboard.views.columns import read_columns
from pumphouse.dashboard.views.delays import Delays
from pumphouse.dashboard.views.home_states import ALERT, OPEN, QUIET, TROUBLE, UNHEARD, Town
from pumphouse.dashboard.views.homes import (
    changed_grid,
    find_home,
    home_shown,
    new_alerts,
    town_shown,
    whole_grid,
)
from pumphouse.homes.schema import (
    MINUTE_MS,
    Activity,
    Alert,
    Reading,
    encode_activity,
    home_id,
    region_of,
)

NOW = 1_792_031_580_000


def body(
    home: int = 42,
    sensor: str = "door",
    ago_min: float = 0,
    value: float | None = 0,
    *,
    mode: str = "home",
    battery: int = 87,
    fault: str | None = None,
) -> bytes:
    at = int(NOW - ago_min * MINUTE_MS)
    reading = Reading(
        home_id(home), sensor, at // MINUTE_MS, at, value, at - 5000, mode, battery, fault
    )
    return encode_activity(Activity(reading, "change", region_of(home)))


def town(*bodies: bytes, homes: int = 100) -> Town:
    made = Town(homes)
    made.absorb(read_columns(bodies), NOW)
    return made


# -- columns --------------------------------------------------------------------------------------


def test_bodies_become_columns() -> None:
    found = read_columns([body(7, "motion", 1, 3), body(8, "smoke", 0, None, fault="stuck")])
    assert found.home.tolist() == [7, 8]
    assert found.kind.tolist() == [0, 4]
    assert found.value[0] == 3
    assert np.isnan(found.value[1])
    assert found.faults == {1: "stuck"}
    assert found.bad == 0


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"{",
        b"1,2",
        body(5) + b"," + body(6),
        b"[]",
        b"null",
        b'{"v":1}',
        body().replace(b"h000042", b"x000042"),
        body().replace(b'"door"', b'"roof"'),
        body().replace(b'"at":', b'"at":1e400,"was":'),
        b"\xff\xfe",
        body().replace(b'"at":', b'"at":99999999999999999999,"was":'),
        body().replace(b'"battery":87', b'"battery":[87]'),
    ],
)
def test_a_body_that_is_none_costs_only_itself(broken: bytes) -> None:
    found = read_columns([body(1), broken, body(2)])
    assert found.home.tolist() == [1, 2]
    assert found.bad == 1


def test_a_value_beyond_measure_is_a_large_one() -> None:
    (sensor,) = town(body(sensor="motion", value=1e300)).sensors(42)
    assert sensor.value == 1e9


# -- states ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bodies", "state"),
    [
        ([], UNHEARD),
        ([body(value=0)], QUIET),
        ([body(ago_min=31)], UNHEARD),
        ([body(sensor="motion", value=2)], towns.ACTIVE),
        ([body(value=1)], OPEN),
        ([body(value=1), body(sensor="motion", value=1)], OPEN),
        ([body(battery=15)], TROUBLE),
        ([body(battery=16)], QUIET),
        ([body(value=None, fault="stuck")], TROUBLE),
        ([body(value=None, fault="stuck", ago_min=1), body(value=0)], QUIET),
        ([body(sensor="smoke", value=59)], QUIET),
        ([body(sensor="smoke", value=60)], ALERT),
        ([body(sensor="glass", value=1)], ALERT),
    ],
)
def test_the_state_of_a_home(bodies: list[bytes], state: int) -> None:
    assert town(*bodies).states(NOW)[42] == state


def test_an_alert_shows_for_an_hour() -> None:
    made = town(body())
    made.alert(42, NOW - 59 * MINUTE_MS)
    assert made.states(NOW)[42] == ALERT
    assert made.states(NOW + 2 * MINUTE_MS)[42] == QUIET


@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=3))
def test_the_newest_counts_in_whatever_order_they_come(order: list[int], cuts: list[int]) -> None:
    bodies = [body(ago_min=ago, value=ago % 2, mode="away" if ago else "home") for ago in range(6)]
    shuffled = [bodies[place] for place in order]
    made = Town(100)
    edges = [0, *sorted(set(cuts)), 6]
    for first, last in pairwise(edges):
        made.absorb(read_columns(shuffled[first:last]), NOW)
    (door,) = made.sensors(42)
    assert (door.at, door.value) == (NOW, 0)
    assert home_shown(made, AlertBook(), 42, NOW)["mode"] == "home"


def test_a_reading_from_the_future_is_left_out() -> None:
    made = town(body(ago_min=-6), body(ago_min=-4, sensor="window"))
    assert [sensor.kind for sensor in made.sensors(42)] == ["window"]


def test_there_is_room_for_more_homes_than_were_told_of() -> None:
    made = town(body(3, value=1), body(4321, "glass", 0, 1), homes=10)
    states = made.states(NOW)
    assert len(states) == 4322
    assert (states[3], states[4321], made.known) == (OPEN, ALERT, 2)
    assert made.strip(3, NOW)["door"][-1] == "2"


# -- the day and the minutes ----------------------------------------------------------------------


def test_the_strip_of_a_day() -> None:
    made = town(
        body(ago_min=0, value=0),
        body(ago_min=25, value=1),
        body(ago_min=60, value=1, mode="away"),
        body(ago_min=60, value=0),
        body(ago_min=100, value=None, fault="stuck"),
        body(ago_min=25 * 60, value=1),
    )
    strip = made.strip(42, NOW)["door"]
    assert len(strip) == 144
    slot = NOW // towns.SLOT_MS
    place = {
        ago: 143 - int(slot - (NOW - ago * MINUTE_MS) // towns.SLOT_MS) for ago in (0, 25, 60, 100)
    }
    assert [strip[place[ago]] for ago in (0, 25, 60, 100)] == ["1", "2", "4", "3"]
    assert strip.count("0") == 140


def test_a_day_later_the_strip_is_empty_again() -> None:
    made = town(body(value=1))
    later = NOW + 24 * 60 * MINUTE_MS
    assert set(made.strip(42, later)["door"]) == {"0"}
    made.absorb(read_columns([body(7, "motion", -24 * 60, 1)]), later)
    assert set(made.strip(42, later)["door"]) == {"0"}
    assert made.strip(7, later)["motion"][-1] == "2"


def test_what_comes_later_erases_nothing() -> None:
    made = town(body(value=1))
    made.absorb(read_columns([body(7, "motion", 0, 2)]), NOW)
    made.absorb(read_columns([body(7, "motion", 24 * 60, 2)]), NOW)
    assert made.strip(42, NOW)["door"][-1] == "2"
    assert made.per_minute(NOW, 1)[0][1:3] == [1, 1]


def test_counts_go_to_the_minute_of_the_reading() -> None:
    made = town(*[body(home, "motion", 2) for home in range(5)], body(1, "smoke", 0))
    rows = made.per_minute(NOW, 3)
    assert [row[0] for row in rows] == [(NOW // MINUTE_MS - ago) * MINUTE_MS for ago in (2, 1, 0)]
    assert rows[0][1:6] == [5, 0, 0, 0, 0]
    assert rows[2][1:6] == [0, 0, 0, 0, 1]


# -- alerts, delays, the view ---------------------------------------------------------------------


def alert(home: int, since: int = 1000, at: int = NOW, kind: str = "break-in") -> Alert:
    return Alert(home_id(home), kind, "door", at, since, region_of(home), "Door opened while away")


def test_an_alert_is_written_down_once() -> None:
    book = AlertBook()
    assert book.note(alert(42))
    assert not book.note(alert(42, at=NOW + 60_000))
    assert book.note(alert(42, since=2000))
    assert len(book.of("h000042")) == 2
    assert [one.since for one in book.since(1, 10)] == [2000]
    assert book.per_minute(NOW, 2) == [0, 2]


def test_the_book_of_alerts_has_a_bound() -> None:
    book = AlertBook()
    for number in range(ALERTS_MAX + 5):
        book.note(alert(number % 7, since=number))
    assert len(book) == ALERTS_MAX
    assert len(book.of("h000003")) == 20


def test_delays_are_medians_of_what_is_fresh() -> None:
    delays = Delays()
    assert delays.shown(NOW)["total_s"] is None
    for late in (1000, 2000, 9000):
        delays.note(NOW - late - 300, NOW - 300, NOW)
    delays.note(NOW - 900_000, NOW - 800_000, NOW)  # caught up with: says nothing
    assert delays.shown(NOW) == {"hub_s": 2.0, "page_s": 0.3, "total_s": 2.3}
    assert delays.behind_ms == 800_000
    assert delays.shown(NOW + 11_000)["total_s"] is None


def test_all_homes_travel_once_and_then_what_changed() -> None:
    rng = Random(3)
    before = np.array([rng.randrange(6) for _ in range(1000)], np.uint8)
    after = before.copy()
    after[[5, 700]] = (before[[5, 700]] + 1) % 6
    assert b64decode(whole_grid(before)) == before.tobytes()
    packed = np.frombuffer(b64decode(changed_grid(before, after)), "<u4")
    assert {int(one) >> 3: int(one) & 7 for one in packed} == {5: after[5], 700: after[700]}
    assert changed_grid(after, after) == ""


def test_the_view_of_the_town_is_plain_data() -> None:
    made, book = town(body(), body(17, "glass", 0, 1)), AlertBook()
    book.note(alert(17))
    shown = town_shown(made, book, made.states(NOW), NOW, minutes=3)
    json.dumps(shown, allow_nan=False)
    assert shown["states"] == [98, 1, 0, 0, 0, 1]
    assert (shown["known"], shown["size"], shown["alerts_day"]) == (2, 100, 1)
    assert shown["regions"][1] == [6, 0, 0, 0, 0, 1]
    assert shown["minutes"][-1][-1] == 1
    assert [one["home"] for one in new_alerts(book, 0)] == ["h000017"]


def test_the_view_of_a_home_is_plain_data() -> None:
    made, book = town(body(value=1), body(sensor="smoke", value=4)), AlertBook()
    book.note(alert(42))
    shown = json.loads(json.dumps(home_shown(made, book, 42, NOW), allow_nan=False))
    assert (shown["home"], shown["region"], shown["word"]) == ("h000042", "Kiln Lane", "open")
    assert [(one["kind"], one["text"]) for one in shown["sensors"]] == [
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
def test_which_home_is_meant(text: str, home: int | None) -> None:
    assert find_home(text, 100) == home
