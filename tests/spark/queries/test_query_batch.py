"""Batch queries on a local Spark that read a hub."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from pumphouse.events import Event
from pumphouse.spark.versions.features import FILTERS
from tests.spark.conftest import Hub
from tests.spark.support.queries import bodies, numbered, read, secret_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

DRIVERS = ("native", "azure")  # both return the same for the same events


def test_every_column_is_read(spark: SparkSession, hub: Hub) -> None:
    hub.send_events([Event(b"\x00\xff", {"unit": "C", "reading": 21}, partition_key="home-7")])
    for driver in DRIVERS:
        (row,) = read(spark, hub, driver=driver).collect()
        assert row.systemProperties == {"x-opt-partition-key": "home-7"}
        assert bytes(row.body) == b"\x00\xff"
        assert row.partitionKey == "home-7"
        assert row.properties == {"unit": "C", "reading": "21"}
        assert row.sequenceNumber == 0
        assert row.offset
        assert row.enqueuedTime is not None
        assert row.partition in ("0", "1", "2", "3")
        assert row.publisher is None


def test_a_batch_reads_every_event_once(spark: SparkSession, hub: Hub) -> None:
    """With both drivers, and with one or several partitions in a task."""
    for partition in "0123":
        hub.send(*numbered(500, f"{partition}-"), partition=partition)
    expected = {
        (partition, number, f"{partition}-{number:04d}")
        for partition in "0123"
        for number in range(500)
    }
    for driver, per_task, tasks in (("native", 1, 4), ("azure", 3, 2), ("native", 4, 1)):
        options = {"arrowBatchRows": "64", "driver": driver, "partitionsPerTask": str(per_task)}
        frame = read(spark, hub, **options)
        assert frame.rdd.getNumPartitions() == tasks
        columns = frame.selectExpr("partition", "sequenceNumber", "cast(body as string)")
        rows = [tuple(row) for row in columns.collect()]
        assert len(rows) == 2000
        assert set(rows) == expected


def test_a_batch_has_a_start_and_an_end(spark: SparkSession, hub: Hub) -> None:
    hub.send(*numbered(10), partition="0")
    hub.send(*numbered(10), partition="1")
    ends = json.dumps({"1": {"seqNo": 9}})
    options = {"startingPosition": "seq:7", "endingPositions": ends, "partitions": "0,1"}
    rows = read(spark, hub, **options).select("partition", "sequenceNumber").collect()
    assert sorted((row[0], row[1]) for row in rows) == [
        ("0", 7), ("0", 8), ("0", 9), ("1", 7), ("1", 8),
    ]  # fmt: skip


def test_an_empty_hub_has_no_rows(spark: SparkSession, hub: Hub) -> None:
    assert read(spark, hub).collect() == []


def test_the_second_name_of_the_source(spark: SparkSession, hub: Hub) -> None:
    """The Scala connector does not have it."""
    hub.send("a")
    source = spark.read.format("azure_eventhubs").option("connectionString", hub.connection)
    assert bodies(source.load()) == ["a"]


def test_a_schema_selects_columns(spark: SparkSession, hub: Hub) -> None:
    hub.send("a", "b", partition="0")
    source = spark.read.format("eventhubs").option("connectionString", hub.connection)
    for null in ("", " NOT NULL"):
        rows = source.schema(f"sequenceNumber long{null}, body binary").load().collect()
        assert sorted((row[0], bytes(row[1])) for row in rows) == [(0, b"a"), (1, b"b")]


def test_properties_can_be_left_null(spark: SparkSession, hub: Hub) -> None:
    hub.send_events([Event(b"x", {"a": "b"})])
    options = {"includeProperties": "false", "includeSystemProperties": "false"}
    (row,) = read(spark, hub, **options).collect()
    assert (row.properties, row.systemProperties) == (None, None)
    assert bytes(row.body) == b"x"


def test_several_tasks_read_one_partition(spark: SparkSession, hub: Hub) -> None:
    hub.send(*numbered(100), partition="0")
    options = {"useExclusiveReceiver": "false", "minPartitions": "4"}
    frame = read(spark, hub, **options)
    assert frame.rdd.getNumPartitions() == 4
    assert bodies(frame) == numbered(100)


def test_an_invalid_option_fails_the_query(spark: SparkSession, hub: Hub) -> None:
    """One that is checked before the query starts, and one that the hub checks."""
    hub.send("x", partition="0")
    for options, reason in (
        ({"maxEventsPerTriger": "1"}, "did you mean maxEventsPerTrigger"),
        ({"consumerGroup": "nobody"}, "hub sensors has no such group"),
    ):
        with pytest.raises(Exception, match=reason) as failed:
            read(spark, hub, **options).collect()
        assert hub.connection not in str(failed.value)


def test_the_message_of_an_error_comes_first_and_without_a_traceback(
    spark: SparkSession, hub: Hub
) -> None:
    """In planning, and in a task."""
    planned = read(spark, hub, consumerGroup="missing")
    unnamed = spark.sql("SELECT cast(null AS string) AS body").write.format("eventhubs")
    sink = unnamed.mode("append").option("connectionString", hub.connection)
    for run, message in (
        (planned.collect, "OptionError: invalid consumerGroup 'missing'"),
        (sink.save, "OptionError: row 0 of the task has no body"),
    ):
        with pytest.raises(Exception, match=message) as failed:
            run()
        text = str(failed.value)
        assert "Traceback" not in text[: text.index(message)]


def test_an_unknown_column_is_refused(spark: SparkSession, hub: Hub) -> None:
    source = spark.read.format("eventhubs").option("connectionString", hub.connection)
    with pytest.raises(Exception, match="the source has no column 'temperature'"):
        source.schema("body binary, temperature double").load().collect()


def test_a_secret_is_neither_in_the_plan_nor_in_an_error(spark: SparkSession, hub: Hub) -> None:
    plan = read(spark, hub)._jdf.queryExecution().toString()
    assert "eventhubs" in plan.lower()
    assert secret_key(hub) not in plan
    wrong = hub.connection.replace(secret_key(hub), "d3Jvbmc=")
    with pytest.raises(Exception, match="signature") as failed:
        read(spark, hub, connectionString=wrong).collect()
    assert "d3Jvbmc=" not in str(failed.value)


@pytest.mark.needs(FILTERS)
def test_filters_reach_the_source(spark: SparkSession, hub: Hub) -> None:
    """With the setting of `session()`, and without it."""
    for partition in "01":
        hub.send(*numbered(50), partition=partition)
    chosen = "partition = '1' AND sequenceNumber >= 45 AND enqueuedTime > '2020-01-01'"
    for enabled in ("true", "false"):
        spark.conf.set("spark.sql.python.filterPushdown.enabled", enabled)
        try:
            frame = read(spark, hub, pushFilters="true", partitionsPerTask="1").where(chosen)
            assert bodies(frame) == numbered(50)[45:]
            assert frame.rdd.getNumPartitions() == (1 if enabled == "true" else 2)
        finally:
            spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")


def test_a_filter_of_one_query_is_not_in_force_in_the_next(spark: SparkSession, hub: Hub) -> None:
    """Spark keeps the ranges of a frame or view whose filter was pushed."""
    for partition in "01":
        hub.send(*numbered(10), partition=partition)
    frame = read(spark, hub)
    frame.createOrReplaceTempView("sensors_of_two_queries")
    first = frame.where("partition = '0'")
    assert (first.count(), frame.count(), first.union(frame).count()) == (10, 20, 30)
    view = "SELECT * FROM sensors_of_two_queries"
    assert spark.sql(f"{view} WHERE sequenceNumber > 7").count() == 4
    assert spark.sql(view).count() == 20


@pytest.mark.needs(FILTERS)
def test_several_hubs_are_read_and_a_filter_selects_hubs(spark: SparkSession, hub: Hub) -> None:
    hub.embedded.create_hub("doors", 2)
    Hub(hub.embedded, "doors").send(*numbered(3))
    hub.send(*numbered(5))
    both = {"connectionString": hub.embedded.connection_string(), "name": "doors,sensors"}
    frame = read(spark, hub, **both)
    assert frame.columns[-1] == "hub"
    assert sorted((row[0], row[1]) for row in frame.groupBy("hub").count().collect()) == [
        ("doors", 3), ("sensors", 5),
    ]  # fmt: skip
    hub.embedded.delete_hub("doors")  # not asked
    filtered = read(spark, hub, **both, pushFilters="true").where("hub = 'sensors'")
    assert filtered.count() == 5
