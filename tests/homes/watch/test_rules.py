"""The rules, on drawn readings and against the ground truth; without Spark and hub."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks._alert_score import Score, due_by, overall, score
from pumphouse.homes.schema import DAY_MS, HOUR_MS, KINDS, MINUTE_MS, MODES, Alert
from pumphouse.homes.simulator.incidents import MANY, Incidents
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.record_encoding import ReadingColumns
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.alerts import as_alert, fingerprints_of
from pumphouse.homes.watch.history import (
    EMPTY,
    ActivityColumns,
    PartitionHistory,
    UInt64s,
    from_bytes,
)
from tests.homes.watch.activity_columns import FIRST_MINUTE, as_activity_columns, kept

pytestmark = pytest.mark.timeout(600)

T = FIRST_MINUTE * MINUTE_MS
GRACE_MS = 5 * MINUTE_MS
NO_FINGERPRINTS = np.empty(0, np.uint64)

Row = tuple[float, str, float, float, str]  # minute, sensor, value, since minute, mode


def activities(*rows: Row, home: int = 1) -> ActivityColumns:
    minutes, sensors, values, since, modes = zip(*rows, strict=True)
    return ActivityColumns(
        number=np.full(len(rows), home, np.int32),
        kind=np.array([KINDS.index(sensor) for sensor in sensors], np.int32),
        at=T + (np.array(minutes) * MINUTE_MS).astype(np.int64),
        value=np.array(values, np.float64),
        since=T + (np.array(since) * MINUTE_MS).astype(np.int64),
        mode=np.array([MODES.index(mode) for mode in modes], np.int32),
    )


class Watch:
    """Applies the rules batch by batch; encodes the history in between, as Spark does."""

    def __init__(self) -> None:
        self.history: PartitionHistory = EMPTY
        self.alerts: list[Alert] = []

    def add(self, columns: ActivityColumns, known: UInt64s = NO_FINGERPRINTS) -> list[str]:
        raised, history = rules.apply_rules(self.history, columns, GRACE_MS, known)
        self.history = from_bytes(history.to_bytes())
        alerts = raised.as_alerts()
        self.alerts += alerts
        return [alert.id.removesuffix(f":{alert.since}") for alert in alerts]

    def add_minutes(self, minutes: list[ReadingColumns], step: int) -> Watch:
        for minute in range(0, len(minutes), step):
            self.add(as_activity_columns(minutes[minute : minute + step]))
        return self


# -- break-in -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "raised"),
    [
        ((0, "door", 1, -0.5, "away"), True),
        ((0, "glass", 1, -0.5, "asleep"), True),
        ((0, "door", 1, -0.5, "home"), False),
        ((0, "door", 0, -0.5, "away"), False),
        ((0, "window", 1, -0.5, "away"), False),
        ((0, "door", 1, -5, "away"), False),  # opened before, in an unknown mode
        ((0, "door", float("nan"), -0.5, "away"), False),
    ],
)
def test_a_door_opened_while_the_alarm_is_armed(row: Row, raised: bool) -> None:
    assert Watch().add(activities(row)) == (["break-in:h000001"] if raised else [])


def test_a_break_in_whose_first_reading_was_lost() -> None:
    watch = Watch()
    assert watch.add(activities((0, "smoke", 0, -99, "away"))) == []
    assert watch.add(activities((5, "door", 1, 3, "away"))) == ["break-in:h000001"]
    # Opened before the alarm was armed.
    other = Watch()
    assert other.add(activities((0, "smoke", 0, -99, "home"), (4, "smoke", 0, -99, "away"))) == []
    assert other.add(activities((5, "door", 1, 3, "away"))) == []


def test_a_late_reading_raises_its_alert() -> None:
    watch = Watch()
    assert watch.add(activities((9, "smoke", 0, -99, "home"))) == []
    assert watch.add(activities((2, "glass", 1, 1.5, "away"))) == ["break-in:h000001"]


def test_a_late_reading_does_not_change_the_current_mode() -> None:
    watch = Watch()
    watch.add(activities((5, "smoke", 0, -99, "away")))
    watch.add(activities((2, "smoke", 0, -99, "home")))
    assert watch.add(activities((12, "door", 1, 8, "away"))) == ["break-in:h000001"]


# -- fire -----------------------------------------------------------------------------------------


def test_smoke_that_flickers_is_one_fire() -> None:
    watch = Watch()
    levels = [60, 59, 61, 80, 40, 70]
    rows: list[Row] = [(i, "smoke", ppm, i - 0.5, "home") for i, ppm in enumerate(levels)]
    assert watch.add(activities(*rows)) == ["fire:h000001"]
    assert watch.add(activities((14, "smoke", 90, 13.5, "home"))) == []
    assert watch.add(activities((40, "smoke", 60, 39.5, "home"))) == ["fire:h000001"]


# -- forgotten window -----------------------------------------------------------------------------


def test_a_window_is_forgotten_two_hours_after_arming() -> None:
    watch = Watch()
    rows: list[Row] = [(m, "window", 1, 0, "home" if m < 30 else "away") for m in range(150)]
    assert watch.add(activities(*rows)) == []
    assert watch.add(activities((150, "window", 1, 0, "away"))) == ["forgotten-window:h000001"]
    assert watch.add(activities((151, "window", 1, 0, "away"))) == []


def test_a_window_is_forgotten_after_eight_hours_in_any_mode() -> None:
    watch = Watch()
    rows: list[Row] = [(m, "window", 1, 0, "home") for m in range(0, 480, 10)]
    assert watch.add(activities(*rows)) == []
    assert watch.add(activities((480, "window", 1, 0, "home"))) == ["forgotten-window:h000001"]


def test_a_silent_open_window_is_forgotten_by_the_clock() -> None:
    watch = Watch()
    assert watch.add(activities((0, "window", 1, -1, "away"))) == []
    others: list[Row] = [(m, "smoke", 0, -99, "away") for m in range(10, 131, 10)]
    raised = watch.add(activities(*others))
    assert sorted(raised) == ["forgotten-window:h000001", "silent-sensor:h000001:window"]
    shut = Watch()
    shut.add(activities((0, "window", 1, -1, "away"), (1, "window", 0, 0.5, "away")))
    assert shut.add(activities(*others)) == ["silent-sensor:h000001:window"]


# -- silence --------------------------------------------------------------------------------------


def every_ten(sensor: str, first: int, last: int) -> list[Row]:
    return [(m, sensor, 0, -999, "home") for m in range(first, last + 1, 10)]


def test_a_sensor_is_silent_while_others_send() -> None:
    watch = Watch()
    watch.add(activities(*every_ten("door", 0, 0), *every_ten("smoke", 0, 30)))
    assert watch.alerts == []
    assert watch.add(activities(*every_ten("smoke", 40, 40))) == ["silent-sensor:h000001:door"]
    assert watch.add(activities(*every_ten("smoke", 50, 60))) == []
    # It sends again, and is then silent a second time.
    assert watch.add(activities(*every_ten("door", 70, 70), *every_ten("smoke", 70, 90))) == []
    assert watch.add(activities(*every_ten("smoke", 100, 110))) == ["silent-sensor:h000001:door"]


def test_a_home_is_silent_while_others_send() -> None:
    watch = Watch()
    watch.add(activities(*every_ten("door", 0, 0), *every_ten("smoke", 0, 0)))
    raised = watch.add(activities(*every_ten("door", 0, 40), home=2))
    assert sorted(raised) == ["silent-sensor:h000001:door", "silent-sensor:h000001:smoke"]


def test_a_silence_within_one_batch_is_found_too() -> None:
    rows = [*every_ten("smoke", 0, 90), *every_ten("door", 0, 10), *every_ten("door", 60, 90)]
    assert Watch().add(activities(*rows)) == ["silent-sensor:h000001:door"]


def test_silence_of_a_whole_partition_is_an_outage() -> None:
    watch = Watch()
    watch.add(activities(*every_ten("smoke", 0, 0), *every_ten("door", 0, 0)))
    assert watch.add(activities(*every_ten("smoke", 120, 130), *every_ten("door", 130, 130))) == []
    # After the outage silence is reported as usual.
    assert watch.add(activities(*every_ten("smoke", 140, 170))) == ["silent-sensor:h000001:door"]


def test_a_few_fast_clocks_make_no_sensor_silent() -> None:
    watch = Watch()
    others = range(4, 70)
    watch.add(joined([activities(*every_ten("smoke", 0, 0), home=home) for home in others]))
    correct = [activities(*every_ten("smoke", 10, 10), home=home) for home in others]
    # No step between them is long enough for an outage.
    wrong = [
        activities((at, "smoke", 0, -999, "home"), home=i) for i, at in enumerate((24, 37, 50), 1)
    ]
    assert watch.add(joined([*correct, *wrong])) == []


def joined(parts: list[ActivityColumns]) -> ActivityColumns:
    names = ActivityColumns.__slots__
    return ActivityColumns(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in names)
    )


# -- each alert once ------------------------------------------------------------------------------


def test_an_alert_of_an_earlier_run_is_not_raised_again() -> None:
    rows = activities((0, "door", 1, -0.5, "away"), (0, "smoke", 99, -0.2, "away"))
    first = Watch()
    assert sorted(first.add(rows)) == ["break-in:h000001", "fire:h000001"]
    second = Watch()
    assert second.add(
        rows, fingerprints_of([alert for alert in first.alerts if alert.kind == "break-in"])
    ) == ["fire:h000001"]


def test_fingerprints_differ_like_ids() -> None:
    alerts = [
        as_alert(kind, number, sensor, T, since)
        for kind, sensor in [(0, 1), (0, 3), (1, 4), (3, 1), (3, 3)]
        for number in (1, 2, 257)
        for since in (T, T + 1)
    ]
    fingerprints = fingerprints_of(alerts).tolist()
    assert len(set(fingerprints)) == len({alert.id for alert in alerts}) == 24
    assert len({(value, alert.id) for value, alert in zip(fingerprints, alerts, strict=True)}) == 24


def test_the_history_holds_one_day() -> None:
    watch = Watch()
    watch.add(activities(*every_ten("smoke", 0, 0), home=1))
    watch.add(activities(*every_ten("smoke", 0, 24 * 60), home=2))
    assert watch.history.homes.tolist() == [1, 2]
    watch.add(activities(*every_ten("smoke", 24 * 60 + 10, 24 * 60 + 10), home=2))
    assert watch.history.homes.tolist() == [2]
    assert len(watch.history.raised) == 1
    assert DAY_MS == 24 * HOUR_MS


# -- against the ground truth --------------------------------------------------------------------


BUSY = HomeSimulator(100, 11, MANY)
DAY = FIRST_MINUTE + 1440


@cache
def busy_day() -> list[ReadingColumns]:
    return [kept(BUSY.arriving(minute)) for minute in range(FIRST_MINUTE, DAY)]


def scored(simulator: HomeSimulator, watch: Watch, last: int) -> tuple[Score, Score]:
    """The scores of the due incidents (recall) and of all alerts (precision)."""
    due = due_by(simulator.truth(FIRST_MINUTE, last), (last - 6) * MINUTE_MS)
    truth = simulator.truth(FIRST_MINUTE - 2 * 1440, last)
    return overall(score(due, watch.alerts)), overall(score(truth, watch.alerts))


@pytest.mark.parametrize("step", [3, 1440])
def test_without_reading_faults_exactly_the_incidents_raise_alerts(step: int) -> None:
    watch = Watch().add_minutes(busy_day(), step)
    due, raised = scored(BUSY, watch, DAY)
    assert due.incidents > 10
    assert due.recall == 1.0
    assert raised.precision == 1.0
    assert raised.repeats == 0


def test_the_alerts_do_not_depend_on_the_batches() -> None:
    ids = [
        {alert.id for alert in Watch().add_minutes(busy_day(), step).alerts} for step in (45, 1440)
    ]
    assert ids[0] == ids[1]


def test_a_day_without_incidents_raises_no_alert() -> None:
    simulator = HomeSimulator(100, 13, Incidents())
    quiet = [kept(simulator.arriving(minute)) for minute in range(FIRST_MINUTE, FIRST_MINUTE + 600)]
    assert Watch().add_minutes(quiet, 60).alerts == []


def test_with_reading_faults_recall_and_precision_stay_high() -> None:
    reading_faults = ReadingFaults(late=0.02, duplicates=0.02, malformed=0.002, low_battery=0.02)
    simulator, last = HomeSimulator(100, 14, MANY, reading_faults), FIRST_MINUTE + 360
    minutes = [kept(simulator.arriving(minute)) for minute in range(FIRST_MINUTE, last)]
    due, raised = scored(simulator, Watch().add_minutes(minutes, 2), last)
    assert due.incidents > 3
    assert due.recall > 0.9
    assert raised.precision > 0.9
    assert raised.repeats == 0
