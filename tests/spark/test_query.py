"""Whole queries on a local Spark: what comes out of a hub, and what goes in."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pumphouse.clock import MovableClock
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark import drop_repeats

from .conftest import Hub

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

ENDED_S = 120

# Both must say the same of the same events.
both_drivers = pytest.mark.parametrize("driver", ["native", "azure"])


def read(spark: SparkSession, hub: Hub, **options: str) -> DataFrame:
    given = {"connectionString": hub.connection} | options
    return spark.read.format("eventhubs").options(**given).load()


def stream(spark: SparkSession, hub: Hub, **options: str) -> DataFrame:
    given = {"connectionString": hub.connection} | options
    return spark.readStream.format("eventhubs").options(**given).load()


def bodies(frame: DataFrame) -> list[str]:
    return sorted(row[0] for row in frame.selectExpr("cast(body as string)").collect())


def names(count: int) -> list[str]:
    return [f"{number:04d}" for number in range(count)]


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[None]:
    """No query outlives its test."""
    yield
    for query in spark.streams.active:
        query.stop()


class Sunk:
    """A stream into files, and what has come of it."""

    def __init__(self, frame: DataFrame, folder: Path, **trigger: Any) -> None:
        self.spark, self.folder = frame.sparkSession, folder
        writer = frame.writeStream.format("parquet").option("path", str(folder / "rows"))
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        chosen = trigger or {"processingTime": "0 seconds"}
        self.query: StreamingQuery = writer.trigger(**chosen).start()

    def bodies(self) -> list[str]:
        rows = self.spark.read.schema("body binary").parquet(str(self.folder / "rows"))
        return bodies(rows)

    def drain(self) -> list[str]:
        self.query.processAllAvailable()
        return self.bodies()

    def end(self) -> list[str]:
        assert self.query.awaitTermination(ENDED_S)
        return self.bodies()


# -- batches --------------------------------------------------------------------------------------


@both_drivers
def test_every_column(spark: SparkSession, hub: Hub, driver: str) -> None:
    hub.put([Event(b"\x00\xff", {"unit": "C", "reading": 21}, partition_key="home-7")])
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


@both_drivers
@pytest.mark.parametrize("per_task", ["1", "3"])
def test_a_batch_reads_everything_once(
    spark: SparkSession, hub: Hub, driver: str, per_task: str
) -> None:
    for partition in "0123":
        hub.send(*(f"{partition}-{name}" for name in names(500)), partition=partition)
    found = read(spark, hub, arrowBatchRows="64", driver=driver, partitionsPerTask=per_task)
    assert bodies(found) == sorted(f"{p}-{name}" for p in "0123" for name in names(500))
    assert found.select("partition", "sequenceNumber").distinct().count() == 2000


def test_a_batch_from_here_to_there(spark: SparkSession, hub: Hub) -> None:
    hub.send(*names(10), partition="0")
    hub.send(*names(10), partition="1")
    ends = json.dumps({"1": {"seqNo": 9}})
    options = {"startingPosition": "seq:7", "endingPositions": ends, "partitions": "0,1"}
    found = read(spark, hub, **options).select("partition", "sequenceNumber").collect()
    assert sorted((row[0], row[1]) for row in found) == [
        ("0", 7), ("0", 8), ("0", 9), ("1", 7), ("1", 8),
    ]  # fmt: skip


def test_an_empty_hub(spark: SparkSession, hub: Hub) -> None:
    assert read(spark, hub).count() == 0


def test_by_the_name_that_the_scala_connector_does_not_have(spark: SparkSession, hub: Hub) -> None:
    hub.send("a")
    source = spark.read.format("azure_eventhubs").option("connectionString", hub.connection)
    assert bodies(source.load()) == ["a"]


@pytest.mark.parametrize("null", ["", " NOT NULL"])
def test_part_of_the_columns(spark: SparkSession, hub: Hub, null: str) -> None:
    hub.send("a", "b", partition="0")
    source = spark.read.format("eventhubs").option("connectionString", hub.connection)
    found = source.schema(f"sequenceNumber long{null}, body binary").load()
    assert [(row[0], bytes(row[1])) for row in found.orderBy("sequenceNumber").collect()] == [
        (0, b"a"),
        (1, b"b"),
    ]


def test_columns_that_are_left_null(spark: SparkSession, hub: Hub) -> None:
    hub.put([Event(b"x", {"a": "b"})])
    options = {"includeProperties": "false", "includeSystemProperties": "false"}
    (row,) = read(spark, hub, **options).collect()
    assert (row.properties, row.systemProperties) == (None, None)
    assert bytes(row.body) == b"x"


def test_several_partitions_in_a_task(spark: SparkSession, hub: Hub) -> None:
    for partition in "0123":
        hub.send(*names(100), partition=partition)
    found = read(spark, hub, partitionsPerTask="4")
    assert found.rdd.getNumPartitions() == 1
    assert found.select("partition", "sequenceNumber").distinct().count() == 400


def test_several_tasks_for_a_partition(spark: SparkSession, hub: Hub) -> None:
    hub.send(*names(100), partition="0")
    options = {"useExclusiveReceiver": "false", "minPartitions": "4"}
    found = read(spark, hub, **options)
    assert found.rdd.getNumPartitions() == 4
    assert bodies(found) == names(100)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"maxEventsPerTriger": "1"}, "did you mean maxEventsPerTrigger"),  # before it starts
        ({"consumerGroup": "nobody"}, "hub sensors has no such group"),  # asked of the hub
    ],
)
def test_mistakes(spark: SparkSession, hub: Hub, options: dict[str, str], why: str) -> None:
    hub.send("x", partition="0")
    with pytest.raises(Exception, match=why) as failed:
        read(spark, hub, **options).collect()
    assert hub.connection not in str(failed.value)


# -- streams --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("queries")
def test_a_stream_from_now_on(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.send("old")
    sunk = Sunk(stream(spark, hub), tmp_path)
    assert sunk.drain() == []
    hub.send("new", "newer")
    assert sunk.drain() == ["new", "newer"]
    hub.send("newest")
    assert sunk.drain() == ["new", "newer", "newest"]


@pytest.mark.usefixtures("queries")
def test_a_limit_per_trigger_and_a_run_that_ends(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    for partition in "0123":
        hub.send(*(f"{partition}-{name}" for name in names(50)), partition=partition)
    options = {"startingPosition": "earliest", "maxEventsPerTrigger": "80"}
    sunk = Sunk(stream(spark, hub, **options), tmp_path, availableNow=True)
    assert len(sunk.end()) == 200
    sizes = [progress["numInputRows"] for progress in sunk.query.recentProgress]
    assert [size for size in sizes if size] == [80, 80, 40]
    last = sunk.query.recentProgress[-1]["sources"][0]
    assert json.loads(last["endOffset"]) == {"sensors": {one: 50 for one in "0123"}}
    assert json.loads(last["latestOffset"])["sensors"] == {one: 50 for one in "0123"}
    key = hub.connection.split("SharedAccessKey=")[1].split(";")[0]
    assert key not in json.dumps(sunk.query.recentProgress, default=str)
    kept = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert kept
    assert not any(key.encode() in written for written in kept)


def test_columns_that_there_are_not(spark: SparkSession, hub: Hub) -> None:
    source = spark.read.format("eventhubs").option("connectionString", hub.connection)
    with pytest.raises(Exception, match="the source has no column 'temperature'"):
        source.schema("body binary, temperature double").load().collect()


def test_no_secret_is_told(spark: SparkSession, hub: Hub) -> None:
    """Neither by a plan nor by an error."""
    key = hub.connection.split("SharedAccessKey=")[1].split(";")[0]
    found = read(spark, hub)
    plan = found._jdf.queryExecution().toString()
    assert "eventhubs" in plan.lower()
    assert key not in plan
    wrong = hub.connection.replace(key, "d3Jvbmc=")
    with pytest.raises(Exception, match="signature") as failed:
        read(spark, hub, connectionString=wrong).collect()
    assert "d3Jvbmc=" not in str(failed.value)


@both_drivers
@pytest.mark.usefixtures("queries")
def test_a_restart_goes_on_where_it_was(
    spark: SparkSession, hub: Hub, tmp_path: Path, driver: str
) -> None:
    hub.send("a", "b", partition="1")
    options = {"startingPosition": "earliest", "driver": driver}
    first = Sunk(stream(spark, hub, **options), tmp_path, availableNow=True)
    assert first.end() == ["a", "b"]
    hub.send("c", partition="1")
    hub.send("d", partition="2")
    second = Sunk(stream(spark, hub, **options), tmp_path, availableNow=True)
    assert second.end() == ["a", "b", "c", "d"]


@pytest.mark.usefixtures("queries")
def test_a_batch_that_was_planned_and_not_read_is_read_after_a_crash(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """Spark has journalled the batch and died: the same events come, and no others with them."""
    hub.send(*names(10), partition="0")
    options = {"startingPosition": "earliest", "maxEventsPerTrigger": "4"}
    Sunk(stream(spark, hub, **options), tmp_path, availableNow=True).end()
    for kept in ("commits/2", "commits/.2.crc"):
        (tmp_path / "checkpoint" / kept).unlink()
    hub.send("late", partition="0")
    again = Sunk(stream(spark, hub, **options), tmp_path, availableNow=True)
    again.end()
    ends = [json.loads(one["sources"][0]["endOffset"]) for one in again.query.recentProgress]
    assert [end["sensors"]["0"] for end in ends][:1] == [10]
    rows = spark.read.schema("body binary").parquet(str(tmp_path / "rows"))
    assert sorted(set(bodies(rows))) == [*names(10), "late"]


@pytest.mark.usefixtures("queries")
def test_new_partitions_are_noticed(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    sunk = Sunk(stream(spark, hub, partitionDiscoveryInterval="0s"), tmp_path)
    assert sunk.drain() == []
    event_hub.grow_hub("sensors", 6)
    hub.send("there", partition="5")
    assert sunk.drain() == ["there"]


@pytest.mark.usefixtures("queries")
def test_a_checkpoint_of_the_scala_connector_goes_on(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """Its offsets have the same form: {"hub": {"partition": next}}; here is one of its making."""
    hub.send(*names(10), partition="0")
    first = Sunk(stream(spark, hub, startingPosition="earliest"), tmp_path, availableNow=True)
    first.end()
    offsets = tmp_path / "checkpoint" / "offsets"
    journal = (offsets / "0").read_text().splitlines()
    assert json.loads(journal[-1]) == {"sensors": {"0": 10, "1": 0, "2": 0, "3": 0}}
    theirs = '{"sensors":{"2":0,"1":0,"3":0,"0":4}}'
    (offsets / "0").write_text("\n".join([*journal[:-1], theirs]))
    (offsets / ".0.crc").unlink()
    initial = tmp_path / "checkpoint" / "sources" / "0"
    initial.mkdir(parents=True)
    (initial / "0").write_text(f"v1\n{theirs}")
    second = Sunk(stream(spark, hub, startingPosition="earliest"), tmp_path, availableNow=True)
    assert second.end() == sorted([*names(10), *names(10)[4:]])


@pytest.mark.usefixtures("queries")
def test_a_hub_that_was_created_anew(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    hub.send(*names(10), partition="0")
    options = {"startingPosition": "earliest"}
    Sunk(stream(spark, hub, **options), tmp_path, availableNow=True).end()
    event_hub.delete_hub("sensors")
    event_hub.create_hub("sensors", 4)
    hub.send("fresh", partition="0")
    with pytest.raises(Exception, match="the hub was re-created"):
        Sunk(stream(spark, hub, **options), tmp_path, availableNow=True).end()
    lenient = options | {"failOnDataLoss": "false"}
    found = Sunk(stream(spark, hub, **lenient), tmp_path, availableNow=True).end()
    assert found == [*names(10), "fresh"]


# -- writing --------------------------------------------------------------------------------------


def rows(spark: SparkSession, count: int = 20) -> DataFrame:
    return spark.range(0, count, numPartitions=2).selectExpr(
        "cast(id as string) as body",
        "concat('home-', id % 3) as partitionKey",
        "map('n', cast(id as string)) as properties",
    )


def write(frame: DataFrame, hub: Hub, **options: str) -> None:
    given = {"connectionString": hub.connection} | options
    frame.write.format("eventhubs").mode("append").options(**given).save()


@both_drivers
def test_rows_become_events(spark: SparkSession, hub: Hub, driver: str) -> None:
    write(rows(spark), hub, driver=driver, maxBatchBytes="1k", maxInFlight="2")
    found = read(spark, hub).collect()
    assert sorted(int(row.body) for row in found) == list(range(20))
    for row in found:
        assert row.properties == {"n": bytes(row.body).decode()}
        assert row.partitionKey == f"home-{int(row.body) % 3}"
    by_key = {row.partitionKey: row.partition for row in found}
    assert all(by_key[row.partitionKey] == row.partition for row in found)


def test_rows_to_a_partition(spark: SparkSession, hub: Hub) -> None:
    write(rows(spark).selectExpr("body", "cast(body % 2 as int) || '' as partition"), hub)
    found = read(spark, hub).collect()
    assert {(int(row.body) % 2, row.partition) for row in found} == {(0, "0"), (1, "1")}
    write(rows(spark, 3).select("body"), hub, partitionId="3")
    assert read(spark, hub, partitions="3").count() == 3


@pytest.mark.parametrize(
    ("select", "options", "why"),
    [
        (["partitionKey"], {}, "a row needs a column body"),  # before it starts
        (["cast(null as string) as body"], {}, "row 0 of the task has no body"),  # by a task
        (["body"], {"consumerGroup": "g"}, "consumerGroup is for reading"),
    ],
)
def test_what_cannot_be_written(
    spark: SparkSession, hub: Hub, select: list[str], options: dict[str, str], why: str
) -> None:
    with pytest.raises(Exception, match=why):
        write(rows(spark, 2).selectExpr(*select), hub, **options)


@pytest.mark.usefixtures("queries")
@pytest.mark.parametrize(
    ("column", "target", "why"),
    [("text", "sensors", "a row needs a column body"), ("body", "nowhere", "nowhere")],
)
def test_a_stream_is_checked_before_there_are_rows(
    spark: SparkSession, hub: Hub, tmp_path: Path, column: str, target: str, why: str
) -> None:
    writer = stream(spark, hub).selectExpr(f"body as {column}").writeStream.format("eventhubs")
    given = {"connectionString": hub.connection, "checkpointLocation": str(tmp_path)}
    with pytest.raises(Exception, match=why):
        writer.options(**given, name=target).start().processAllAvailable()


def test_rows_of_two_jobs_are_never_taken_for_the_same(spark: SparkSession, hub: Hub) -> None:
    for _ in range(2):
        write(rows(spark, 4).select("body"), hub, dedupProperties="true")
    found = read(spark, hub).select("properties").collect()
    assert len({tuple(sorted(row[0].items())) for row in found}) == 8


def test_a_busy_hub_is_waited_for(spark: SparkSession, hub: Hub, event_hub: EmbeddedHub) -> None:
    event_hub.faults.throttle(hub="sensors", times=3)
    write(rows(spark), hub, **{"retry.backoff": "10ms"})
    assert sorted(int(row.body) for row in read(spark, hub).collect()) == list(range(20))


def test_who_does_not_want_to_wait_is_told(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub
) -> None:
    event_hub.faults.throttle(hub="sensors", times=100)
    with pytest.raises(Exception, match="server-busy"):
        write(rows(spark), hub, onThrottle="fail")


def test_no_faster_than_allowed(spark: SparkSession, hub: Hub) -> None:
    since = time.monotonic()
    write(rows(spark, 40).coalesce(1), hub, maxSendRate="20")
    assert time.monotonic() - since >= 1.9
    assert read(spark, hub).count() == 40


def test_a_hub_is_not_overwritten(spark: SparkSession, hub: Hub) -> None:
    writer = rows(spark).write.format("eventhubs").mode("overwrite")
    with pytest.raises(Exception, match="cannot be overwritten"):
        writer.option("connectionString", hub.connection).save()


@pytest.mark.usefixtures("queries")
def test_from_hub_to_hub(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub, tmp_path: Path
) -> None:
    event_hub.create_hub("activity", 2)
    out = Hub(event_hub, "activity")
    hub.send(*names(300), key="k")
    copied = stream(spark, hub, startingPosition="earliest").select("body", "partitionKey")
    writer = copied.writeStream.format("eventhubs").trigger(availableNow=True)
    query = writer.options(
        connectionString=out.connection, dedupProperties="true", checkpointLocation=str(tmp_path)
    ).start()
    assert query.awaitTermination(ENDED_S)
    found = read(spark, out).collect()
    assert sorted(bytes(row.body).decode() for row in found) == names(300)
    marks = {tuple(sorted(row.properties.items())) for row in found}
    assert len(marks) == 300  # every row can be told from every other
    assert {row.properties["spark-query-id"] for row in found} == {str(query.id)}


@pytest.mark.usefixtures("queries")
@pytest.mark.parametrize("per_task", ["1", "4"])
def test_a_batch_that_is_written_again_is_read_once(
    spark: SparkSession, hub: Hub, event_hub: EmbeddedHub, tmp_path: Path, per_task: str
) -> None:
    """The writer died after it had sent everything: it sends all of it again."""
    event_hub.create_hub("activity", 2)
    out = Hub(event_hub, "activity")
    for partition in "0123":
        hub.send(*(f"{partition}-{name}" for name in names(50)), partition=partition)
    wanted = sorted(f"{one}-{name}" for one in "0123" for name in names(50))
    out.send("foreign", "foreign", partition="0")  # says nothing of itself, and is no repeat
    for _ in range(2):
        options = {"startingPosition": "earliest", "partitionsPerTask": per_task}
        copied = stream(spark, hub, **options, arrowBatchRows="7").select("body")
        writer = copied.writeStream.format("eventhubs").trigger(availableNow=True)
        query = writer.options(
            connectionString=out.connection,
            dedupProperties="true",
            checkpointLocation=str(tmp_path / "copy"),
        ).start()
        assert query.awaitTermination(ENDED_S)
        for kept in ("commits/0", "commits/.0.crc"):
            (tmp_path / "copy" / kept).unlink()
    assert read(spark, out).count() == 2 * len(wanted) + 2
    assert bodies(drop_repeats(read(spark, out))) == [*wanted, "foreign", "foreign"]
    seen = drop_repeats(stream(spark, out, startingPosition="earliest"))
    sunk = Sunk(seen.select("body"), tmp_path / "seen", availableNow=True)
    assert sunk.end() == [*wanted, "foreign", "foreign"]


@pytest.mark.usefixtures("queries")
def test_a_partition_that_lies_hours_behind_loses_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Repeats are looked for among what was read lately, not among what is young."""
    clock = MovableClock()
    clock.advance(-7200)  # back first: a hub that is ahead of us would find our tokens run out
    with EmbeddedHub({"sensors": 2}, clock=clock) as house:
        hub = Hub(house, "sensors")
        hub.send(*(f"old-{name}" for name in names(9)), partition="0")
        clock.advance(7200)
        hub.send(*(f"new-{name}" for name in names(9)), partition="1")
        options = {"startingPosition": "earliest", "maxEventsPerPartition": "3"}
        rows = drop_repeats(stream(spark, hub, **options), within="1 hour").select("body")
        found = Sunk(rows, tmp_path, availableNow=True).end()
    assert found == [f"{age}-{name}" for age in ("new", "old") for name in names(9)]
