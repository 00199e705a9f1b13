"""How fast does Spark read a hub?

A stream with one batch, from a hub on the same machine into Spark's `noop` sink, on local[2]; 1 KiB
bodies in 16 partitions, unless the name says otherwise. Rates are rows per second from planning to
commit, as Spark's own progress tells them, after a warm-up.

- **vs naive**: a Python data source on the official SDK's synchronous client (prefetch 3000, one
  consumer per partition), as most people would write it.
- **vs the hop alone**: our record batches from memory, in as many tasks: no source in Python can be
  faster. The goal is half of it.
- **small trigger**: 320 rows of 16 partitions in 2 tasks, as fast as they come, against Spark's
  built-in source of the same rows in as many tasks. A goal of 1/3 is at most three times its time.
- **CPU per row**: of the hub, of the Python workers, of the JVM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._processes import Child, cpu_s, waiting
from benchmarks._spark import (
    CORES,
    MS,
    ROWS_PER_S,
    US_PER_ROW,
    cpu_of_children,
    drain,
    fill,
    rate,
    spark_session,
    trigger_ms,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, SIZE, SMALL = 16, 1024, 320


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do; rows are of each partition."""

    rounds: int
    rows: int
    naive_rows: int
    triggers: int
    shapes: tuple[tuple[int, int, int], ...] = ()  # partitions, size, rows


FULL = Plan(
    rounds=5,
    rows=20_000,
    naive_rows=6_000,  # multiples of its prefetch: what it fetches counts
    triggers=40,
    shapes=(
        (1, 1024, 100_000), (4, 1024, 50_000), (64, 1024, 4_000), (16, 100, 30_000),
        (16, 16 << 10, 1_000), (16, 256 << 10, 60),
    ),
)  # fmt: skip
QUICK = Plan(rounds=2, rows=8_000, naive_rows=3_000, triggers=8)


def ours(
    spark: SparkSession, connection: str, partitions: int, rows: int, most: int = 0
) -> DataFrame:
    source = spark.readStream.format("eventhubs").options(
        connectionString=connection,
        startingPosition="earliest",
        maxEventsPerTrigger=str(most or rows * partitions),
        partitionsPerTask=str(-(-partitions // CORES)),
    )
    return source.load()


def peer(spark: SparkSession, name: str, connection: str, rows: int, tasks: int) -> DataFrame:
    source = spark.readStream.format(name).options(
        connection=connection,
        rows=str(rows),
        partitions=str(PARTITIONS),
        tasks=str(tasks),
        size=str(SIZE),
    )
    return source.load()


def built_in(spark: SparkSession, triggers: int) -> float:
    """Spark's own source, as fast as it goes; its first batches are for warming up."""
    import tempfile
    import time

    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=str(SMALL), numPartitions=str(CORES)
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = source.load().writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        while (query.lastProgress or {"batchId": 0})["batchId"] < triggers + 2:
            time.sleep(0.1)
        query.stop()
        found = [one for one in query.recentProgress if one["numInputRows"]][2:]
    return trigger_ms([{"durationMs": one["durationMs"]} for one in found])


def small(spark: SparkSession, connection: str, triggers: int) -> float:
    """320 rows at a time, from a hub that has many more; the first are for warming up."""
    import tempfile
    import time

    frame = ours(spark, connection, PARTITIONS, 0, most=SMALL)
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        while (query.lastProgress or {"batchId": 0})["batchId"] < triggers + 2:
            if query.exception() is not None:
                raise RuntimeError("the query failed") from query.exception()
            time.sleep(0.1)
        query.stop()
        found = [one for one in query.recentProgress if one["numInputRows"] == SMALL][2:]
    return trigger_ms([{"durationMs": one["durationMs"]} for one in found])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with spark_session() as spark, waiting("_hub", 1, PARTITIONS) as hub:
        connection = hub.said["connection"]
        fill(connection, PARTITIONS, plan.rows, SIZE)
        yield from rates(spark, hub, plan)
        sides = {
            "small trigger": partial(small, spark, connection, plan.triggers),
            "built-in source": partial(built_in, spark, plan.triggers),
        }
        found, usual = alternate(1 if quick else 3, sides).values()
        yield compare(
            "small trigger, 16 partitions vs rate source", MS, found, usual,
            goal=1 / 3, lower_is_better=True,
        )  # fmt: skip
    for partitions, size, rows in plan.shapes:
        with spark_session() as spark, waiting("_hub", 1, partitions) as hub:
            fill(hub.said["connection"], partitions, rows, size)
            frame = partial(ours, spark, hub.said["connection"], partitions, rows)
            drain(frame())
            name = f"{partitions} partitions of {size:,} B"
            yield compare(name, ROWS_PER_S, [rate(drain(frame())) for _ in range(3)])


def drained(make: Callable[[], DataFrame]) -> float:
    return rate(drain(make()))


def rates(spark: SparkSession, hub: Child, plan: Plan) -> Iterator[Figure]:
    connection, rows = hub.said["connection"], plan.rows
    frames: dict[str, Callable[[], DataFrame]] = {
        "ours": lambda: ours(spark, connection, PARTITIONS, rows),
        "the hop alone": lambda: peer(spark, "hop", connection, rows, CORES),
        "naive": lambda: peer(spark, "naive", connection, plan.naive_rows, PARTITIONS),
    }
    for frame in frames.values():
        drain(frame())  # workers have been forked, and what they need is imported
    sides = {name: partial(drained, frame) for name, frame in frames.items()}
    found, alone, naive = alternate(plan.rounds, sides).values()
    yield compare("source vs naive", ROWS_PER_S, found, naive, goal=6)
    yield compare("source vs the hop alone", ROWS_PER_S, found, alone, goal=0.5)
    before, hub_before = cpu_of_children(), cpu_s(hub.pid)
    drain(frames["ours"]())
    after, hub_after = cpu_of_children(), cpu_s(hub.pid)
    spent = {"hub": hub_after - hub_before} | {one: after[one] - before[one] for one in after}
    total = rows * PARTITIONS
    for name, seconds in spent.items():
        yield compare(f"CPU per row, {name}", US_PER_ROW, [max(0.001, seconds / total * 1e6)])


if __name__ == "__main__":
    sys.exit(run(measure))
