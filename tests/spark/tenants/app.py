"""A Spark application for the judges: a tenant of a group that copies a hub to another.

Its job is JSON in a file, named by its one argument. Each source partition goes to the partition of
the same number, so that the order of one can be seen in the other. A query that fails is started
again, as a supervisor would. With the format `held` a judge can stop it at a stage of a batch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

STARTS_MAX = 40


def copy(spark: Any, job: dict[str, Any]) -> None:
    events = spark.readStream.format(job["format"]).options(**job["options"]).load()
    rows = events.selectExpr(
        "concat(partition, ':', sequenceNumber) as body", "partition as partitionId"
    )
    query = (
        rows.writeStream.format(job["format"])
        .option("connectionString", job["target"])
        .option("dedupProperties", "true")
        .option("checkpointLocation", job["checkpoint"])
        .queryName(job["options"]["host"])
        .trigger(processingTime=job["trigger"])
        .start()
    )
    query.awaitTermination()


def main(place: str) -> None:
    from pumphouse.spark import session

    job = json.loads(Path(place).read_text())
    quiet = {
        "spark.log.level": "ERROR",
        "spark.driver.memory": "512m",
        # Half of what a JVM costs in its first minute is optimising code that runs for a minute.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.streaming.minBatchesToRetain": "10",
    }
    spark = session(job["options"]["host"], job["master"], quiet)
    if job["format"] == "held":
        from tests.spark.tenants.held import Held

        spark.dataSource.register(Held)
    for start in range(STARTS_MAX):
        try:
            copy(spark, job)
            break
        except Exception as failed:
            print(f"start {start}: {str(failed)[:2000]}", file=sys.stderr, flush=True)  # noqa: T201
    else:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1])
