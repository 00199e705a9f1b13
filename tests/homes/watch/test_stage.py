"""The stage `watch` on a local Spark: alerts against the ground truth, and after a restart."""

from __future__ import annotations

import asyncio
import json
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks._alert_score import due_by, overall, score
from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.schema import DAY_MS, MINUTE_MS, Alert, decode_alert, decode_reading
from pumphouse.homes.sift import stage as sift
from pumphouse.homes.simulator.incidents import MANY
from pumphouse.homes.simulator.recorded_files import read_recording
from pumphouse.homes.simulator.replay import ReplaySource
from pumphouse.homes.simulator.sender import send
from pumphouse.homes.simulator.sensors import HomeSimulator
from pumphouse.homes.watch import stage as watch
from pumphouse.telemetry.trace_context import TRACEPARENT, read_context
from tests.homes.simulator.sensor_network import as_csv, unusual_at
from tests.homes.streams import TO_THE_END, finish, put, put_in_turn, read_all
from tests.homes.watch.activity_columns import FIRST_MINUTE, activities

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("homes"), pytest.mark.timeout(900)]

START_MS = FIRST_MINUTE * MINUTE_MS
SETTINGS = watch.WatchSettings(events_max=20_000, partitions_per_task=1)


def foreign_record(home: object, number: object = 1) -> bytes:
    """A record of another program, invalid as an activity and as an alert."""
    fields = {"v": 1, "home": home, "sensor": "door", "at": number, "value": 1, "since": number}
    return json.dumps(fields | {"mode": "away", "kind": "break-in"}).encode()


FOREIGN_RECORDS = [
    b"", b"{", b"\xff", *map(foreign_record, ("hello!", "h-12345", "h12", None, 5, "h" * 5000)),
    *(foreign_record("h000001", number) for number in (None, "x", 2**63 - 1, -(2**63), 2**63)),
]  # fmt: skip


def watch_all(
    spark: SparkSession,
    namespace: HomesNamespace,
    folder: Path,
    settings: watch.WatchSettings = SETTINGS,
) -> list[Event]:
    finish(lambda: watch.start(spark, namespace, str(folder), settings, TO_THE_END))
    return read_all(namespace, "alerts")


def decoded(events: list[Event]) -> list[Alert]:
    return [decode_alert(event.body) for event in events]


def test_each_incident_raises_one_alert_across_a_restart(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    """Half a day of a few homes and foreign records. Each start has a new checkpoint."""
    simulator, minutes = HomeSimulator(40, 7, MANY), 12 * 60
    end = FIRST_MINUTE + minutes
    everything = [
        [traced(event) for event in activities(simulator, minute)]
        for minute in range(FIRST_MINUTE, end)
    ]
    for hub in ("activity", "alerts"):
        put(namespace, hub, [Event(body) for body in FOREIGN_RECORDS])
    checkpoints = set()
    for part in (everything[: minutes // 2], everything[minutes // 2 :]):
        put_in_turn(namespace, "activity", part)
        events = watch_all(spark, namespace, tmp_path)
        (checkpoint,) = tmp_path.iterdir()
        checkpoints.add(checkpoint)
    assert len(checkpoints) == 2
    events = [event for event in events if event.body not in FOREIGN_RECORDS]
    alerts = decoded(events)
    truth = simulator.truth(FIRST_MINUTE - DAY_MS // MINUTE_MS, end)
    due = due_by(simulator.truth(FIRST_MINUTE, end), (end - 6) * MINUTE_MS)
    assert len(due) > 3
    assert overall(score(due, alerts)).recall == 1.0
    total = overall(score(truth, alerts))
    assert total.precision == 1.0
    assert total.repeats == 0
    pairs = list(zip(events, alerts, strict=True))
    assert all(event.properties["id"] == alert.id for event, alert in pairs)
    assert all(event.partition_key == alert.home for event, alert in pairs)
    # An alert has the trace of the reading that raised it. Time raises other alerts without one.
    for event, alert in pairs:
        context = read_context(event.properties)
        trace = trace_of(alert.home, alert.sensor, alert.at)
        by_time = context is None and alert.kind in ("silent-sensor", "forgotten-window")
        assert by_time or (context is not None and context.trace_id == trace)
    assert {"break-in", "fire"} & {alert.kind for alert in alerts}


def trace_of(home: str, sensor: str, at: int) -> str:
    return sha256(f"{home} {sensor} {at}".encode()).hexdigest()[:32]


def traced(event: Event) -> Event:
    """The event with a context of its own. Its body is a reading."""
    reading = decode_reading(event.body)
    trace = trace_of(reading.home, reading.sensor, reading.at)
    context = {TRACEPARENT: f"00-{trace}-b7ad6b7169203331-01"}
    return Event(event.body, context, partition_key=event.partition_key)


def test_labelled_data_of_a_sensor_network(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    """Four motes for six hours; a hot kettle was held to two of them."""
    source = ReplaySource(read_recording(as_csv()), homes=4, start_ms=START_MS, slot_s=60)

    async def replay() -> None:
        async with open_client(namespace.connection, "sensors") as client:
            await send(client, source, None, SystemClock(), asyncio.Event())

    asyncio.run(replay())
    settings = sift.SiftSettings(ahead_max_s=None, partitions_per_task=1)
    finish(lambda: sift.start(spark, namespace, str(tmp_path / "sift"), settings, TO_THE_END))
    alerts = decoded(watch_all(spark, namespace, tmp_path / "watch"))
    labels = unusual_at(START_MS)
    unusual = [alert for alert in alerts if alert.kind == "unusual-reading"]
    labelled = [alert for alert in unusual if alert.at in labels.get(alert.home, ())]
    both = {(home, kind) for home in labels for kind in ("temperature", "humidity")}
    assert {(alert.home, alert.sensor) for alert in labelled} == both
    # The humidity of a mote outside jumped once, without a label.
    assert len(unusual) - len(labelled) <= 1
    assert {alert.kind for alert in alerts} <= {"unusual-reading", "silent-sensor"}
