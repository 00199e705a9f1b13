"""Queries on a local Spark that write to a hub."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks._spark_start import start_query
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark import drop_repeats
from tests.spark.conftest import Hub
from tests.spark.support.queries import ENDED_S, FileSink, bodies, numbered, read, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]


def rows(spark: SparkSession, count: int = 20) -> DataFrame:
    return spark.range(0, count, numPartitions=2).selectExpr(
        "cast(id as string) as body",
        "concat('home-', id % 3) as partitionKey",
        "map('n', cast(id as string)) as properties",
    )


def write(frame: DataFrame, hub: Hub, **options: str) -> None:
    given = {"connectionString": hub.connection} | options
    frame.write.format("eventhubs").mode("append").options(**given).save()


def copy(frame: DataFrame, hub: Hub, checkpoint: Path) -> str:
    """Stream to a hub until the source has ended; the id of the query."""
    writer = frame.writeStream.format("eventhubs").trigger(availableNow=True)
    writer = writer.options(connectionString=hub.connection, checkpointLocation=str(checkpoint))
    query = start_query(writer.start)
    assert query.awaitTermination(ENDED_S)
    return str(query.id)


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_rows_become_events(spark: SparkSession, hub: Hub, driver: str) -> None:
    write(rows(spark), hub, driver=driver, maxBatchBytes="1k", maxInFlight="2")
    partitions: dict[str | None, set[str]] = {}
    numbers = []
    for partition, events in hub.events().items():
        for event in events:
            number = int(event.body)
            numbers.append(number)
            assert event.properties == {"n": str(number)}
            assert event.partition_key == f"home-{number % 3}"
            partitions.setdefault(event.partition_key, set()).add(partition)
    assert sorted(numbers) == list(range(20))
    assert all(len(names) == 1 for names in partitions.values())


def test_rows_go_to_the_partition_of_a_column_or_an_option(spark: SparkSession, hub: Hub) -> None:
    write(rows(spark).selectExpr("body", "cast(body % 2 as int) || '' as partition"), hub)
    events = hub.events()
    assert {(int(event.body) % 2, name) for name in events for event in events[name]} == {
        (0, "0"),
        (1, "1"),
    }
    write(rows(spark, 3).select("body"), hub, partitionId="3")
    assert len(hub.events()["3"]) == 3


def test_rows_that_cannot_be_written_fail_the_query(spark: SparkSession, hub: Hub) -> None:
    for columns, options, reason in (
        ("partitionKey", {}, "the column body .* is missing"),  # checked before it starts
        ("cast(null as string) as body", {}, "row 0 of the task has no body"),  # by a task
        ("body", {"consumerGroup": "g"}, "consumerGroup is for reading"),
    ):
        with pytest.raises(Exception, match=reason):
            write(rows(spark, 2).selectExpr(columns), hub, **options)


@pytest.mark.usefixtures("queries")
def test_a_stream_is_checked_before_there_are_rows(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    namespace = hub.embedded.connection_string()
    given = {"connectionString": namespace, "checkpointLocation": str(tmp_path)}
    for column, target, reason in (
        ("text", "sensors", "the column body .* is missing"),
        ("body", "nowhere", "nowhere"),
    ):
        writer = stream(spark, hub).selectExpr(f"body as {column}").writeStream.format("eventhubs")
        with pytest.raises(Exception, match=reason):
            start_query(writer.options(**given, name=target).start).processAllAvailable()


def test_rows_of_two_jobs_have_different_identities(spark: SparkSession, hub: Hub) -> None:
    for _ in range(2):
        write(rows(spark, 4).select("body"), hub, dedupProperties="true")
    identities = {tuple(sorted(event.properties.items())) for event in hub.all_events()}
    assert len(identities) == 8


def test_a_busy_hub_is_retried(spark: SparkSession, hub: Hub) -> None:
    hub.embedded.faults.throttle(hub="sensors", times=3)
    write(rows(spark), hub, **{"retry.backoff": "10ms"})
    assert sorted(int(event.body) for event in hub.all_events()) == list(range(20))


def test_a_busy_hub_fails_the_query_if_that_is_asked_for(spark: SparkSession, hub: Hub) -> None:
    hub.embedded.faults.throttle(hub="sensors", times=100)
    with pytest.raises(Exception, match="server-busy"):
        write(rows(spark), hub, onThrottle="fail")


def test_rows_are_not_sent_faster_than_the_rate(spark: SparkSession, hub: Hub) -> None:
    since_s = time.monotonic()
    write(rows(spark, 40).coalesce(1), hub, maxSendRate="20")
    assert time.monotonic() - since_s >= 1.9
    assert len(hub.all_events()) == 40


def test_a_hub_is_not_overwritten(spark: SparkSession, hub: Hub) -> None:
    writer = rows(spark).write.format("eventhubs").mode("overwrite")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.option("connectionString", hub.connection).save()


@pytest.mark.usefixtures("queries")
def test_a_stream_copies_a_hub_with_an_identity_for_each_row(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    event_hub.create_hub("activity", 2)
    target = Hub(event_hub, "activity")
    hub.send(*numbered(300), key="k")
    frame = stream(spark, hub, startingPosition="earliest").select("body", "partitionKey")
    query = copy(frame, target, tmp_path)
    events = target.all_events()
    assert sorted(event.body.decode() for event in events) == numbered(300)
    assert len({tuple(sorted(event.properties.items())) for event in events}) == 300
    assert {event.properties["spark-query-id"] for event in events} == {query}


@pytest.mark.usefixtures("queries")
@pytest.mark.parametrize("per_task", ["1", "4"])
def test_a_batch_that_is_written_twice_is_read_once(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub, tmp_path: Path, per_task: str
) -> None:
    """The writer crashed after it had sent everything: it sends all of it again."""
    event_hub.create_hub("activity", 2)
    target = Hub(event_hub, "activity")
    for partition in "0123":
        hub.send(*numbered(50, f"{partition}-"), partition=partition)
    expected = [row for partition in "0123" for row in numbered(50, f"{partition}-")]
    target.send("foreign", "foreign", partition="0")  # without properties: not duplicates
    options = {"startingPosition": "earliest", "partitionsPerTask": per_task, "arrowBatchRows": "7"}
    for _ in range(2):
        copy(stream(spark, hub, **options).select("body"), target, tmp_path / "copy")
        for name in ("commits/0", "commits/.0.crc"):
            (tmp_path / "copy" / name).unlink()
    assert len(target.all_events()) == 2 * len(expected) + 2
    assert bodies(drop_repeats(read(spark, target))) == [*expected, "foreign", "foreign"]
    if per_task == "4":  # the stream sees the same events: once is enough
        unique = drop_repeats(stream(spark, target, startingPosition="earliest"))
        sink = FileSink(unique.select("body"), tmp_path / "unique", availableNow=True)
        assert sink.end() == [*expected, "foreign", "foreign"]


def test_rows_are_written_as_they_were_read(spark: SparkSession, hub: Hub) -> None:
    """Columns that the hub sets are left out; a key chooses the partition."""
    hub.embedded.create_hub("copy", 4)
    copy = Hub(hub.embedded, "copy")
    hub.send("a", partition="3")
    hub.send("b", key="home-1")
    read(spark, hub).write.format("eventhubs").mode("append").option(
        "connectionString", copy.connection
    ).save()
    assert [event.body for event in copy.events()["3"] if event.partition_key is None] == [b"a"]
    (keyed,) = [event for event in copy.all_events() if event.partition_key]
    assert (keyed.body, keyed.partition_key) == (b"b", "home-1")


def test_names_of_columns_may_have_any_case(spark: SparkSession, hub: Hub) -> None:
    frame = rows(spark, 2).selectExpr("body AS BODY", "'home' AS partitionkey")
    write(frame, hub)
    assert {event.partition_key for event in hub.all_events()} == {"home"}
