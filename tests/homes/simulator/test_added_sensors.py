"""The simulated readings of kinds that a file adds."""

from __future__ import annotations

from functools import cache

import numpy as np

from pumphouse.homes.schema import MINUTE_MS, SENSORS, Reading, decode_reading, why_kept
from pumphouse.homes.simulator.incidents import FEW, MANY
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.record_encoding import ReadingColumns
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.simulator.traces import TraceOptions, traces_of
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.history import ActivityColumns, empty
from tests.homes.kinds.kinds_files import CARBON_MONOXIDE, kinds_of

KINDS = kinds_of(CARBON_MONOXIDE)
FIRST = 29_867_040  # the start of a day
DAY = 1440


@cache
def simulator() -> HomeSimulator:
    return HomeSimulator(300, 7, FEW, kinds=KINDS)


def detector(columns: ReadingColumns) -> ReadingColumns:
    return columns.take(columns.sensor == len(SENSORS))


def test_each_home_has_a_sensor_of_the_added_kind() -> None:
    batch = simulator().minute(FIRST)
    readings = [decode_reading(body, KINDS) for body in batch.bodies()]
    assert readings == [batch.columns.reading(i, simulator().sensors) for i in range(len(batch))]
    added = [reading for reading in readings if reading.sensor == "carbon-monoxide"]
    assert len(added) == 300
    assert {float(reading.value or 0) for reading in added} >= {0, 1, 2, 3, 4, 5}


def test_the_other_sensors_are_those_of_a_simulator_without_it() -> None:
    plain = HomeSimulator(300, 7, FEW).minute(FIRST)
    batch = simulator().minute(FIRST)
    own = np.flatnonzero(batch.columns.sensor < len(SENSORS))
    assert [batch.packed.body(int(i)) for i in own] == list(plain.bodies())


def test_an_incident_begins_with_a_change_and_ends_quiet() -> None:
    incidents = [i for i in simulator().truth(FIRST, FIRST + DAY) if i.kind == "carbon-monoxide"]
    assert 5 < len(incidents) < 30  # 50 per thousand homes
    for incident in incidents[:8]:
        home = np.array([int(incident.home[1:])], np.int32)
        minute = incident.due // MINUTE_MS
        before, first = (reading_at(home, at) for at in (minute - 1, minute))
        assert 80 <= (first.value or 0) <= 300
        assert (first.at, first.since) == (incident.due, incident.since)
        assert why_kept(first, KINDS) == "change"
        assert (before.value or 0) <= 5
        after = reading_at(home, incident.until // MINUTE_MS + 1)
        assert (after.value or 0) <= 5
        assert after.since == incident.until
        assert 20 * MINUTE_MS <= incident.until - incident.since + MINUTE_MS <= 43 * MINUTE_MS


def reading_at(home: np.typing.NDArray[np.int32], minute: int) -> Reading:
    return detector(simulator().readings(minute, home)).reading(0, simulator().sensors)


def test_without_incidents_the_added_sensor_stays_quiet() -> None:
    quiet = HomeSimulator(300, 7, kinds=KINDS)
    assert quiet.truth(FIRST, FIRST + DAY) == ()
    for minute in range(FIRST, FIRST + DAY, 60):
        assert detector(quiet.readings(minute)).value.max() <= 5


def test_the_rules_find_exactly_the_incidents_of_the_added_kind() -> None:
    truth = {i.id for i in simulator().truth(FIRST + 3, FIRST + 400) if i.kind == "carbon-monoxide"}
    columns = [detector(simulator().readings(FIRST + minute)) for minute in range(400)]
    parts = [part.take(part.value >= 50) for part in columns]
    index = KINDS.names.index("carbon-monoxide")
    activities = ActivityColumns(
        number=np.concatenate([part.home for part in parts]),
        kind=np.concatenate([np.full(len(part), index, np.int32) for part in parts]),
        at=np.concatenate([part.at for part in parts]),
        value=np.concatenate([part.value.astype(np.float64) for part in parts]),
        since=np.concatenate([part.since for part in parts]),
        mode=np.concatenate([part.mode for part in parts]),
    )
    none = np.empty(0, np.uint64)
    alerts, _ = rules.apply_rules(empty(KINDS), activities, 0, none, None, KINDS)
    raised = {alert.id for alert in alerts.as_alerts(KINDS) if alert.kind == "carbon-monoxide"}
    assert truth <= raised
    assert len(raised - truth) <= 2  # incidents of yesterday
    assert len(truth) > 2


def test_silent_homes_have_a_silent_added_sensor() -> None:
    homes = HomeSimulator(300, 7, MANY, kinds=KINDS)
    silent = [i for i in homes.truth(FIRST, FIRST + DAY) if i.sensor == "carbon-monoxide"]
    silences = [i for i in silent if i.kind == "silent-sensor"]
    assert silences
    for incident in silences:
        home = np.array([int(incident.home[1:])], np.int32)
        assert len(homes.readings(incident.since // MINUTE_MS + 1, home)) == 0
        assert incident.due - incident.since == 15 * MINUTE_MS  # after_s of the rule


def test_faults_and_traces_of_added_sensors() -> None:
    faulty = HomeSimulator(300, 7, FEW, ReadingFaults(faults=0.2, late=0.1), KINDS)
    batch = faulty.minute(FIRST + 30)
    for i in range(0, len(batch), 7):
        reading = decode_reading(batch.packed.body(i), KINDS)
        assert reading == batch.columns.reading(i, faulty.sensors)
    traces = traces_of(batch.columns, TraceOptions(share=1.0), 7)
    assert len(set(traces.values())) == len(batch)
    incident = next(i for i in simulator().truth(FIRST, FIRST + DAY) if i.kind == KINDS.names[-1])
    home = np.array([int(incident.home[1:])], np.int32)
    columns = detector(simulator().readings(incident.due // MINUTE_MS, home))
    assert len(traces_of(columns, TraceOptions(alarms=True), 7)) == 1
