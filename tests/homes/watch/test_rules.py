"""The rules, in pictures and against the truth of made-up towns; no Spark, no hub."""

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
from pumphouse.homes.watch import history as memory
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.history import EMPTY, ActivityColumns, PartitionHistory, UInt64s
from tests.homes.watch.activity_columns import FIRST_MINUTE, heard, kept

pytestmark = pytest.mark.timeout(600)

T = FIRST_MINUTE * MINUTE_MS
GRACE_MS = 5 * MINUTE_MS
NO_FINGERPRINTS = np.empty(0, np.uint64)

Row = tuple[float, str, float, float, str]  # minute, sensor, value, since minute, mode


def said(*rows: Row, home: int = 1) -> ActivityColumns:
    minutes, sensors, values, since, modes = zip(*rows, strict=True)
    return ActivityColumns(
        number=np.full(len(rows), home, np.int32),
        kind=np.array([KINDS.index(one) for one in sensors], np.int32),
        at=T + (np.array(minutes) * MINUTE_MS).astype(np.int64),
        value=np.array(values, np.float64),
        since=T + (np.array(since) * MINUTE_MS).astype(np.int64),
        mode=np.array([MODES.index(one) for one in modes], np.int32),
    )


class Watch:
    """Batch after batch, packed in between as Spark does it."""

    def __init__(self) -> None:
        self.past: PartitionHistory = EMPTY
        self.alerts: list[Alert] = []

    def hear(self, some: ActivityColumns, known: UInt64s = NO_FINGERPRINTS) -> list[str]:
        found, past = rules.apply_rules(self.past, some, GRACE_MS, known)
        self.past = memory.from_bytes(past.to_bytes())
        alerts = found.as_alerts()
        self.alerts += alerts
        return [one.id.removesuffix(f":{one.since}") for one in alerts]

    def minutes(self, said_in: list[ReadingColumns], step: int) -> Watch:
        for minute in range(0, len(said_in), step):
            self.hear(heard(said_in[minute : minute + step]))
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
        ((0, "door", 1, -5, "away"), False),  # it opened before, and nobody knows in which mode
        ((0, "door", float("nan"), -0.5, "away"), False),
    ],
)
def test_a_door_that_opens_while_the_alarm_is_on(row: Row, raised: bool) -> None:
    assert Watch().hear(said(row)) == (["break-in:h000001"] if raised else [])


def test_a_break_in_whose_first_reading_was_lost() -> None:
    watch = Watch()
    assert watch.hear(said((0, "smoke", 0, -99, "away"))) == []
    assert watch.hear(said((5, "door", 1, 3, "away"))) == ["break-in:h000001"]
    # Whoever left it open and went: it opened before the alarm was on.
    other = Watch()
    assert other.hear(said((0, "smoke", 0, -99, "home"), (4, "smoke", 0, -99, "away"))) == []
    assert other.hear(said((5, "door", 1, 3, "away"))) == []


def test_a_late_reading_raises_what_it_tells() -> None:
    watch = Watch()
    assert watch.hear(said((9, "smoke", 0, -99, "home"))) == []
    assert watch.hear(said((2, "glass", 1, 1.5, "away"))) == ["break-in:h000001"]


def test_a_late_reading_changes_nothing_about_the_mode_after_it() -> None:
    watch = Watch()
    watch.hear(said((5, "smoke", 0, -99, "away")))
    watch.hear(said((2, "smoke", 0, -99, "home")))
    assert watch.hear(said((12, "door", 1, 8, "away"))) == ["break-in:h000001"]


# -- fire -----------------------------------------------------------------------------------------


def test_smoke_that_flickers_is_one_fire() -> None:
    watch = Watch()
    levels = [60, 59, 61, 80, 40, 70]
    rows: list[Row] = [(i, "smoke", ppm, i - 0.5, "home") for i, ppm in enumerate(levels)]
    assert watch.hear(said(*rows)) == ["fire:h000001"]
    assert watch.hear(said((14, "smoke", 90, 13.5, "home"))) == []
    assert watch.hear(said((40, "smoke", 60, 39.5, "home"))) == ["fire:h000001"]


