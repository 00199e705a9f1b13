"""Streaming queries on a local Spark that read a hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pumphouse.clock import MovableClock
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark import drop_repeats
from pumphouse.spark import lags as lags_of
from pumphouse.spark.driver.batch_size import FIRST_OF_A_RUN_THAT_ENDS
from pumphouse.spark.options import EVENTS_PER_PARTITION
from pumphouse.spark.versions.features import LAG, LIMITS
from tests.spark.conftest import Hub
from tests.spark.support.queries import FileSink, numbered, secret_key, stream
from tests.spark.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("queries"),
]

EARLIEST = {"startingPosition": "earliest"}


def test_a_stream_starts_at_the_newest_event(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    hub.send("old")
    sink = FileSink(stream(spark, hub), tmp_path)
    assert sink.drain() == []
    hub.send("new", "newer")
    assert sink.drain() == ["new", "newer"]
    hub.send("newest")
    assert sink.drain() == ["new", "newer", "newest"]


@pytest.mark.needs(LIMITS)
def test_a_run_that_ends_keeps_the_limit_per_trigger_and_writes_no_secret(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    for partition in "0123":
        hub.send(*numbered(50, f"{partition}-"), partition=partition)
    frame = stream(spark, hub, **EARLIEST, maxEventsPerTrigger="80")
    sink = FileSink(frame, tmp_path, availableNow=True)
    assert len(sink.end()) == 200
    sizes = [progress["numInputRows"] for progress in sink.query.recentProgress]
    assert [size for size in sizes if size] == [80, 80, 40]
    last = sink.query.recentProgress[-1]["sources"][0]
    assert json.loads(last["endOffset"])["sensors"] == dict.fromkeys("0123", 50)
    assert json.loads(last["latestOffset"])["sensors"] == dict.fromkeys("0123", 50)
    key = secret_key(hub)
    assert key not in json.dumps(sink.query.recentProgress, default=str)
    files = [path.read_bytes() for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    assert files
    assert not any(key.encode() in content for content in files)


def test_a_run_that_ends_reads_a_backlog_in_few_batches_by_default(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    count = (FIRST_OF_A_RUN_THAT_ENDS + 1) * EVENTS_PER_PARTITION
    hub.send(*["x"] * count, partition="0")
    frame = stream(spark, hub, **EARLIEST, partitions="0").select("body")
    sink = FileSink(frame, tmp_path, availableNow=True)
    assert len(sink.end()) == count
    sizes = [progress["numInputRows"] for progress in sink.query.recentProgress]
    assert len([size for size in sizes if size]) <= 2  # one in Spark 4.0 and 4.1


@pytest.mark.parametrize("driver", ["native", "azure"])
def test_a_restart_resumes_at_the_checkpoint(
    spark: SparkSession, hub: Hub, tmp_path: Path, driver: str
) -> None:
    hub.send("a", "b", partition="1")
    options = {**EARLIEST, "driver": driver}
    first = FileSink(stream(spark, hub, **options), tmp_path, availableNow=True)
    assert first.end() == ["a", "b"]
    hub.send("c", partition="1")
    hub.send("d", partition="2")
    second = FileSink(stream(spark, hub, **options), tmp_path, availableNow=True)
    assert second.end() == ["a", "b", "c", "d"]


@pytest.mark.needs(LIMITS)
def test_a_batch_that_was_journalled_and_not_committed_is_replayed(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """The replay reads the same events, and no later ones."""
    hub.send(*numbered(10), partition="0")
    options = {**EARLIEST, "maxEventsPerTrigger": "4"}
    FileSink(stream(spark, hub, **options), tmp_path, availableNow=True).end()
    for name in ("commits/2", "commits/.2.crc"):
        (tmp_path / "checkpoint" / name).unlink()
    hub.send("late", partition="0")
    second = FileSink(stream(spark, hub, **options), tmp_path, availableNow=True)
    written = second.end()
    progress = second.query.recentProgress
    ends = [json.loads(each["sources"][0]["endOffset"]) for each in progress]
    assert [end["sensors"]["0"] for end in ends][:1] == [10]
    assert sorted(set(written)) == [*numbered(10), "late"]


def test_a_new_partition_is_read(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    sink = FileSink(stream(spark, hub, partitionDiscoveryInterval="0s"), tmp_path)
    assert sink.drain() == []
    hub.embedded.grow_hub("sensors", 6)
    hub.send("new", partition="5")
    assert sink.drain() == ["new"]


@pytest.mark.needs(LAG)
def test_a_query_of_one_hub_goes_on_with_several(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    hub.send("first")
    sink = FileSink(stream(spark, hub, **EARLIEST).select("body"), tmp_path)
    assert sink.drain() == ["first"]
    sink.query.stop()
    hub.embedded.create_hub("doors", 2)
    Hub(hub.embedded, "doors").send("open")
    namespace = {
        "connectionString": hub.embedded.connection_string(),
        "namePattern": "sens.*|doors",
    }
    for trigger in ({"availableNow": True}, {}):
        frame = stream(spark, hub, **namespace).selectExpr(
            "cast(concat(hub, ' ', body) as binary) as body"
        )
        sink = FileSink(frame, tmp_path, **trigger)
        hub.send("second")
        if trigger:
            assert sink.query.awaitTermination(120)
    assert sink.drain() == ["doors open", "first", "sensors second", "sensors second"]
    until(lambda: lags_of_hubs(spark, sink) == {"doors": 0, "sensors": 0}, 60)


def lags_of_hubs(spark: SparkSession, sink: FileSink) -> dict[str, int]:
    return {lag.hub: lag.events for lag in lags_of(spark) if lag.query == sink.query.id}


def test_a_checkpoint_of_the_scala_connector_is_continued(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    """Its offsets have the form of version 0.1: {"hub": {"partition": next}}."""
    hub.send(*numbered(10), partition="0")
    FileSink(stream(spark, hub, **EARLIEST), tmp_path, availableNow=True).end()
    offsets = tmp_path / "checkpoint" / "offsets"
    journal = (offsets / "0").read_text().splitlines()
    assert json.loads(journal[-1])["sensors"] == {"0": 10, "1": 0, "2": 0, "3": 0}
    scala = '{"sensors":{"2":0,"1":0,"3":0,"0":4}}'
    (offsets / "0").write_text("\n".join([*journal[:-1], scala]))
    (offsets / ".0.crc").unlink()
    initial = tmp_path / "checkpoint" / "sources" / "0"
    initial.mkdir(parents=True)
    (initial / "0").write_text(f"v1\n{scala}")
    second = FileSink(stream(spark, hub, **EARLIEST), tmp_path, availableNow=True)
    assert second.end() == sorted([*numbered(10), *numbered(10)[4:]])


def test_a_hub_that_was_re_created_fails_the_query_unless_that_is_allowed(
    spark: SparkSession, hub: Hub, tmp_path: Path
) -> None:
    hub.send(*numbered(10), partition="0")
    FileSink(stream(spark, hub, **EARLIEST), tmp_path, availableNow=True).end()
    hub.embedded.delete_hub("sensors")
    hub.embedded.create_hub("sensors", 4)
    hub.send("new", partition="0")
    with pytest.raises(Exception, match="hub sensors was re-created"):
        FileSink(stream(spark, hub, **EARLIEST), tmp_path, availableNow=True).end()
    lenient = {**EARLIEST, "failOnDataLoss": "false"}
    written = FileSink(stream(spark, hub, **lenient), tmp_path, availableNow=True).end()
    assert written == [*numbered(10), "new"]


def test_dropping_duplicates_keeps_the_events_of_a_partition_that_lags_by_hours(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Duplicates are looked for among the events read lately, whatever their own time."""
    clock = MovableClock()
    clock.advance(-7200)  # first back: in a hub that is ahead, our tokens would have expired
    with EmbeddedHub({"sensors": 2}, clock=clock) as embedded:
        hub = Hub(embedded, "sensors")
        hub.send(*numbered(9, "old-"), partition="0")
        clock.advance(7200)
        hub.send(*numbered(9, "new-"), partition="1")
        frame = stream(spark, hub, **EARLIEST, maxEventsPerPartition="3")
        rows = drop_repeats(frame, within="1 hour").select("body")
        written = FileSink(rows, tmp_path, availableNow=True).end()
    assert written == [*numbered(9, "new-"), *numbered(9, "old-")]
