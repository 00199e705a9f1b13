"""Spark reads a hub

A stream with one batch reads a hub on the same machine into Spark's `noop` sink, on local[2], with
1 KiB bodies in 16 partitions unless the name has other numbers. Rates are rows per second from
planning to commit, from Spark's query progress, after a warm-up.

- **vs naive**: a Python data source on the synchronous client of the official SDK (prefetch 3000,
  one consumer per partition), as most people would write it; also the CPU time of the Python
  workers.
- **vs the hop alone**: a source that returns record batches from memory, in the same number of
  tasks. It measures only the transfer from the Python workers to the JVM, which no source in Python
  can avoid. The goal is three quarters of its rate.
- **CPU per row**: of the hub, of the Python workers, of the JVM.
- **metrics**: CPU time per row of the hub, of the Python workers, of the JVM and of the driver,
  with the listener that records the metrics of queries. The peer is the same without. A goal of
  0.98 means: at most 2 % more. The query without metrics is measured twice: how much both differ is
  the noise. The cheapest round of each side counts. `--metrics` measures only this.
- **small trigger**: triggers of 320 rows from 16 partitions, without pause, compared with Spark's
  built-in source `rate-micro-batch` with the same rows and tasks (`rate` makes at most one batch a
  second). The goal is 1.3 times its duration with 2 tasks, and 1.6 times with 16.
- **by partitions**, **by size**: the cost of many partitions and of long bodies. The CPU time is
  the sum of hub, workers and JVM. One task on one core reads one partition.

Of a small trigger, planning takes 7 ms. Each range of 20 rows takes 0.8 ms of CPU in the worker and
0.4 ms in the hub, with three round trips. A source that returns rows from memory takes 1.13 times
as long as `rate-micro-batch` with 2 tasks, and 1.45 times with 16.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks._figures import Figure, alternate, compare, compare_metrics, metrics_sides, run
from benchmarks._processes import Child, start_child
from benchmarks._spark import (
    CORES,
    HUB,
    JVM,
    MS,
    ROWS_PER_S,
    US_PER_ROW,
    WORKERS,
    Cost,
    cost_of,
    drain,
    drained,
    fill,
    spark_session,
    ticking,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, SIZE, SMALL = 16, 1024, 320
TRIGGER_GOALS = {CORES: 1 / 1.3, PARTITIONS: 1 / 1.6}  # by tasks: 1.3 and 1.6 times as long
WARM_QUERIES = 3  # the JVM compiles meanwhile
BY_PARTITIONS, BY_SIZE = "rows/s by partitions, 1 KiB bodies", "rows/s by bytes of a body"


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work; `rows` is per partition."""

    rounds: int
    rows: int
    naive_rows: int
    triggers: int
    metered_rounds: int
    spreads: tuple[int, ...] = ()  # tasks of the small trigger
    shapes: tuple[tuple[str, int, int, int], ...] = ()  # curve, partitions, size, rows
    warm: bool = True


FULL = Plan(
    rounds=3,
    rows=12_000,
    naive_rows=3_000,  # a multiple of its prefetch, since it always fetches that many
    triggers=25,
    metered_rounds=5,
    spreads=(CORES, PARTITIONS),
    shapes=(
        (BY_PARTITIONS, 1, SIZE, 192_000),
        (BY_PARTITIONS, 4, SIZE, 48_000),
        (BY_PARTITIONS, 16, SIZE, 12_000),
        (BY_PARTITIONS, 64, SIZE, 3_000),
        (BY_SIZE, 16, 100, 20_000),
        (BY_SIZE, 16, SIZE, 12_000),
        (BY_SIZE, 16, 16 << 10, 1_000),
        (BY_SIZE, 16, 256 << 10, 64),
    ),
)
# A query takes seconds to start, so the short form has no warm-up.
QUICK = Plan(
    rounds=1,
    rows=1_000,
    naive_rows=200,
    triggers=3,
    metered_rounds=1,
    spreads=(CORES,),
    warm=False,
)


# -- what is read ---------------------------------------------------------------------------------