# -- forgotten window -----------------------------------------------------------------------------


def test_a_window_is_forgotten_two_hours_after_everybody_left() -> None:
    watch = Watch()
    rows: list[Row] = [(m, "window", 1, 0, "home" if m < 30 else "away") for m in range(150)]
    assert watch.hear(said(*rows)) == []
    assert watch.hear(said((150, "window", 1, 0, "away"))) == ["forgotten-window:h000001"]
    assert watch.hear(said((151, "window", 1, 0, "away"))) == []


def test_or_after_eight_hours_at_all() -> None:
    watch = Watch()
    rows: list[Row] = [(m, "window", 1, 0, "home") for m in range(0, 480, 10)]
    assert watch.hear(said(*rows)) == []
    assert watch.hear(said((480, "window", 1, 0, "home"))) == ["forgotten-window:h000001"]


def test_an_open_window_that_says_no_more_is_forgotten_by_the_clock() -> None:
    watch = Watch()
    assert watch.hear(said((0, "window", 1, -1, "away"))) == []
    others: list[Row] = [(m, "smoke", 0, -99, "away") for m in range(10, 131, 10)]
    raised = watch.hear(said(*others))
    assert sorted(raised) == ["forgotten-window:h000001", "silent-sensor:h000001:window"]
    shut = Watch()
    shut.hear(said((0, "window", 1, -1, "away"), (1, "window", 0, 0.5, "away")))
    assert shut.hear(said(*others)) == ["silent-sensor:h000001:window"]


# -- silence --------------------------------------------------------------------------------------


def every_ten(sensor: str, first: int, last: int) -> list[Row]:
    return [(m, sensor, 0, -999, "home") for m in range(first, last + 1, 10)]


def test_a_sensor_is_silent_while_others_speak() -> None:
    watch = Watch()
    watch.hear(said(*every_ten("door", 0, 0), *every_ten("smoke", 0, 30)))
    assert watch.alerts == []
    assert watch.hear(said(*every_ten("smoke", 40, 40))) == ["silent-sensor:h000001:door"]
    assert watch.hear(said(*every_ten("smoke", 50, 60))) == []
    # It speaks again, and falls silent again: that is another silence.
    assert watch.hear(said(*every_ten("door", 70, 70), *every_ten("smoke", 70, 90))) == []
    assert watch.hear(said(*every_ten("smoke", 100, 110))) == ["silent-sensor:h000001:door"]


def test_a_home_is_silent_while_others_speak() -> None:
    watch = Watch()
    watch.hear(said(*every_ten("door", 0, 0), *every_ten("smoke", 0, 0)))
    raised = watch.hear(said(*every_ten("door", 0, 40), home=2))
    assert sorted(raised) == ["silent-sensor:h000001:door", "silent-sensor:h000001:smoke"]


def test_a_silence_within_one_batch_is_found_too() -> None:
    rows = [*every_ten("smoke", 0, 90), *every_ten("door", 0, 10), *every_ten("door", 60, 90)]
    assert Watch().hear(said(*rows)) == ["silent-sensor:h000001:door"]


def test_when_all_are_silent_it_is_an_outage() -> None:
    watch = Watch()
    watch.hear(said(*every_ten("smoke", 0, 0), *every_ten("door", 0, 0)))
    assert watch.hear(said(*every_ten("smoke", 120, 130), *every_ten("door", 130, 130))) == []
    # From then on silence counts again.
    assert watch.hear(said(*every_ten("smoke", 140, 170))) == ["silent-sensor:h000001:door"]


def test_a_few_clocks_that_are_ahead_silence_nobody() -> None:
    watch = Watch()
    others = range(4, 70)
    watch.hear(joined([said(*every_ten("smoke", 0, 0), home=home) for home in others]))
    everybody = [said(*every_ten("smoke", 10, 10), home=home) for home in others]
    # No step between them is so long that it would look like an outage.
    wrong = [said((at, "smoke", 0, -999, "home"), home=i) for i, at in enumerate((24, 37, 50), 1)]
    assert watch.hear(joined([*everybody, *wrong])) == []


