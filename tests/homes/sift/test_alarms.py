"""The alerts that sift raises are the break-ins and fires that a batch of all readings raises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest

from pumphouse.homes.duplicates import NO_WINDOWS, admit_new
from pumphouse.homes.schema import MINUTE_MS, Alert
from pumphouse.homes.sift.alarms import pack_state, raise_alarms, unpack_state
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.record_encoding import ReadingColumns
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.history import (
    EMPTY,
    ActivityColumns,
    PartitionHistory,
    from_bytes,
    starting_with,
)
from tests.homes.watch.activity_columns import FIRST_MINUTE, as_activity_columns, kept

pytestmark = pytest.mark.timeout(600)

GRACE_MS = 5 * MINUTE_MS
NONE = np.empty(0, np.uint64)
INCIDENTS = Incidents(break_in=220, fire=220, forgotten_window=50, silent_sensor=50)
FAULTS = ReadingFaults(late=0.05, duplicates=0.05, malformed=0.05, faults=0.02)
ALARMS = ("break-in", "fire")
STEPS = (2, 25)  # minutes per batch


@cache
def minutes() -> list[ReadingColumns]:
    """Half a day of homes with many incidents, and with reading faults."""
    simulator = HomeSimulator(150, 7, INCIDENTS, FAULTS)
    return [kept(simulator.minute(FIRST_MINUTE + minute).columns) for minute in range(720)]


def batches(step: int) -> Iterator[ActivityColumns]:
    for minute in range(0, len(minutes()), step):
        yield as_activity_columns(minutes()[minute : minute + step])


@cache
def raised_by_batch() -> set[str]:
    """The ids of all alerts, from all activities at once."""
    alerts, _ = rules.apply_rules(EMPTY, as_activity_columns(minutes()), GRACE_MS, NONE)
    return {alert.id for alert in alerts.as_alerts()}


def ids(alerts: list[Alert]) -> Counter[str]:
    return Counter(alert.id for alert in alerts)


def sifted(step: int) -> Counter[str]:
    history, raised = EMPTY, list[Alert]()
    for batch in batches(step):
        alerts, history = raise_alarms(history, batch, NONE)
        _, history = unpack_state(pack_state(NO_WINDOWS, history))
        raised += alerts.as_alerts()
    return ids(raised)


def watched(step: int, own_until: int | None) -> Counter[str]:
    """The alerts of watch, if sift raises those of activities after a position."""
    history, raised, position = starting_with(EMPTY, own_until), list[Alert](), 0
    for batch in batches(step):
        sequence = np.arange(position, position := position + len(batch))
        alerts, history = rules.apply_rules(
            history, batch, GRACE_MS, NONE, sequence > history.own_until[0]
        )
        history = from_bytes(history.to_bytes())
        raised += alerts.as_alerts()
    return ids(raised)


def alarms_in(alerts: set[str] | Counter[str]) -> set[str]:
    return {each for each in alerts if each.startswith(ALARMS)}


@pytest.mark.parametrize("step", STEPS)
def test_sift_raises_the_alarms_of_one_batch_each_once(step: int) -> None:
    raised = sifted(step)
    assert raised.keys() == alarms_in(raised_by_batch())
    assert {*raised.values()} == {1}
    assert len(raised) > 5


@pytest.mark.parametrize("step", STEPS)
def test_watch_leaves_the_alarms_to_sift_and_raises_all_others(step: int) -> None:
    raised = watched(step, own_until=-1)
    assert raised.keys() == raised_by_batch() - alarms_in(raised_by_batch())
    assert {*raised.values()} == {1}


def test_watch_raises_the_alarms_of_activities_before_its_start() -> None:
    """Sift has raised them already, and then they are known. Here it has lost them."""
    half = sum(map(len, batches(1))) // 2
    raised = alarms_in(watched(25, own_until=half))
    assert raised < alarms_in(raised_by_batch())
    assert raised
    assert alarms_in(watched(25, own_until=None)) == alarms_in(raised_by_batch())


def test_known_alarms_are_not_raised_again() -> None:
    everything = as_activity_columns(minutes())
    alerts, _ = raise_alarms(EMPTY, everything, NONE)
    assert len(raise_alarms(EMPTY, everything, alerts.fingerprints())[0]) == 0


def test_the_state_of_an_earlier_version_has_no_history() -> None:
    _, windows = admit_new(NO_WINDOWS, np.arange(3, dtype=np.int32), np.arange(3, dtype=np.int64))
    assert unpack_state(b"")[0].keys.tolist() == []
    before, history = unpack_state(pack_state(windows, None))
    assert (before.keys.tolist(), history) == ([0, 1, 2], EMPTY)
    after = PartitionHistory.to_bytes(raise_alarms(EMPTY, next(batches(1)), NONE)[1])
    windows_after, history_after = unpack_state(pack_state(windows, from_bytes(after)))
    assert windows_after.to_bytes() == windows.to_bytes()
    assert history_after.to_bytes() == after


def test_homes_that_are_silent_for_a_day_are_forgotten() -> None:
    _, history = raise_alarms(EMPTY, next(batches(5)), NONE)
    [*_, last] = batches(5)
    later = ActivityColumns(
        last.number[:1], last.kind[:1], last.at[:1] + 2 * 86_400_000, last.value[:1],
        last.since[:1], last.mode[:1],
    )  # fmt: skip
    _, after = raise_alarms(history, later, NONE)
    assert len(history.homes) > 10
    assert after.homes.tolist() == last.number[:1].tolist()
    assert len(after.raised) == 0 or after.clock[0] > history.clock[0]
