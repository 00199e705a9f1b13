"""A job for the tests: copies a hub to another in small batches, until it is stopped.

    copy_events.py MASTER IN OUT CHECKPOINT [availableNow]

MASTER is a master of Spark, `connect` for Spark Connect, or `submit` for the one of spark-submit.
A query that fails is restarted, as a supervisor does.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STARTS_MAX = 12  # Spark has a daemon for each kind of Python work; each kill costs a start


def open_session(master: str) -> SparkSession:
    if master == "connect":
        from pyspark.sql import SparkSession

        return SparkSession.builder.remote("local[2]").getOrCreate()
    from pumphouse.spark import session

    settings = {"spark.log.level": "ERROR", "spark.task.maxFailures": "8"}
    return session("copy", None if master == "submit" else master, settings)


def copy(spark: SparkSession, source: str, target: str, checkpoint: str, ends: bool) -> None:
    events = (
        spark.readStream.format("eventhubs")
        .option("connectionString", source)
        .option("startingPosition", "earliest")
        .option("maxEventsPerTrigger", "400")
        .load()
    )
    query = (
        events.select("body")
        .writeStream.format("eventhubs")
        .option("connectionString", target)
        .option("checkpointLocation", checkpoint)
        .trigger(**({"availableNow": True} if ends else {"processingTime": "100 milliseconds"}))
        .start()
    )
    query.awaitTermination()


def main(master: str, source: str, target: str, checkpoint: str, trigger: str = "") -> None:
    spark = open_session(master)
    for start in range(STARTS_MAX):
        try:
            copy(spark, source, target, checkpoint, trigger == "availableNow")
            break
        except Exception as failed:
            print(f"start {start}: {type(failed).__name__} {str(failed)[:500]}", file=sys.stderr)  # noqa: T201
    else:
        sys.exit(1)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
