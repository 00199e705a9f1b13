"""A job for the tests: reads a hub to its end, and writes down what it was told meanwhile.

    tell_lag.py MASTER IN CHECKPOINT STORE TOLD

MASTER is a master of Spark, `connect` for Spark Connect, or `submit` for what spark-submit says.
TOLD becomes JSON: the lag after every batch, what the tasks reported into the progress, and the
folder of the interpreter that the tasks ran in.
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
    """To the end; the newest offsets of every progress, with what tasks said of theirs."""
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
    told = [one["sources"][0]["latestOffset"] for one in map(as_dict, query.recentProgress)]
    return [json.loads(one) if isinstance(one, str) else one for one in told]


def as_dict(progress: Any) -> dict[str, Any]:
    found: dict[str, Any] = progress if isinstance(progress, dict) else json.loads(progress.json)
    return found


def prefix_of_tasks(spark: SparkSession) -> str:
    def ask(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"prefix": [sys.prefix]})

    found = spark.range(0, 1, numPartitions=1).mapInArrow(ask, "prefix string").collect()
    return str(found[0].prefix)


def main(master: str, connection: str, checkpoint: str, store: str, told: str) -> None:
    spark = open_session(master)
    lags: list[Any] = []
    listener = EventHubsLagListener(lags.append, store=store, connection=connection)
    spark.streams.addListener(listener)
    marks = read(spark, connection, checkpoint)
    deadline = time.monotonic() + WAIT_S
    while (not lags or lags[-1].events) and time.monotonic() < deadline:
        time.sleep(0.1)
    prefix = prefix_of_tasks(spark)
    spark.streams.removeListener(listener)
    found = [{"batch": lag.batch, "events": lag.events, "seconds": lag.seconds} for lag in lags]
    Path(told).write_text(json.dumps({"lags": found, "progress": marks, "prefix": prefix}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
