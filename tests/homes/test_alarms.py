"""Alarms on a local Spark: sift raises them, watch leaves them to it, and none comes twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks._homes_expected import expected_activities, expected_alert_ids, raw_bodies
from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import (
    ALERTS_HUB,
    MINUTE_MS,
    SENSORS_HUB,
    Reading,
    decode_alert,
    encode_reading,
)
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.simulator.incidents import Incidents
from pumphouse.homes.simulator.reading_faults import ReadingFaults
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch
from pumphouse.telemetry.trace_context import TRACEPARENT, read_context
from tests.homes.streams import TO_THE_END, finish, put, read_all
from tests.homes.test_simulated_day import forget_the_last_commit, send

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("homes"), pytest.mark.timeout(600)]

FIRST, MINUTES = 29_867_270, 120  # some break-ins and fires
SIMULATOR = HomeSimulator(
    150,
    11,
    Incidents(break_in=220, fire=220, forgotten_window=50, silent_sensor=50),
    ReadingFaults(late=0.05, duplicates=0.05, malformed=0.02, faults=0.02),
)
ALARMS = ("break-in", "fire")
AT = FIRST * MINUTE_MS
TRACED = Reading("h000900", "glass", 1, AT, 1, AT - 9_000, "asleep", 87)
CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def sift_all(spark: SparkSession, namespace: HomesNamespace, folder: Path) -> None:
    settings = sift.SiftSettings(ahead_max_s=None, events_max=40_000, alarms=True)
    finish(lambda: sift.start(spark, namespace, str(folder), settings, TO_THE_END))


def watch_all(spark: SparkSession, namespace: HomesNamespace, folder: Path) -> None:
    settings = watch.WatchSettings(alarms=False)
    finish(lambda: watch.start(spark, namespace, str(folder), settings, TO_THE_END))


def kinds_of(events: list[Event]) -> Counter[str]:
    return Counter(decode_alert(event.body).kind for event in events)


def test_sift_raises_each_alarm_once_across_a_crash_and_watch_the_other_alerts(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    half = FIRST + MINUTES // 2
    traced = Event(encode_reading(TRACED), {TRACEPARENT: CONTEXT}, partition_key=TRACED.home)
    put(namespace, SENSORS_HUB, [traced])
    asyncio.run(send(namespace, SIMULATOR, range(FIRST, half)))
    sift_all(spark, namespace, tmp_path / "sift")
    first = read_all(namespace, ALERTS_HUB)
    assert first
    assert kinds_of(first).keys() <= {*ALARMS}
    watch_all(spark, namespace, tmp_path / "watch")
    others = kinds_of(read_all(namespace, ALERTS_HUB)) - kinds_of(first)
    assert not others.keys() & {*ALARMS}

    forget_the_last_commit(tmp_path / "sift")  # Spark repeats the batch
    asyncio.run(send(namespace, SIMULATOR, range(half, FIRST + MINUTES)))
    sift_all(spark, namespace, tmp_path / "sift")
    watch_all(spark, namespace, tmp_path / "watch")
    events = read_all(namespace, ALERTS_HUB)
    alerts = [decode_alert(event.body) for event in events]
    ids = [alert.id for alert in alerts]
    assert len(ids) == len({*ids})
    activities = list(expected_activities([traced.body, *raw_bodies(SIMULATOR, FIRST, MINUTES)]))
    expected = {i for i in expected_alert_ids(901, activities, 300_000) if i.startswith(ALARMS)}
    assert len(expected) > 3
    assert {i for i in ids if i.startswith(ALARMS)} == expected
    pairs = list(zip(events, alerts, strict=True))
    assert all(event.properties["id"] == alert.id for event, alert in pairs)
    assert all(event.partition_key == alert.home for event, alert in pairs)
    of_traced = f"break-in:{TRACED.home}:{TRACED.since}"
    [context] = [read_context(event.properties) for event, alert in pairs if alert.id == of_traced]
    assert context is not None
    assert context.traceparent == CONTEXT


def test_watch_raises_the_alarms_that_sift_has_lost(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    """An earlier version of sift raises none. A start of watch raises those of the day."""
    asyncio.run(send(namespace, SIMULATOR, range(FIRST, FIRST + MINUTES // 2)))
    without = sift.SiftSettings(ahead_max_s=None)
    finish(lambda: sift.start(spark, namespace, str(tmp_path / "sift"), without, TO_THE_END))
    assert read_all(namespace, ALERTS_HUB) == []
    watch_all(spark, namespace, tmp_path / "watch")
    assert kinds_of(read_all(namespace, ALERTS_HUB)).keys() & {*ALARMS}
