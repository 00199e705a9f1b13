"""How fast does Spark write a hub?

Rows of 1 KiB, made by Spark, into a hub of 16 partitions on the same machine, on local[2]; wall
time of the whole job, after a warm-up.

- **vs naive**: a Python data source that fills batches of the official SDK's synchronous producer,
  one producer for each task.
- **keyed**: rows with one of 1,000 partition keys, which our sink groups.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._processes import waiting
from benchmarks._spark import CORES, ROWS_PER_S, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS, SIZE, KEYS = 16, 1024, 1000


@dataclass(frozen=True, slots=True)
class Plan:
    rounds: int
    rows: int
    naive_rows: int


FULL = Plan(rounds=5, rows=400_000, naive_rows=40_000)
QUICK = Plan(rounds=2, rows=100_000, naive_rows=8_000)


def write(
    spark: SparkSession, form: str, rows: int, options: dict[str, str], keyed: bool = False
) -> float:
    """Rows per second."""
    columns = [f"cast(repeat('x', {SIZE}) as binary) as body"]
    columns += [f"concat('key-', id % {KEYS}) as partitionKey"] if keyed else []
    frame = spark.range(0, rows, numPartitions=CORES).selectExpr(*columns)
    since = time.perf_counter()
    frame.write.format(form).mode("append").options(**options).save()
    return rows / (time.perf_counter() - since)


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with spark_session() as spark, waiting("_hub", 1, PARTITIONS) as hub:
        connection = hub.said["connection"]
        ours = {"connectionString": connection}
        sides = {
            "ours": partial(write, spark, "eventhubs", plan.rows, ours),
            "naive": partial(write, spark, "naive", plan.naive_rows, {"connection": connection}),
            "ours, keyed": partial(write, spark, "eventhubs", plan.rows, ours, keyed=True),
        }
        for form, options in (("eventhubs", ours), ("naive", {"connection": connection})):
            write(spark, form, 1000, options)
        found, naive, keyed = alternate(plan.rounds, sides).values()
    yield compare("sink vs naive", ROWS_PER_S, found, naive, goal=5)
    yield compare("sink, keyed", ROWS_PER_S, keyed)


if __name__ == "__main__":
    sys.exit(run(measure))
