"""Metrics of streaming queries: from progress reports, and on a running Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks._spark_start import start_query
from pumphouse.spark import lags
from pumphouse.spark.lag.known_positions import Lag, PartitionLag
from pumphouse.spark.lag.metrics import QueryMetrics, state_rows, watermark_delay_s
from pumphouse.spark.session import add_listener
from pumphouse.spark.versions.features import LAG
from pumphouse.telemetry.definitions import (
    SPARK_INPUT_ROWS,
    SPARK_LAG_EVENTS,
    SPARK_LAG_SECONDS,
    SPARK_STATE_ROWS,
    SPARK_WATERMARK_DELAY,
)
from tests.spark.conftest import Hub
from tests.spark.support.queries import stream
from tests.spark.support.waiting import until
from tests.telemetry.page import recording, scrape

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.needs(LAG), pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

PROGRESS: dict[str, Any] = {
    "id": "q-1",
    "name": "doors",
    "timestamp": "2026-11-18T12:00:10.500Z",
    "batchId": 3,
    "numInputRows": 7,
    "durationMs": {"addBatch": 250, "triggerExecution": 400},
    "eventTime": {"watermark": "2026-11-18T12:00:00.000Z"},
    "stateOperators": [{"operatorName": "dedupe", "numRowsTotal": 12}],
}


@pytest.fixture(autouse=True)
def _metrics() -> Iterator[None]:
    with recording():
        yield


def test_values_of_a_progress() -> None:
    metrics = QueryMetrics()
    metrics.record(PROGRESS)
    metrics.record(PROGRESS)
    query = {"query": "doors"}
    assert list(metrics.observe(SPARK_INPUT_ROWS)) == [(14, query)]
    assert list(metrics.observe(SPARK_WATERMARK_DELAY)) == [(10.5, query)]
    assert list(metrics.observe(SPARK_STATE_ROWS)) == [(12, {**query, "operator": "0-dedupe"})]
    seconds = scrape("pumphouse_spark_batch_seconds_sum", query="doors")
    assert sorted(seconds.values()) == [0.5, 0.8]
    metrics.forget("q-1")
    assert not scrape("pumphouse_spark_", query="doors")


def test_values_of_a_lag() -> None:
    metrics = QueryMetrics()
    partitions = (PartitionLag("0", 5, 1.5), PartitionLag("1", 2, None))
    metrics.record_lag(Lag("q-1", None, 3, "sensors", partitions))
    labels = {"query": "q-1", "eventhub": "sensors"}
    assert list(metrics.observe(SPARK_LAG_EVENTS)) == [
        (5, {**labels, "partition": "0"}),
        (2, {**labels, "partition": "1"}),
    ]
    assert list(metrics.observe(SPARK_LAG_SECONDS)) == [(1.5, {**labels, "partition": "0"})]
    metrics.forget("q-1")
    assert list(metrics.observe(SPARK_LAG_EVENTS)) == []


@pytest.mark.parametrize(
    "progress",
    [
        {},
        {"timestamp": "2026-11-18T12:00:10.500Z"},
        {"timestamp": "2026-11-18T12:00:10.500Z", "eventTime": {}},
        {
            "timestamp": "2026-11-18T12:00:10.500Z",
            "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        },
    ],
)
def test_a_query_without_a_watermark_or_state(progress: dict[str, Any]) -> None:
    assert watermark_delay_s(progress) is None
    assert state_rows(progress) == {}


@pytest.mark.usefixtures("queries")
def test_a_running_query(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    add_listener(spark)  # session() has added it; a second one would count the rows twice
    hub.send("a", "b", "c", partition="0")
    frame = stream(spark, hub, startingPosition="earliest")
    writer = frame.writeStream.format("noop").queryName("doors-metrics")
    query = start_query(writer.option("checkpointLocation", str(tmp_path)).start)
    labels = {"query": "doors-metrics"}
    until(lambda: list(scrape("pumphouse_spark_input_rows_total", **labels).values()) == [3])
    lag = scrape("pumphouse_spark_lag_events", partition="0", **labels)
    assert list(lag.values()) == [0]
    (measured,) = [each for each in lags(spark) if each.name == "doors-metrics"]
    assert measured.events == 0
    assert measured.description.startswith("eventhubs[hub=sensors, group=$default, namespace=")
    # Spark's own description: the day this fails, the source can name itself.
    progress = query.lastProgress
    assert progress is not None
    assert "PythonMicroBatchStream" in progress["sources"][0]["description"]
    # The durations of a batch are recorded after its rows.
    until(lambda: scrape("pumphouse_spark_batch_seconds_count", phase="addBatch", **labels) != {})
    query.stop()
    until(lambda: not scrape("pumphouse_spark_input_rows_total", **labels))
