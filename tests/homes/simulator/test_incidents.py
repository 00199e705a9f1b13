"""Incidents appear in the readings exactly as in the ground truth."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from pumphouse.errors import OptionError
from pumphouse.homes import schema
from pumphouse.homes.schema import Reading
from pumphouse.homes.simulator.incidents import KINDS, MANY, Incident, Incidents, parse_incidents
from pumphouse.homes.simulator.sensors import HomeSimulator

MONDAY = 20_605 * 1440
ALL = Incidents(break_in=150, fire=100, forgotten_window=200, silent_sensor=150)


def reading(simulator: HomeSimulator, incident: Incident, minute: int) -> Reading | None:
    """The reading of the incident's sensor in a minute; None if it is silent."""
    columns = simulator.readings(minute, np.array([schema.home_number(incident.home)], np.int32))
    readings = map(columns.reading, range(len(columns)))
    return next((r for r in readings if r.sensor == incident.sensor), None)


@pytest.fixture(scope="module")
def simulator() -> HomeSimulator:
    return HomeSimulator(300, 5, ALL)


@pytest.fixture(scope="module")
def truth(simulator: HomeSimulator) -> tuple[Incident, ...]:
    return simulator.truth(MONDAY, MONDAY + 2 * 1440)


def of_kind(truth: tuple[Incident, ...], kind: str) -> list[Incident]:
    selected = [incident for incident in truth if incident.kind == kind]
    assert len(selected) > 10
    return selected


def test_the_number_of_incidents_follows_the_rates() -> None:
    """Per thousand homes and day; a few incidents do not fit the day of their home."""
    incidents = HomeSimulator(20_000, 1, Incidents(10, 5, 10, 0)).truth(MONDAY, MONDAY + 1440)
    counts = Counter(incident.kind for incident in incidents)
    assert 80 < counts["fire"] < 120
    assert 160 < counts["break-in"] < 240
    assert 140 < counts["forgotten-window"] < 240


def test_fires_start_at_every_hour_of_the_day() -> None:
    """So a demonstration shows an alarm at any time."""
    fires = HomeSimulator(20_000, 1, Incidents(fire=100)).truth(MONDAY, MONDAY + 1440)
    half_hours = Counter(fire.since // 1_800_000 % 48 for fire in fires)
    assert set(half_hours) == set(range(48))


def test_a_break_in_shows_while_the_alarm_is_armed(
    simulator: HomeSimulator, truth: tuple[Incident, ...]
) -> None:
    for incident in of_kind(truth, "break-in"):
        first = reading(simulator, incident, incident.due // schema.MINUTE_MS)
        assert first is not None
        assert (first.at, first.since, first.value) == (incident.due, incident.since, 1)
        assert first.mode in schema.ARMED
        assert schema.why_kept(first) == "change"
        assert incident.sensor in ("door", "glass")


def test_an_intruder_moves_during_a_break_in(
    simulator: HomeSimulator, truth: tuple[Incident, ...]
) -> None:
    for incident in of_kind(truth, "break-in"):
        motion = Incident(incident.home, incident.kind, "motion", 0, 0, 0)
        moved = reading(simulator, motion, incident.due // schema.MINUTE_MS)
        assert moved is not None
        assert moved.value


def test_a_fire_is_above_the_alarm_from_first_to_last_reading(
    simulator: HomeSimulator, truth: tuple[Incident, ...]
) -> None:
    for incident in of_kind(truth, "fire"):
        first = incident.due // schema.MINUTE_MS
        last = incident.until // schema.MINUTE_MS
        for minute in (first - 1, first, (first + last) // 2, last - 1, last + 1):
            measured = reading(simulator, incident, minute)
            assert measured is not None
            assert measured.value is not None
            burns = incident.since <= measured.at < incident.until
            assert (measured.value >= schema.SMOKE_ALARM_PPM) == burns
            assert not burns or measured.since == incident.since


def test_a_forgotten_window_stays_open_until_the_alert_is_due(
    simulator: HomeSimulator, truth: tuple[Incident, ...]
) -> None:
    for incident in of_kind(truth, "forgotten-window"):
        due = incident.due // schema.MINUTE_MS
        two_hours = [
            reading(simulator, incident, minute) for minute in range(due - 120, due + 1, 8)
        ]
        for measured in two_hours:
            assert measured is not None
            assert (measured.value, measured.since) == (1, incident.since)
            assert measured.mode in schema.ARMED
        assert incident.due - incident.since >= schema.FORGOTTEN_ARMED_MS


def test_a_sensor_is_quiet_after_its_incident(
    simulator: HomeSimulator, truth: tuple[Incident, ...]
) -> None:
    for incident in truth:
        if incident.kind == "silent-sensor":
            continue
        after = reading(simulator, incident, incident.until // schema.MINUTE_MS + 1)
        assert after is not None
        assert after.value is not None
        assert schema.is_quiet(after.sensor, after.value)
        assert after.since == incident.until


def test_a_silent_sensor_sends_nothing_from_since_to_until(
    simulator: HomeSimulator, truth: tuple[Incident, ...]
) -> None:
    for incident in of_kind(truth, "silent-sensor"):
        first, last = incident.since // schema.MINUTE_MS, incident.until // schema.MINUTE_MS
        assert last - first >= 45
        for minute in (first - 1, first, first + 20, last - 1, last):
            silent = reading(simulator, incident, minute) is None
            assert silent == (first <= minute < last)


def test_a_whole_home_can_be_silent(truth: tuple[Incident, ...]) -> None:
    silent = Counter((i.home, i.since) for i in truth if i.kind == "silent-sensor")
    assert set(silent.values()) == {1, 5}


def test_every_visible_break_in_is_in_the_ground_truth(simulator: HomeSimulator) -> None:
    """The reverse: all break-ins that a rule would detect over a day."""
    visible = set()
    for minute in range(MONDAY, MONDAY + 1440):
        columns = simulator.readings(minute)
        shows = (columns.mode != 0) & (columns.value == 1)
        shows &= (columns.sensor == 1) | (columns.sensor == 3)
        shows &= columns.at - columns.since < schema.MINUTE_MS
        for i in np.flatnonzero(shows):
            measured = columns.reading(int(i))
            visible.add(schema.alert_id("break-in", measured.home, measured.sensor, measured.since))
    truth = simulator.truth(MONDAY, MONDAY + 1440)
    assert visible == {i.id for i in truth if i.kind == "break-in" and i.due >= MONDAY * 60_000}


def test_the_ground_truth_does_not_depend_on_the_requested_period(simulator: HomeSimulator) -> None:
    whole = simulator.truth(MONDAY, MONDAY + 1440)
    hours = range(MONDAY, MONDAY + 1440, 60)
    assert whole == tuple(i for hour in hours for i in simulator.truth(hour, hour + 60))
    assert HomeSimulator(10).truth(MONDAY, MONDAY + 1440) == ()


def test_rates_are_parsed_by_kind() -> None:
    assert parse_incidents("many") == MANY
    assert parse_incidents("none") == Incidents()
    assert parse_incidents("break-in=2, fire=0.5") == Incidents(break_in=2, fire=0.5)
    assert not Incidents()


@pytest.mark.parametrize("text", ["lots", "flood=1", "fire", "fire=x", "fire=-1", "fire=nan"])
def test_an_invalid_rate_is_refused(text: str) -> None:
    with pytest.raises(OptionError, match=r"fire|incident"):
        parse_incidents(text)


def test_a_home_has_at_most_one_incident_a_day() -> None:
    with pytest.raises(OptionError, match="at most 1000"):
        Incidents(600, 600)
    assert len(KINDS) == len(Incidents().rates)
