"""A Spark application for the tests: a tenant of a consumer group that copies a hub to another.

Its one argument is a file with its settings in JSON. The events of each partition are sent to the
partition of the same number, so that their order can be compared. A query that fails is restarted,
as a supervisor does. With the format `pausing` a test can pause it at a stage of a batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STARTS_MAX = 40


def copy(spark: Any, settings: dict[str, Any]) -> None:
    events = spark.readStream.format(settings["format"]).options(**settings["options"]).load()
    rows = events.selectExpr(
        "concat(partition, ':', sequenceNumber) as body", "partition as partitionId"
    )
    query = (
        rows.writeStream.format(settings["format"])
        .option("connectionString", settings["target"])
        .option("checkpointLocation", settings["checkpoint"])
        .queryName(settings["options"]["host"])
        .trigger(processingTime=settings["trigger"])
        .start()
    )
    query.awaitTermination()


def main(path: str) -> None:
    from pumphouse.spark import session

    settings = json.loads(Path(path).read_text())
    spark_settings = {
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
        # Half of what a JVM costs in its first minute is optimising code that runs for a minute.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.minBatchesToRetain": "10",
    }
    spark = session(settings["options"]["host"], settings["master"], spark_settings)
    if settings["format"] == "pausing":
        from tests.spark.tenancy.support.pausing_source import PausingSource

        spark.dataSource.register(PausingSource)
    for start in range(STARTS_MAX):
        try:
            copy(spark, settings)
            break
        except Exception as failed:
            print(f"start {start}: {str(failed)[:2000]}", file=sys.stderr, flush=True)  # noqa: T201
    else:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
