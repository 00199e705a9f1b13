"""Runs a Spark that writes the classes it has loaded into an archive, for later Sparks.

    python scripts/spark_archive.py ARCHIVE

A JVM that maps the archive neither parses nor verifies these classes: starting Spark and running
its first queries takes about half of the CPU time. The queries here are those of most tests: batch
and stream, source and sink, shuffle, state, Parquet, and the pipeline of the homes.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pumphouse.hub.embedded import EmbeddedHub

LOG_OFF = "-Xlog:cds=off -Xlog:cds+dynamic=off"
EXIT_S = 300.0  # writing the archive takes about 10 s


def main() -> None:
    archive = sys.argv[1]
    os.environ["SPARK_SUBMIT_OPTS"] = (
        f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={archive} {LOG_OFF}"
    )
    from pyspark import SparkContext

    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.spark import session

    spark = session("spark-archive", "local[2]", {"spark.log.level": "OFF"})
    with EmbeddedHub(hubs={"events": 2}) as hub, tempfile.TemporaryDirectory() as folder:
        run_queries(spark, hub, Path(folder))
    spark.stop()
    gateway: Any = SparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()  # Spark's JVM ends with its input
    gateway.proc.wait(EXIT_S)


def run_queries(spark: SparkSession, hub: EmbeddedHub, folder: Path) -> None:
    options = {"connectionString": hub.connection_string("events")}
    rows = spark.range(1000).selectExpr("cast(id as string) as body", "'a' as partitionKey")
    rows.write.format("eventhubs").mode("append").options(**options).save()
    batch = spark.read.format("eventhubs").options(**options).load()
    batch.filter("partition = '0'").count()
    batch.selectExpr("cast(body as string) as body").orderBy("body").collect()
    stream = spark.readStream.format("eventhubs").options(**options, startingPosition="earliest")
    stream_to_parquet(stream.load(), folder)
    count_in_state(stream.load(), folder)
    again = {**options, "checkpointLocation": str(folder / "copy")}
    copied = stream.load().select("body", "partitionKey").writeStream.format("eventhubs")
    copied.options(**again).trigger(availableNow=True).start().awaitTermination()


def stream_to_parquet(events: DataFrame, folder: Path) -> None:
    writer = events.writeStream.format("parquet").option("path", str(folder / "rows"))
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    events.sparkSession.read.parquet(str(folder / "rows")).count()


def count_in_state(events: DataFrame, folder: Path) -> None:
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Counter(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.count = handle.getValueState("count", "n long")

        def handleInputRows(
            self,
            key: Any,
            rows: Iterator[pd.DataFrame],
            timerValues: Any,
        ) -> Iterator[pd.DataFrame]:
            n = sum(map(len, rows))
            self.count.update((n,))
            yield pd.DataFrame({"partition": [str(key[0])], "n": [n]})

        def close(self) -> None:
            """There is nothing to close."""

    counts = events.groupBy("partition").transformWithStateInPandas(
        Counter(), "partition string, n long", "Append", "None"
    )
    writer = counts.writeStream.foreachBatch(lambda rows, _: rows.collect() and None)
    writer = writer.option("checkpointLocation", str(folder / "state")).outputMode("append")
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
