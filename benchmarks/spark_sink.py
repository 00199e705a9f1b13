"""Spark writes a hub

Spark writes rows of 1 KiB into a hub of 16 partitions on the same machine, on local[2]. The figure
is the wall time of the whole job, after a warm-up.

- **vs naive**: a Python data source that fills batches of the synchronous producer of the official
  SDK, one producer per task; also the CPU time of the Python workers.
- **keyed**: rows with one of 1,000 partition keys; both sides make batches of one key.
- **CPU per row**: of the hub, of the Python workers, of the JVM.

The goal is 10 times the rate of the naive sink. The number of rows changes the ratio: a warm job of
100 rows takes 0.1 to 0.2 s with our sink and 0.7 to 1 s with the naive one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._processes import start_child
from benchmarks._spark import (
    CORES,
    HUB,
    JVM,
    ROWS_PER_S,
    US_PER_ROW,
    WORKERS,
    Cost,
    cost_of,
    spark_session,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, SIZE, KEYS = 16, 1024, 1000


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    rows: int
    naive_rows: int


FULL = Plan(rounds=3, rows=200_000, naive_rows=30_000)
QUICK = Plan(rounds=1, rows=5_000, naive_rows=500)


def write(
    spark: SparkSession, form: str, options: dict[str, str], rows: int, keyed: bool
) -> tuple[int, float]:
    """Rows and seconds."""
    columns = [f"cast(repeat('x', {SIZE}) as binary) as body"]
    columns += [f"concat('key-', id % {KEYS}) as partitionKey"] if keyed else []
    frame = spark.range(0, rows, numPartitions=CORES).selectExpr(*columns)
    since = time.perf_counter()
    frame.write.format(form).mode("append").options(**options).save()
    return rows, time.perf_counter() - since


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with spark_session() as spark, start_child("_hub", 1, PARTITIONS) as hub:
        connection = hub.result["connection"]
        ours = partial(write, spark, "eventhubs", {"connectionString": connection})
        naive = partial(write, spark, "naive", {"connection": connection})
        for job in (ours, naive):
            job(100, keyed=False)
        for name, keyed in (("sink", False), ("keyed sink", True)):
            sides = {
                f"{name}, ours": partial(cost_of, partial(ours, plan.rows, keyed), hub.pid),
                f"{name}, naive": partial(cost_of, partial(naive, plan.naive_rows, keyed), hub.pid),
            }
            yield from figures(name, *alternate(plan.rounds, sides).values())


def figures(name: str, ours: list[Cost], naive: list[Cost]) -> Iterator[Figure]:
    rates = [[cost.rate for cost in costs] for costs in (ours, naive)]
    yield compare(f"{name} vs naive", ROWS_PER_S, *rates, goal=10)
    spent = [[cost.per_row(WORKERS) for cost in costs] for costs in (ours, naive)]
    yield compare(
        f"{name} vs naive, CPU of the Python workers", US_PER_ROW, *spent, lower_is_better=True
    )
    for who in (HUB, WORKERS, JVM):
        each = [cost.per_row(who) for cost in ours]
        yield compare(f"{name}: CPU per row, {who}", US_PER_ROW, each, lower_is_better=True)


if __name__ == "__main__":
    sys.exit(run(measure))
