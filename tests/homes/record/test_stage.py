"""The stage `record` on a local Spark: from the hubs to files and a database."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.record import stage as record
from pumphouse.homes.record.archive import snapshot
from pumphouse.homes.record.stage import Recorder, RecordSettings
from pumphouse.homes.schema import (
    ACTIVITY_HUB,
    ALERTS_HUB,
    Activity,
    Alert,
    encode_activity,
    encode_alert,
)
from tests.homes.record.rows import activity, alert
from tests.homes.streams import TO_THE_END, finish

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("homes"), pytest.mark.timeout(400)]


def send(namespace: HomesNamespace, hub: str, events: Sequence[Event]) -> None:
    async def work() -> None:
        async with open_client(namespace.connection, hub) as client:
            await (await client.sender()).send(events)

    asyncio.run(work())


def as_event(record: Activity | Alert) -> Event:
    if isinstance(record, Alert):
        return Event(encode_alert(record), partition_key=record.home)
    return Event(encode_activity(record), partition_key=record.reading.home)


def run(spark: SparkSession, namespace: HomesNamespace, folder: Path, checkpoint: str) -> Recorder:
    settings = RecordSettings(str(folder / "records"), f"sqlite://{folder}/homes.db", events_max=64)
    recorder = Recorder.open(settings)
    where = str(folder / checkpoint)
    # If Spark's time limit for the Python process is too short, the query is started again.
    finish(lambda: record.start(spark, namespace, where, settings, TO_THE_END, recorder))
    recorder.close()
    return recorder


def in_database(folder: Path, table: str) -> list[tuple[object, ...]]:
    with sqlite3.connect(folder / "homes.db") as file:
        rows = file.execute(f"SELECT home, at, partition, sequence FROM {table}").fetchall()
    file.close()
    return sorted(rows)


def in_files(folder: Path, hub: str) -> list[tuple[object, ...]]:
    rows = snapshot(folder / "records").table(hub)
    assert rows is not None
    names = ("home", "at", "partition", "sequence")
    return sorted(zip(*(rows[name].to_pylist() for name in names), strict=True))


def test_both_hubs_are_recorded_once_also_without_a_checkpoint(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    activities = [activity(home, minute) for home in range(10) for minute in range(9)]
    send(namespace, ACTIVITY_HUB, [as_event(each) for each in activities])
    odd = [Event(b"{", partition_key="h000001"), Event(json.dumps({"home": 3}).encode())]
    send(namespace, ACTIVITY_HUB, odd)
    send(namespace, ALERTS_HUB, [as_event(alert(3)), as_event(alert(4))])

    first = run(spark, namespace, tmp_path, "checkpoint").recorded
    assert (first.rows, first.unreadable, first.duplicates) == (92, 2, 0)
    assert 0 < first.delay_p50_ms <= first.delay_p99_ms

    send(namespace, ACTIVITY_HUB, [as_event(activity(0, 20)), as_event(activity(0, 0))])
    # Spark has lost its memory, and brings everything again: the positions know it all.
    second = run(spark, namespace, tmp_path, "another").recorded
    assert (second.rows, second.duplicates, second.known) == (2, 1, 92)

    stored = in_database(tmp_path, ACTIVITY_HUB)
    expected = {(each.reading.home, each.reading.at) for each in [*activities, activity(0, 20)]}
    assert [(home, at) for home, at, *_ in stored] == sorted(expected)
    files = in_files(tmp_path, ACTIVITY_HUB)
    assert len(files) == len(set(files)) == 92  # with the repeat: it is an event of its own
    assert set(stored) <= set(files)
    assert in_files(tmp_path, ALERTS_HUB) == in_database(tmp_path, ALERTS_HUB)
    assert len(in_database(tmp_path, ALERTS_HUB)) == 2


def test_a_delta_commit_has_the_batch_of_the_query(
    spark: SparkSession, namespace: HomesNamespace, tmp_path: Path
) -> None:
    send(namespace, ACTIVITY_HUB, [as_event(activity(home)) for home in range(10)])
    send(namespace, ALERTS_HUB, [as_event(alert(3))])
    settings = RecordSettings(str(tmp_path / "records"), storage_format="delta")
    recorder = Recorder.open(settings)
    where = str(tmp_path / "checkpoint")
    query = finish(lambda: record.start(spark, namespace, where, settings, TO_THE_END, recorder))
    assert recorder.recorded.rows == 11
    for hub, rows in ((ACTIVITY_HUB, 10), (ALERTS_HUB, 1)):
        table = DeltaTable(tmp_path / "records" / hub)
        assert table.to_pyarrow_table().num_rows == rows
        assert table.transaction_version(f"pumphouse/query/{query.id}") is not None
