"""The state of all homes, from activities in any order."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.alerts import AlertHistory
from pumphouse.dashboard.views.columns import read_columns
from pumphouse.dashboard.views.heard_homes import HEARD_MS, HeardHomes, home_numbers
from pumphouse.dashboard.views.home_states import (
    ALARM_NOW,
    ALERT,
    NO_DATA,
    OPEN,
    QUIET,
    TROUBLE,
    HomeStates,
)
from pumphouse.dashboard.views.homes import (
    home_json,
)
from pumphouse.homes.schema import (
    MINUTE_MS,
)
from tests.dashboard.views.home_bodies import NOW, body, states_from


def test_a_huge_value_is_clipped() -> None:
    (sensor,) = states_from(body(sensor="motion", value=1e300)).sensors(42)
    assert sensor.value == 1e9


@pytest.mark.parametrize(
    ("bodies", "state"),
    [
        ([], NO_DATA),
        ([body(value=0)], QUIET),
        ([body(ago_min=31)], NO_DATA),
        ([body(sensor="motion", value=2)], home_states.ACTIVE),
        ([body(value=1)], OPEN),
        ([body(value=1), body(sensor="motion", value=1)], OPEN),
        ([body(battery=15)], TROUBLE),
        ([body(battery=16)], QUIET),
        ([body(value=None, fault="stuck")], TROUBLE),
        ([body(value=None, fault="stuck", ago_min=1), body(value=0)], QUIET),
        ([body(sensor="smoke", value=59)], QUIET),
        ([body(sensor="smoke", value=60)], ALARM_NOW),
        ([body(sensor="glass", value=1)], ALARM_NOW),
    ],
)
def test_the_state_of_a_home(bodies: list[bytes], state: int) -> None:
    assert states_from(*bodies).states(NOW)[42] == state


def test_a_home_is_in_alert_while_an_alert_is_open() -> None:
    homes = states_from(body(), body(sensor="glass", value=1))
    homes.set_open_alerts(42, 2)
    assert homes.states(NOW)[42] == ALERT
    homes.set_open_alerts(42, 1)
    assert homes.states(NOW + 60 * MINUTE_MS)[42] == ALERT
    homes.set_open_alerts(42, 0)
    assert homes.states(NOW)[42] == ALARM_NOW


def test_a_home_that_is_heard_and_has_no_activity_is_quiet() -> None:
    homes, heard = states_from(body(3, value=1), homes=10), HeardHomes(5)
    heard.add(home_numbers(["h000003", "h000004", "h000004", None, "x", "h00000\uff12"]), NOW)
    assert heard.count(NOW) == 2
    states = homes.states(NOW, heard.are_heard(NOW, 10))
    assert states.tolist() == [NO_DATA] * 3 + [OPEN, QUIET] + [NO_DATA] * 5
    later = NOW + HEARD_MS
    assert (heard.count(later), homes.states(later, heard.are_heard(later, 10))[4]) == (0, NO_DATA)
    heard.add([4321], NOW)
    assert heard.count(NOW) == 3
    assert heard.are_heard(NOW, 2).tolist() == [False, False]


@given(st.permutations(range(6)), st.lists(st.integers(1, 5), max_size=3))
def test_the_newest_reading_counts_in_any_order(order: list[int], cuts: list[int]) -> None:
    bodies = [body(ago_min=ago, value=ago % 2, mode="away" if ago else "home") for ago in range(6)]
    shuffled = [bodies[slots] for slots in order]
    homes = HomeStates(100)
    edges = [0, *sorted(set(cuts)), 6]
    for first, last in pairwise(edges):
        homes.add(read_columns(shuffled[first:last]), NOW)
    (door,) = homes.sensors(42)
    assert (door.at, door.value) == (NOW, 0)
    assert home_json(homes, AlertHistory(), 42, NOW, QUIET)["mode"] == "home"


def test_a_reading_from_the_future_is_ignored() -> None:
    homes = states_from(body(ago_min=-6), body(ago_min=-4, sensor="window"))
    assert [sensor.kind for sensor in homes.sensors(42)] == ["window"]


def test_the_arrays_grow_for_a_higher_home_number() -> None:
    homes = states_from(body(3, value=1), body(4321, "glass", 0, 1), homes=10)
    states = homes.states(NOW)
    assert len(states) == 4322
    assert (states[3], states[4321], homes.known) == (OPEN, ALARM_NOW, 2)
    assert homes.strip(3, NOW)["door"][-1] == "2"


def test_the_strip_of_a_day() -> None:
    homes = states_from(
        body(ago_min=0, value=0),
        body(ago_min=25, value=1),
        body(ago_min=60, value=1, mode="away"),
        body(ago_min=60, value=0),
        body(ago_min=100, value=None, fault="stuck"),
        body(ago_min=25 * 60, value=1),
    )
    strip = homes.strip(42, NOW)["door"]
    assert len(strip) == 144
    slot = NOW // home_states.SLOT_MS
    slots = {
        ago: 143 - int(slot - (NOW - ago * MINUTE_MS) // home_states.SLOT_MS)
        for ago in (0, 25, 60, 100)
    }
    assert [strip[slots[ago]] for ago in (0, 25, 60, 100)] == ["1", "2", "4", "3"]
    assert strip.count("0") == 140


def test_the_strip_is_empty_a_day_later() -> None:
    homes = states_from(body(value=1))
    later = NOW + 24 * 60 * MINUTE_MS
    assert set(homes.strip(42, later)["door"]) == {"0"}
    homes.add(read_columns([body(7, "motion", -24 * 60, 1)]), later)
    assert set(homes.strip(42, later)["door"]) == {"0"}
    assert homes.strip(7, later)["motion"][-1] == "2"


def test_an_old_reading_erases_nothing() -> None:
    homes = states_from(body(value=1))
    homes.add(read_columns([body(7, "motion", 0, 2)]), NOW)
    homes.add(read_columns([body(7, "motion", 24 * 60, 2)]), NOW)
    assert homes.strip(42, NOW)["door"][-1] == "2"
    assert homes.per_minute(NOW, 1)[0][1:3] == [1, 1]


def test_readings_count_in_the_minute_they_were_taken() -> None:
    homes = states_from(*[body(home, "motion", 2) for home in range(5)], body(1, "smoke", 0))
    rows = homes.per_minute(NOW, 3)
    assert [row[0] for row in rows] == [(NOW // MINUTE_MS - ago) * MINUTE_MS for ago in (2, 1, 0)]
    assert rows[0][1:6] == [5, 0, 0, 0, 0]
    assert rows[2][1:6] == [0, 0, 0, 0, 1]
