"""What does it cost a query to share its consumer group, and does it keep its leases under load?

Streams of ten batches from a hub on the same machine into Spark's `noop` sink, on local[2]; 1 KiB
bodies in 16 partitions. The first batch does not count: a tenant waits in it for its leases.

- **tenant vs all partitions**: rows per second from planning to commit, with `assignment=steady`
  and a SQLite store against the same source without. The goal is 0.95: tenancy costs at most 5 %.
- **CPU per row**: of everybody but the hub, the same two.
- **renewals**: the most by which a renewal came late while batches saturate both cores for longer
  than a lease, as a part of the renewal interval. The goal is at most a half.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._processes import Child, waiting
from benchmarks._spark import (
    CORES,
    JVM,
    OTHER,
    ROWS_PER_S,
    US_PER_ROW,
    WAIT_S,
    WORKERS,
    Cost,
    cost_of,
    drain,
    fill,
    spark_session,
    started,
    trigger_ms,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS, SIZE, BATCHES = 16, 1024, 10
RENEW_S = 2.0
LATE = "of the interval"


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do; rows are of each partition."""

    rounds: int
    rows: int
    busy_s: float


FULL = Plan(rounds=5, rows=20_000, busy_s=40.0)
QUICK = Plan(rounds=1, rows=2_000, busy_s=10.0)


def stream(spark: SparkSession, connection: str, most: int, **options: str) -> DataFrame:
    source = spark.readStream.format("eventhubs").options(
        connectionString=connection,
        startingPosition="earliest",
        maxEventsPerTrigger=str(most),
        partitionsPerTask=str(-(-PARTITIONS // CORES)),
        **options,
    )
    return source.load()


def tenant(spark: SparkSession, connection: str, most: int, folder: Path) -> DataFrame:
    """A tenant of a group of its own: its store is new, so it begins where the other does."""
    store = folder / f"{time.monotonic_ns()}.db"
    return stream(
        spark, connection, most, assignment="steady", store=f"sqlite:///{store}", host="benchmark",
        cycleInterval="1s", renewInterval=f"{RENEW_S:g}s", leaseDuration="10s",
    )  # fmt: skip


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with (
        spark_session() as spark,
        tempfile.TemporaryDirectory() as folder,
        waiting("_hub", 1, PARTITIONS) as hub,
    ):
        connection, most = hub.said["connection"], plan.rows * PARTITIONS // BATCHES
        fill(connection, PARTITIONS, plan.rows, SIZE)
        shared = partial(tenant, spark, connection, most, Path(folder))
        yield from costs(hub, plan, shared, partial(stream, spark, connection, most))
        yield lateness(shared, plan)


def costs(
    hub: Child, plan: Plan, shared: Callable[[], DataFrame], alone: Callable[[], DataFrame]
) -> Iterator[Figure]:
    frames = {"tenant": shared, "all partitions": alone}
    for frame in frames.values():
        drain(frame())  # workers have been forked, and what they need is imported
    sides = {
        name: partial(cost_of, partial(drained, frame), hub.pid) for name, frame in frames.items()
    }
    found, usual = alternate(plan.rounds, sides).values()
    rates = [[cost.rate for cost in each] for each in (found, usual)]
    yield compare("tenant vs all partitions", ROWS_PER_S, *rates, goal=0.95)
    yield compare(
        "tenant vs all partitions, CPU but the hub's", US_PER_ROW, spent(found), spent(usual),
        lower_is_better=True,
    )  # fmt: skip


def drained(make: Callable[[], DataFrame]) -> tuple[int, float]:
    """Rows and seconds of all batches but the first."""
    batches = drain(make())[1:]
    return sum(one["rows"] for one in batches), sum(map(trigger_ms, batches)) / 1000


def spent(found: list[Cost]) -> list[float]:
    return [cost.per_row(WORKERS, JVM, OTHER) for cost in found]


def lateness(shared: Callable[[], DataFrame], plan: Plan) -> Figure:
    """By how much a renewal came late, at worst, while both cores had all they could do."""
    burnt = shared().selectExpr(
        f"aggregate(sequence(1, {int(plan.busy_s * 4)}), 0L, "
        "(sum, each) -> sum + length(sha2(concat(body, cast(each as binary)), 512))) as burnt"
    )
    with started(burnt.where("burnt > 0"), processingTime="0 seconds") as query:
        deadline = time.monotonic() + WAIT_S
        since = time.monotonic()
        while time.monotonic() - since < plan.busy_s or not gap_of(query.lastProgress):
            if query.exception() is not None or time.monotonic() > deadline:
                raise RuntimeError("the query failed or stands still") from query.exception()
            time.sleep(0.2)
        gap_s = gap_of(query.lastProgress)
    late = max(0.0, gap_s - RENEW_S) / RENEW_S
    return compare("a renewal is late by at most", LATE, [late], goal=0.5, lower_is_better=True)


def gap_of(progress: Any) -> float:
    """The longest between two renewals of a partition, as the query tells it."""
    if progress is None:
        return 0.0
    told = progress["sources"][0]["latestOffset"]
    tenancy = (json.loads(told) if isinstance(told, str) else told or {}).get("@tenancy", {})
    return float(tenancy.get("renewalGapSeconds", 0.0))


if __name__ == "__main__":
    sys.exit(run(measure))