def ours(
    spark: SparkSession, connection: str, partitions: int, most: int, tasks: int = CORES
) -> DataFrame:
    source = spark.readStream.format("eventhubs").options(
        connectionString=connection,
        startingPosition="earliest",
        maxEventsPerTrigger=str(most),
        partitionsPerTask=str(-(-partitions // tasks)),
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


def built_in(spark: SparkSession, tasks: int) -> DataFrame:
    source = spark.readStream.format("rate-micro-batch")
    return source.options(rowsPerBatch=str(SMALL), numPartitions=str(tasks)).load()


# -- measuring ------------------------------------------------------------------------------------


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with spark_session() as spark:
        with start_child("_hub", 1, PARTITIONS) as hub:
            fill(hub.result["connection"], PARTITIONS, plan.rows, SIZE)
            yield from rates(spark, hub, plan)
            yield from metrics_figures(spark, hub, plan, plan.metered_rounds)
            for tasks in plan.spreads:
                yield small_trigger(spark, hub.result["connection"], tasks, plan)
        for shape in plan.shapes:
            yield from one_shape(spark, *shape)


def measure_metrics(rounds: int) -> Iterator[Figure]:
    with spark_session() as spark, start_child("_hub", 1, PARTITIONS) as hub:
        connection = hub.result["connection"]
        fill(connection, PARTITIONS, FULL.rows, SIZE)
        for _ in range(WARM_QUERIES):
            drain(ours(spark, connection, PARTITIONS, FULL.rows * PARTITIONS))
        yield from metrics_figures(spark, hub, FULL, rounds)


def rates(spark: SparkSession, hub: Child, plan: Plan) -> Iterator[Figure]:
    connection, rows = hub.result["connection"], plan.rows
    frames: dict[str, Callable[[], DataFrame]] = {
        "ours": partial(ours, spark, connection, PARTITIONS, rows * PARTITIONS),
        "the hop alone": partial(peer, spark, "hop", connection, rows, CORES),
        "naive": partial(peer, spark, "naive", connection, plan.naive_rows, PARTITIONS),
    }
    for frame in frames.values() if plan.warm else ():
        drain(frame())  # forks the workers and imports their modules
    sides = {
        name: partial(cost_of, partial(drained, frame), hub.pid) for name, frame in frames.items()
    }
    source, alone, naive = alternate(plan.rounds, sides).values()
    yield compare("source vs naive", ROWS_PER_S, rate(source), rate(naive), goal=6)
    yield compare(
        "source vs naive, CPU of the Python workers", US_PER_ROW,
        per_row(source, WORKERS), per_row(naive, WORKERS), lower_is_better=True,
    )  # fmt: skip
    yield compare("source vs the hop alone", ROWS_PER_S, rate(source), rate(alone), goal=0.75)
    for who in (HUB, WORKERS, JVM):
        yield compare(f"CPU per row, {who}", US_PER_ROW, per_row(source, who), lower_is_better=True)


def metrics_figures(spark: SparkSession, hub: Child, plan: Plan, rounds: int) -> Iterator[Figure]:
    frame = partial(ours, spark, hub.result["connection"], PARTITIONS, plan.rows * PARTITIONS)

    def cost_us(metrics: bool) -> float:
        with recording(spark) if metrics else nullcontext():
            driver_s = time.process_time()
            cost = cost_of(partial(drained, frame), hub.pid)
            driver_s = time.process_time() - driver_s
        return cost.per_row(HUB, WORKERS, JVM) + driver_s / cost.rows * 1e6

    costs = alternate(rounds, metrics_sides(cost_us)).values()
    return compare_metrics("CPU per row of all", US_PER_ROW, costs)


@contextmanager
def recording(spark: SparkSession) -> Iterator[None]:
    """As `session(metrics=True)` and `serve_metrics()`, for a while."""
    from pumphouse.spark.lag.metrics import QueryMetricsListener
    from pumphouse.telemetry import serve_metrics
    from pumphouse.telemetry.meter import METER

    listener = QueryMetricsListener()
    with serve_metrics(0):
        spark.streams.addListener(listener)
        try:
            yield
        finally:
            spark.streams.removeListener(listener)
            METER.is_served = False


def rate(costs: list[Cost]) -> list[float]:
    return [cost.rate for cost in costs]


def per_row(costs: list[Cost], *who: str) -> list[float]:
    return [cost.per_row(*who) for cost in costs]


def small_trigger(spark: SparkSession, connection: str, tasks: int, plan: Plan) -> Figure:
    sides = {
        f"small trigger, {tasks} tasks": lambda: ticking(
            ours(spark, connection, PARTITIONS, SMALL, tasks), plan.triggers
        ),
        f"built-in source, {tasks} tasks": lambda: ticking(built_in(spark, tasks), plan.triggers),
    }
    source, usual = alternate(min(3, plan.rounds), sides).values()
    return compare(
        f"small trigger, 16 partitions in {tasks} tasks vs rate source", MS, source, usual,
        goal=TRIGGER_GOALS[tasks], lower_is_better=True,
    )  # fmt: skip


def one_shape(
    spark: SparkSession, curve: str, partitions: int, size: int, rows: int
) -> Iterator[Figure]:
    """Two figures with a new hub: the rate, and the CPU time of all processes per row."""
    with start_child("_hub", 1, partitions) as hub:
        fill(hub.result["connection"], partitions, rows, size)
        frame = partial(ours, spark, hub.result["connection"], partitions, rows * partitions)
        drain(frame())
        costs = [cost_of(partial(drained, frame), hub.pid) for _ in range(3)]
    at, name = (partitions, "partitions") if curve == BY_PARTITIONS else (size, "bytes")
    figure = compare(f"{at:,} {name}", ROWS_PER_S, rate(costs))
    yield replace(figure, curve=curve, at=at)
    spent = median(per_row(costs, HUB, WORKERS, JVM))
    yield compare(f"{at:,} {name}, CPU of all", US_PER_ROW, [spent], lower_is_better=True)


if __name__ == "__main__":
    sys.exit(run(measure, metrics=measure_metrics))
