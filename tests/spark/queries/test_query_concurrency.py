"""Queries whose tasks read one partition at the same time."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from benchmarks._spark_start import start_query
from tests.spark.conftest import Hub
from tests.spark.support.queries import FileSink, numbered, stream
from tests.spark.support.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("queries"),
]

EARLIEST = {"startingPosition": "earliest"}
EVENTS = numbered(1000)
LARGE = "x" * 2000  # reading takes longer than the start of a task


@pytest.fixture
def filled(hub: Hub) -> Hub:
    for partition in "01":
        hub.send(*(f"{partition}{name}{LARGE}" for name in EVENTS), partition=partition)
    return hub


def keys(sink: FileSink) -> Counter[str]:
    return Counter(body[:5] for body in sink.end())


def each(times: int) -> Counter[str]:
    return Counter({f"{partition}{name}": times for partition in "01" for name in EVENTS})


@pytest.mark.parametrize("loads", [1, 2])
def test_a_union_with_itself_returns_every_event_twice(
    spark: SparkSession, filled: Hub, tmp_path: Path, loads: int
) -> None:
    first = stream(spark, filled, **EARLIEST)
    second = first if loads == 1 else stream(spark, filled, **EARLIEST)
    sink = FileSink(first.select("body").union(second.select("body")), tmp_path, availableNow=True)
    assert keys(sink) == each(2)


def test_a_join_with_itself_returns_every_event(
    spark: SparkSession, filled: Hub, tmp_path: Path
) -> None:
    events = stream(spark, filled, **EARLIEST).selectExpr("partition p", "sequenceNumber n", "body")
    joined = events.join(events.selectExpr("p", "n"), ["p", "n"]).select("body")
    assert keys(FileSink(joined, tmp_path, availableNow=True)) == each(1)


def test_actions_of_foreach_batch_may_run_at_the_same_time(
    spark: SparkSession, filled: Hub, tmp_path: Path
) -> None:
    counts: list[int] = []

    def count_twice(frame: DataFrame, _batch: int) -> None:
        with ThreadPoolExecutor(2) as threads:
            counts.extend(threads.map(lambda _: frame.count(), range(2)))
        assert frame.limit(3).count() == 3  # its tasks end early
        counts.append(frame.count())

    writer = stream(spark, filled, **EARLIEST).writeStream.foreachBatch(count_twice)
    writer = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert start_query(writer.start).awaitTermination(120)
    assert counts == [2 * len(EVENTS)] * 3


@pytest.mark.parametrize("feedback", ["true", "false"])
def test_of_two_queries_in_a_group_the_newer_one_reads_and_the_older_one_fails(
    spark: SparkSession, hub: Hub, tmp_path: Path, feedback: str
) -> None:
    options = {**EARLIEST, "taskFeedback": feedback}
    older = FileSink(stream(spark, hub, **options), tmp_path / "older")
    hub.send("first", partition="0")
    assert older.drain() == ["first"]
    newer = FileSink(stream(spark, hub, **options), tmp_path / "newer")
    assert newer.drain() == ["first"]
    sent = 0

    def has_failed() -> bool:
        nonlocal sent
        sent += 1
        hub.send(f"event {sent:04d}", partition="0")
        return not older.query.isActive

    until(has_failed, 60, every_s=0.3)
    with pytest.raises(StreamingQueryException, match="has another reader with a higher") as failed:
        older.query.awaitTermination(10)
    assert f"the query with id {newer.query.id}" in str(failed.value)
    assert len(newer.drain()) == sent + 1
