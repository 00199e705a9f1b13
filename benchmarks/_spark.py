"""A Spark session to measure with, a filled hub beside it, and what a stream of one batch takes."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks._figures import say
from benchmarks._processes import ROOT
from pumphouse.client.opening import open_client
from pumphouse.events import Event

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS_PER_S, US_PER_ROW, MS = "rows/s", "cpu-us/row", "ms"
CORES = 2
TICKS = os.sysconf("SC_CLK_TCK")
WAIT_S = 300.0


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    # Workers import the peers from here.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    from benchmarks._spark_peers import Hop, Naive
    from pumphouse.spark import session

    spark = session("benchmark", f"local[{CORES}]", {"spark.log.level": "OFF"})
    spark.dataSource.register(Naive)
    spark.dataSource.register(Hop)
    try:
        yield spark
    finally:
        spark.stop()


def fill(connection: str, partitions: int, rows: int, size: int) -> None:
    """So many events of so many bytes into each partition."""
    say(f"filling {partitions} partitions with {rows:,} events of {size:,} bytes")

    async def work() -> None:
        async with open_client(connection) as client:
            for partition in range(partitions):
                sender = await client.sender(str(partition))
                await sender.send(Event(bytes(size)) for _ in range(rows))

    asyncio.run(work())


def drain(frame: DataFrame) -> list[dict[str, Any]]:
    """Everything into nothing, and what Spark tells of the batches that had rows."""
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        if not query.awaitTermination(int(WAIT_S)):
            query.stop()
            raise TimeoutError(f"the query did not end in {WAIT_S:g} s")
        return [one for one in map(told, query.recentProgress) if one["numInputRows"]]


def told(progress: Any) -> dict[str, Any]:
    return {"numInputRows": progress["numInputRows"], "durationMs": progress["durationMs"]}


def rate(batches: list[dict[str, Any]]) -> float:
    """Rows per second of the batches, from their planning to their commit."""
    rows = sum(one["numInputRows"] for one in batches)
    return float(rows / sum(one["durationMs"]["triggerExecution"] for one in batches) * 1000)


def trigger_ms(batches: list[dict[str, Any]]) -> float:
    return float(median(one["durationMs"]["triggerExecution"] for one in batches))


def cpu_of_children(process: int | None = None) -> dict[str, float]:
    """CPU seconds of the JVM and of the Python workers that run below us."""
    spent = {"jvm": 0.0, "python": 0.0}
    for child in children(process or os.getpid()):
        try:
            stat = Path(f"/proc/{child}/stat").read_text()
        except OSError:
            continue
        fields = stat.rpartition(")")[2].split()
        kind = "jvm" if "(java)" in stat else "python"
        # Its own time, and that of children that have ended.
        spent[kind] += sum(map(int, fields[11:15])) / TICKS
        below = cpu_of_children(child)
        spent = {one: spent[one] + below[one] for one in spent}
    return spent


def children(process: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            found += map(int, thread.read_text().split())
        except OSError:
            continue
    return found