def joined(parts: list[ActivityColumns]) -> ActivityColumns:
    names = ActivityColumns.__slots__
    return ActivityColumns(
        *(np.concatenate([getattr(one, name) for one in parts]) for name in names)
    )


# -- each alert once ------------------------------------------------------------------------------


def test_what_an_earlier_run_raised_is_not_raised_again() -> None:
    rows = said((0, "door", 1, -0.5, "away"), (0, "smoke", 99, -0.2, "away"))
    first = Watch()
    assert sorted(first.hear(rows)) == ["break-in:h000001", "fire:h000001"]
    again = Watch()
    assert again.hear(
        rows, rules.fingerprints_of([one for one in first.alerts if one.kind == "break-in"])
    ) == ["fire:h000001"]


def test_marks_are_as_different_as_ids() -> None:
    alerts = [
        rules.as_alert(kind, number, sensor, T, since)
        for kind, sensor in [(0, 1), (0, 3), (1, 4), (3, 1), (3, 3)]
        for number in (1, 2, 257)
        for since in (T, T + 1)
    ]
    marks = rules.fingerprints_of(alerts).tolist()
    assert len(set(marks)) == len({one.id for one in alerts}) == 24
    assert len({(mark, one.id) for mark, one in zip(marks, alerts, strict=True)}) == 24


def test_a_day_is_remembered_and_no_more() -> None:
    watch = Watch()
    watch.hear(said(*every_ten("smoke", 0, 0), home=1))
    watch.hear(said(*every_ten("smoke", 0, 24 * 60), home=2))
    assert watch.past.homes.tolist() == [1, 2]
    watch.hear(said(*every_ten("smoke", 24 * 60 + 10, 24 * 60 + 10), home=2))
    assert watch.past.homes.tolist() == [2]
    assert len(watch.past.raised) == 1
    assert DAY_MS == 24 * HOUR_MS


# -- against the truth ----------------------------------------------------------------------------


BUSY = HomeSimulator(100, 11, MANY)
DAY = FIRST_MINUTE + 1440


@cache
def busy_day() -> list[ReadingColumns]:
    return [kept(BUSY.arriving(minute)) for minute in range(FIRST_MINUTE, DAY)]


def scored(simulator: HomeSimulator, watch: Watch, last: int) -> tuple[Score, Score]:
    """Of what was due: what was found; and of all that was raised: what was right."""
    due = due_by(simulator.truth(FIRST_MINUTE, last), (last - 6) * MINUTE_MS)
    truth = simulator.truth(FIRST_MINUTE - 2 * 1440, last)
    return overall(score(due, watch.alerts)), overall(score(truth, watch.alerts))


@pytest.mark.parametrize("step", [3, 1440])
def test_on_a_clean_day_every_incident_is_found_and_nothing_else(step: int) -> None:
    watch = Watch().minutes(busy_day(), step)
    found, right = scored(BUSY, watch, DAY)
    assert found.incidents > 10
    assert found.recall == 1.0
    assert right.precision == 1.0
    assert right.repeats == 0


def test_how_readings_are_cut_into_batches_changes_nothing() -> None:
    ids = [{one.id for one in Watch().minutes(busy_day(), step).alerts} for step in (45, 1440)]
    assert ids[0] == ids[1]


def test_a_quiet_day_raises_nothing() -> None:
    simulator = HomeSimulator(100, 13, Incidents())
    quiet = [kept(simulator.arriving(minute)) for minute in range(FIRST_MINUTE, FIRST_MINUTE + 600)]
    assert Watch().minutes(quiet, 60).alerts == []


def test_with_mishaps_little_is_missed_and_little_is_wrong() -> None:
    reading_faults = ReadingFaults(late=0.02, duplicates=0.02, malformed=0.002, low_battery=0.02)
    simulator, last = HomeSimulator(100, 14, MANY, reading_faults), FIRST_MINUTE + 360
    told = [kept(simulator.arriving(minute)) for minute in range(FIRST_MINUTE, last)]
    found, right = scored(simulator, Watch().minutes(told, 2), last)
    assert found.incidents > 3
    assert found.recall > 0.9
    assert right.precision > 0.9
    assert right.repeats == 0
