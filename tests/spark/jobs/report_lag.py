"""A job for the tests: reads a hub to its end, and writes what it measured to a file.

    report_lag.py MASTER IN CHECKPOINT STORE REPORT

MASTER is a master of Spark, `connect` for Spark Connect, or `submit` for the one of spark-submit.
REPORT becomes JSON: the lag after every batch, the positions that tasks reported, and the folder of
the interpreter of the tasks.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pumphouse.spark import EventHubsLagListener, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 300.0


def open_session(master: str) -> SparkSession:
    if master == "connect":
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote("local[2]").getOrCreate()
    return session("lag", None if master == "submit" else master, {"spark.log.level": "ERROR"})


def read(spark: SparkSession, connection: str, checkpoint: str) -> list[Any]:
    """Read to the end; the newest offsets of every progress, with the reported positions."""
    events = (
        spark.readStream.format("eventhubs")
        .option("connectionString", connection)
        .option("startingPosition", "earliest")
        .option("maxEventsPerTrigger", "400")
        .load()
    )
    writer = events.writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    progress = map(as_dict, query.recentProgress)
    latest = [each["sources"][0]["latestOffset"] for each in progress]
    return [json.loads(offset) if isinstance(offset, str) else offset for offset in latest]


def as_dict(progress: Any) -> dict[str, Any]:
    fields: dict[str, Any] = progress if isinstance(progress, dict) else json.loads(progress.json)
    return fields


def prefix_of_tasks(spark: SparkSession) -> str:
    def read_prefix(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"prefix": [sys.prefix]})

    rows = spark.range(0, 1, numPartitions=1).mapInArrow(read_prefix, "prefix string").collect()
    return str(rows[0].prefix)


def main(master: str, connection: str, checkpoint: str, store: str, report: str) -> None:
    spark = open_session(master)
    lags: list[Any] = []
    listener = EventHubsLagListener(lags.append, store=store, connection=connection)
    spark.streams.addListener(listener)
    progress = read(spark, connection, checkpoint)
    deadline = time.monotonic() + WAIT_S
    while (not lags or lags[-1].events) and time.monotonic() < deadline:
        time.sleep(0.1)
    prefix = prefix_of_tasks(spark)
    spark.streams.removeListener(listener)
    measured = [{"batch": lag.batch, "events": lag.events, "seconds": lag.seconds} for lag in lags]
    Path(report).write_text(json.dumps({"lags": measured, "progress": progress, "prefix": prefix}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
