"""Streams on every Spark 4: all events of a backlog, whatever the trigger and the limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from benchmarks._spark_start import start_query
from pumphouse.spark.versions.features import LIMITS
from tests.spark.conftest import Hub
from tests.spark.support.queries import ENDED_S, FileSink, bodies, numbered, read, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("queries"),
]

OPTIONS = {"startingPosition": "earliest", "maxEventsPerTrigger": "20"}


def sizes(sink: FileSink) -> list[int]:
    counts = [progress["numInputRows"] for progress in sink.query.recentProgress]
    return [count for count in counts if count]


# What `make test` proves elsewhere for the Spark of its environment.
only_older = pytest.mark.lacks(LIMITS)


@pytest.mark.parametrize(
    "trigger",
    [pytest.param({"availableNow": True}, marks=only_older, id="now"), {"once": True}],
)
def test_a_run_that_ends_reads_the_whole_backlog(
    spark: SparkSession, hub: Hub, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    assert spark.version == pyspark.__version__
    hub.send(*numbered(50), partition="0")
    first = FileSink(stream(spark, hub, **OPTIONS), tmp_path, **trigger)
    assert first.end() == numbered(50)
    hub.send(*numbered(50, "more-"), partition="1")
    second = FileSink(stream(spark, hub, **OPTIONS), tmp_path, **trigger)
    assert second.end() == sorted([*numbered(50), *numbered(50, "more-")])
    assert sizes(second) == [50]


@only_older
def test_a_run_without_an_end_reads_in_batches_up_to_the_limit(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    hub.send(*numbered(50), partition="0")
    frame = stream(spark, hub, **OPTIONS, firstBatch="limited")
    first = FileSink(frame, tmp_path)
    assert first.drain() == numbered(50)
    first.query.stop()
    assert sizes(first) == [20, 20, 10]
    hub.send(*numbered(30, "more-"), partition="1")
    second = FileSink(frame, tmp_path)
    assert second.drain() == sorted([*numbered(50), *numbered(30, "more-")])
    assert sizes(second) == [20, 10]


@only_older
def test_a_batch_that_was_not_committed_is_read_again_and_nothing_is_lost(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    hub.send(*numbered(10), partition="0")
    FileSink(stream(spark, hub, **OPTIONS), tmp_path, availableNow=True).end()
    commits = tmp_path / "checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    for name in (f"{newest}", f".{newest}.crc"):
        (commits / name).unlink()
    hub.send("late", partition="0")
    second = FileSink(stream(spark, hub, **OPTIONS), tmp_path)
    assert sorted(set(second.drain())) == [*numbered(10), "late"]


@only_older
def test_a_stream_is_written_to_a_hub_and_read_back_with_filters(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    hub.send(*numbered(20), key="home-1")
    hub.embedded.create_hub("copies", 2)
    copies = Hub(hub.embedded, "copies")
    writer = stream(spark, hub, **OPTIONS).writeStream.format("eventhubs")
    writer = writer.options(connectionString=copies.connection, checkpointLocation=str(tmp_path))
    query = start_query(writer.trigger(availableNow=True).start)
    assert query.awaitTermination(ENDED_S)
    rows = read(spark, copies)
    assert bodies(rows.where("sequenceNumber between 5 and 9")) == numbered(20)[5:10]
    names = rows.selectExpr("partitionKey", "properties['spark-query-id']").distinct().collect()
    assert [tuple(row) for row in names] == [("home-1", query.id)]
