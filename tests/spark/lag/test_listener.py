"""The lag of queries on a running Spark, and their progress in a checkpoint store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from benchmarks._spark_start import start_query
from pumphouse.client.base import ReaderOptions
from pumphouse.client.connection_string import parse_connection_string
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark.lag.known_positions import POSITIONS_KEY, Lag
from pumphouse.spark.lag.lookup import find_known_position
from pumphouse.spark.versions.features import LAG
from tests.spark.conftest import Hub
from tests.spark.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.needs(LAG), pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

ENDED_S = 120


@contextmanager
def listening(spark: SparkSession, **options: str) -> Iterator[list[Lag]]:
    """The lags that a listener reports meanwhile."""
    from pumphouse.spark import EventHubsLagListener

    lags: list[Lag] = []
    listener = EventHubsLagListener(lags.append, **options)
    spark.streams.addListener(listener)
    try:
        yield lags
    finally:
        spark.streams.removeListener(listener)


def stream(spark: SparkSession, hub: Hub, **options: str) -> DataFrame:
    given = {"connectionString": hub.connection, "startingPosition": "earliest"} | options
    return spark.readStream.format("eventhubs").options(**given).load()


def run(frame: DataFrame, folder: Path) -> None:
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    query = start_query(writer.option("checkpointLocation", str(folder)).start)
    assert query.awaitTermination(ENDED_S)


def checkpoints(store: Path, hub: Hub) -> dict[str, tuple[int | None, str | None]]:
    async def read() -> dict[str, tuple[int | None, str | None]]:
        group = Group(parse_connection_string(hub.connection).authority, "sensors", "$Default")
        async with open_store(store) as opened:
            rows = await opened.list_checkpoints(group)
        return {row.partition: (row.sequence, row.offset) for row in rows}

    return asyncio.run(read())


def offset_of(hub: Hub, partition: str, sequence: int) -> str | None:
    """The offset of an event, read without Spark."""

    async def read() -> str | None:
        async with open_client(hub.connection) as client:
            options = ReaderOptions(partition)
            position = await find_known_position(client, options, sequence)
        assert position is not None
        return position.offset

    return asyncio.run(read())


def test_the_lag_is_reported_after_every_batch(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    for partition in "01":
        hub.send(*map(str, range(50)), partition=partition)
    with listening(spark) as lags:
        run(stream(spark, hub, maxEventsPerTrigger="20"), tmp_path)
        until(lambda: len(lags) >= 5)
    assert [lag.events for lag in lags[:5]] == [80, 60, 40, 20, 0]
    assert lags[4].seconds == 0.0
    assert [each.partition for each in lags[0].partitions] == ["0", "1", "2", "3"]
    assert {lag.hub for lag in lags} == {"sensors"}
    # Tasks report the last event of a batch, perhaps later than the batch is committed.
    assert any(lag.seconds is not None for lag in lags[:4]), lags


def test_a_store_needs_a_connection() -> None:
    from pumphouse.spark import EventHubsLagListener

    with pytest.raises(OptionError, match="store needs a connection"):
        EventHubsLagListener(store="memory:")


def test_an_error_of_on_lag_is_logged_as_an_error_but_not_after_every_batch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from pumphouse.spark import EventHubsLagListener

    def fail(lag: Lag) -> None:
        raise ValueError("in on_lag")

    latest = {"sensors": {"0": 2}, POSITIONS_KEY: {}}
    source = {"endOffset": {"sensors": {"0": 1}}, "latestOffset": latest}
    listener = EventHubsLagListener(fail)
    for batch in range(101):
        progress = {"id": "q", "batchId": batch, "sources": [source]}
        event = SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))
        listener.onQueryProgress(event)
    assert {record.levelname for record in caplog.records} == {"ERROR"}
    failure = 'callback_failed callback=on_lag error="ValueError: in on_lag"'
    assert [record.getMessage() for record in caplog.records] == [
        f'{failure} todo="fix on_lag"',
        f'{failure} count=10 todo="fix on_lag"',
        f'{failure} count=100 todo="fix on_lag"',
    ]


def test_the_last_batch_is_mirrored_too(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    """In a run of one batch, and in one of two."""
    hub.send(*map(str, range(50)), partition="0")
    hub.send(*map(str, range(7)), partition="3")
    expected = {"0": (49, offset_of(hub, "0", 49)), "3": (6, offset_of(hub, "3", 6))}
    for limit in ("1000", "30"):
        store = tmp_path / f"leases-{limit}.db"
        with listening(spark, store=f"sqlite://{store}", connection=hub.connection):
            run(stream(spark, hub, maxEventsPerTrigger=limit), tmp_path / limit)
            until(lambda store=store: checkpoints(store, hub) == expected)  # type: ignore[misc]


def test_a_query_that_is_stopped_before_its_end_is_mirrored(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """Its last event is not the newest, and no task reported it: it is read from the hub."""
    store = tmp_path / "leases.db"
    hub.send(*map(str, range(50)), partition="0")
    with listening(spark, store=f"sqlite://{store}", connection=hub.connection):
        frame = stream(spark, hub, maxEventsPerTrigger="20", taskFeedback="false")
        writer = frame.writeStream.format("noop").trigger(processingTime="1 hour")
        query = start_query(writer.option("checkpointLocation", str(tmp_path / "c")).start)
        until(lambda: any(progress["numInputRows"] for progress in query.recentProgress))
        query.stop()
        expected = {"0": (19, offset_of(hub, "0", 19))}
        until(lambda: checkpoints(store, hub) == expected)


def test_the_source_mirrors_committed_batches(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """Without a listener, all but the last."""
    hub.send(*map(str, range(50)), partition="0")
    store = tmp_path / "leases.db"
    options = {"maxEventsPerTrigger": "20", "checkpointStore": f"sqlite://{store}"}
    run(stream(spark, hub, **options), tmp_path / "checkpoint")
    until(lambda: bool(checkpoints(store, hub)))
    (sequence, offset) = checkpoints(store, hub)["0"]
    assert sequence in (19, 39)
    assert offset == offset_of(hub, "0", sequence or 0)
