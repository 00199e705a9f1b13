"""How far a query is behind, told by a running Spark; and its progress in a store of others."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pumphouse.client.connection_string import parse_connection_string
from pumphouse.errors import OptionError
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import open_store
from pumphouse.spark.lag.known_positions import Lag

from .conftest import Hub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

UNTIL_S = 120


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + UNTIL_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def lags(spark: SparkSession) -> Iterator[list[Lag]]:
    from pumphouse.spark import EventHubsLagListener

    found: list[Lag] = []
    listener = EventHubsLagListener(found.append)
    spark.streams.addListener(listener)
    yield found
    spark.streams.removeListener(listener)


def stream(spark: SparkSession, hub: Hub, **options: str) -> DataFrame:
    given = {"connectionString": hub.connection, "startingPosition": "earliest"} | options
    return spark.readStream.format("eventhubs").options(**given).load()


def run(frame: DataFrame, folder: Path) -> None:
    writer = frame.writeStream.format("noop").trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(folder)).start()
    assert query.awaitTermination(UNTIL_S)


def checkpoints(store: Path, hub: Hub) -> dict[str, tuple[int | None, str | None]]:
    async def look() -> dict[str, tuple[int | None, str | None]]:
        group = Group(parse_connection_string(hub.connection).authority, "sensors", "$Default")
        async with open_store(store) as opened:
            found = await opened.list_checkpoints(group)
        return {one.partition: (one.sequence, one.offset) for one in found}

    return asyncio.run(look())


def offsets(spark: SparkSession, hub: Hub) -> dict[tuple[str, int], str]:
    found = spark.read.format("eventhubs").option("connectionString", hub.connection).load()
    return {(row.partition, row.sequenceNumber): row.offset for row in found.collect()}


def test_lag_after_every_batch(
    spark: SparkSession, hub: Hub, lags: list[Lag], tmp_path: Path
) -> None:
    for partition in "01":
        hub.send(*map(str, range(50)), partition=partition)
    run(stream(spark, hub, maxEventsPerTrigger="20"), tmp_path)
    until(lambda: len(lags) >= 5)
    assert [lag.events for lag in lags[:5]] == [80, 60, 40, 20, 0]
    assert lags[4].seconds == 0.0
    assert [one.partition for one in lags[0].partitions] == ["0", "1", "2", "3"]
    assert {lag.hub for lag in lags} == {"sensors"}
    # Which event a batch ended with is told by its tasks, who may be slow to tell.
    assert any(lag.seconds is not None for lag in lags[:4]), lags


def test_a_store_needs_to_know_the_hub() -> None:
    from pumphouse.spark import EventHubsLagListener

    with pytest.raises(OptionError, match="a store needs a connection too"):
        EventHubsLagListener(store="memory:")


@pytest.mark.parametrize("limit", ["1000", "30"])
def test_the_last_batch_is_mirrored_too(
    spark: SparkSession, hub: Hub, tmp_path: Path, limit: str
) -> None:
    from pumphouse.spark import EventHubsLagListener

    store = tmp_path / "leases.db"
    listener = EventHubsLagListener(store=f"sqlite://{store}", connection=hub.connection)
    spark.streams.addListener(listener)
    try:
        hub.send(*map(str, range(50)), partition="0")
        hub.send(*map(str, range(7)), partition="3")
        run(stream(spark, hub, maxEventsPerTrigger=limit), tmp_path / "checkpoint")
        known = offsets(spark, hub)
        wanted = {"0": (49, known["0", 49]), "3": (6, known["3", 6])}
        until(lambda: checkpoints(store, hub) == wanted)
    finally:
        spark.streams.removeListener(listener)


def test_a_query_that_is_stopped_in_the_middle_is_mirrored(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """The place of its last batch is not the newest event, and nobody told of it: it is asked."""
    from pumphouse.spark import EventHubsLagListener

    store = tmp_path / "leases.db"
    listener = EventHubsLagListener(store=f"sqlite://{store}", connection=hub.connection)
    spark.streams.addListener(listener)
    try:
        hub.send(*map(str, range(50)), partition="0")
        frame = stream(spark, hub, maxEventsPerTrigger="20", taskFeedback="false")
        writer = frame.writeStream.format("noop").trigger(processingTime="1 hour")
        query = writer.option("checkpointLocation", str(tmp_path / "c")).start()
        until(lambda: any(one["numInputRows"] for one in query.recentProgress))
        query.stop()
        until(lambda: checkpoints(store, hub) == {"0": (19, offsets(spark, hub)["0", 19])})
    finally:
        spark.streams.removeListener(listener)


def test_the_source_mirrors_what_is_committed(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """All but the last batch, without a listener."""
    hub.send(*map(str, range(50)), partition="0")
    store = tmp_path / "leases.db"
    options = {"maxEventsPerTrigger": "20", "checkpointStore": f"sqlite://{store}"}
    run(stream(spark, hub, **options), tmp_path / "checkpoint")
    until(lambda: bool(checkpoints(store, hub)))
    (sequence, offset) = checkpoints(store, hub)["0"]
    assert sequence in (19, 39)
    assert offset == offsets(spark, hub)["0", sequence]
