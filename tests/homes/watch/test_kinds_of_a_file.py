"""Rules of kinds that a file adds, on drawn readings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pumphouse.homes.duplicates import NO_WINDOWS
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import (
    HOMES_MAX,
    MINUTE_MS,
    MODES,
    Alert,
    home_of,
    kind_of,
    sensor_number,
)
from pumphouse.homes.sift.alarms import pack_state, raise_alarms, unpack_state
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.alerts import fingerprints_of
from pumphouse.homes.watch.history import ActivityColumns, PartitionHistory, empty, from_bytes
from pumphouse.homes.watch.unusual import LEARN
from tests.homes.kinds.kinds_files import ALL_RULES, CARBON_MONOXIDE, kinds_of

T = 29_867_040 * MINUTE_MS
NONE = np.empty(0, np.uint64)
KINDS = kinds_of(ALL_RULES)

Row = tuple[float, str, float, float]  # minute, sensor, value, since minute


def activities(*rows: Row, mode: str = "home", kinds: Kinds = KINDS) -> ActivityColumns:
    minutes, sensors, values, since = zip(*rows, strict=True)
    return ActivityColumns(
        number=np.full(len(rows), 1, np.int32),
        kind=np.array([kinds.names.index(sensor) for sensor in sensors], np.int32),
        at=T + (np.array(minutes) * MINUTE_MS).astype(np.int64),
        value=np.array(values, np.float64),
        since=T + (np.array(since) * MINUTE_MS).astype(np.int64),
        mode=np.full(len(rows), MODES.index(mode), np.int32),
    )


def watched(*rows: Row, step: int = 0) -> list[Alert]:
    """The alerts of these readings, in batches of `step`."""
    history, raised = empty(KINDS), list[Alert]()
    step = step or len(rows)
    for first in range(0, len(rows), step):
        columns = activities(*rows[first : first + step])
        alerts, history = rules.apply_rules(history, columns, 0, NONE, None, KINDS)
        history = from_bytes(history.to_bytes(), KINDS)
        raised += alerts.as_alerts(KINDS)
    return raised


def texts(alerts: list[Alert]) -> list[tuple[str, str, float]]:
    return [(alert.kind, alert.text, (alert.since - T) / MINUTE_MS) for alert in alerts]


def test_a_threshold_of_an_added_kind() -> None:
    rows = [(0, "carbon-monoxide", 49, -9), (1, "carbon-monoxide", 50, 0.5)]
    rows += [(5, "carbon-monoxide", 80, 4.5), (16, "carbon-monoxide", 70, 15.5)]
    expected = [
        ("carbon-monoxide", "Carbon monoxide", 0.5),
        ("carbon-monoxide", "Carbon monoxide", 15.5),
    ]
    assert texts(watched(*rows)) == texts(watched(*rows, step=1)) == expected


def test_a_threshold_below_which_a_value_is_an_alert() -> None:
    assert texts(watched((0, "radon", 4.0, -1))) == [("radon", "Detector defective", -1)]
    assert watched((0, "radon", 6.0, -1)) == []


def test_a_change_in_any_mode_and_a_value_that_lasts() -> None:
    rows = [(0, "water", 1, -0.5), (1, "water", 1, -0.5), (59.5, "water", 1, -0.5)]
    expected = [("leak", "Water", -0.5), ("flood", "Water for an hour", -0.5)]
    assert texts(watched(*rows)) == texts(watched(*rows, step=1)) == expected


def test_silence_after_the_time_of_the_kind() -> None:
    rows = [(0, "carbon-monoxide", 0, -90), (0, "smoke", 0, -90)]
    rows += [(8, "door", 0, -90), (16, "door", 0, -90)]
    raised = watched(*rows)
    assert [alert.id for alert in raised] == [f"silent-sensor:h000001:carbon-monoxide:{T}"]
    assert raised[0].text == "Carbon monoxide sensor sends no readings"
    assert watched((0, "water", 0, -90), (9, "door", 0, -90), (18, "door", 0, -90)) == []


def test_an_unusual_reading_of_an_added_kind() -> None:
    usual: list[Row] = [(minute, "radon", 100, -90) for minute in range(LEARN)]
    assert texts(watched(*usual, (20, "radon", 290, 19.5), step=3)) == [
        ("unusual-reading", "Radon is unusual", 20)
    ]


def test_a_combination_of_two_sensors() -> None:
    smoke, gas = (0, "smoke", 60, -0.5), (3, "carbon-monoxide", 50, 2.5)
    rows = [smoke, gas, (4, "smoke", 90, -0.5), (30, "smoke", 90, 29.5)]
    for step in (0, 1, 2):
        combined = [alert for alert in watched(*rows, step=step) if alert.kind == "smouldering"]
        assert texts(combined) == [("smouldering", "Smoke and carbon monoxide", 2.5)]
        assert (combined[0].sensor, combined[0].at) == ("carbon-monoxide", T + 3 * MINUTE_MS)
    apart = watched(smoke, (11, "carbon-monoxide", 50, 10.5), step=1)
    assert [alert.kind for alert in apart] == ["fire", "carbon-monoxide"]


def test_sift_raises_the_alerts_that_one_reading_decides() -> None:
    rows = [(0, "smoke", 60, -0.5), (3, "carbon-monoxide", 50, 2.5), (4, "water", 1, 3.5)]
    alerts, _ = raise_alarms(empty(KINDS), activities(*rows), NONE, KINDS)
    kinds = [alert.kind for alert in alerts.as_alerts(KINDS)]
    assert kinds == ["fire", "carbon-monoxide", "leak"]
    columns = activities(*rows)
    delegated = np.ones(len(columns), bool)
    watch, _ = rules.apply_rules(empty(KINDS), columns, 0, NONE, delegated, KINDS)
    assert [alert.kind for alert in watch.as_alerts(KINDS)] == ["smouldering"]


def test_state_of_the_default_kinds_is_read_after_kinds_are_added() -> None:
    smoke = activities((0, "smoke", 60, -0.5), kinds=DEFAULT)
    _, before = raise_alarms(empty(DEFAULT), smoke, NONE)
    kinds = kinds_of(CARBON_MONOXIDE)
    _, history = unpack_state(pack_state(NO_WINDOWS, before), kinds)
    assert history.met.tolist() == [[T, 0]]
    again = activities((5, "smoke", 60, 4.5), (5, "carbon-monoxide", 60, 4.5), kinds=kinds)
    alerts, _ = raise_alarms(history, again, NONE, kinds)
    assert [alert.kind for alert in alerts.as_alerts(kinds)] == ["carbon-monoxide"]
    _, whole = rules.apply_rules(empty(DEFAULT), smoke, 0, NONE)
    packed = PartitionHistory.to_bytes(replace(whole, own_until=np.array([5])))
    assert from_bytes(packed, kinds).last.shape == (1, len(kinds.names))


def test_numbers_of_sensors_keep_home_and_kind() -> None:
    homes, kinds = np.array([0, 42, HOMES_MAX - 1]), np.arange(32)
    numbers = sensor_number(homes[:, None], kinds).astype(np.int32)
    assert len(np.unique(numbers)) == numbers.size
    assert (home_of(numbers) == homes[:, None]).all()
    assert (kind_of(numbers) == kinds).all()
    assert sensor_number(42, 6) == 42 * 8 + 6  # as in the state of earlier versions


def test_fingerprints_differ_like_ids_with_many_kinds() -> None:
    text = "".join(
        f'[kinds.k{n}]\nunit = ""\nquiet = {{ at = 0 }}\n[alerts.a{n}]\nrule = ""\n'
        for n in range(20)
    )
    kinds = kinds_of(text)
    alerts = [
        Alert("h000001", alert, sensor, T, T, "", "")
        for alert in kinds.alert_names
        for sensor in kinds.names
    ]
    assert len({alert.id for alert in alerts}) == len(set(fingerprints_of(alerts, kinds).tolist()))
