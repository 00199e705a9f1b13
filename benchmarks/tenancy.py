"""A query that shares its consumer group: cost, and leases under load

Streams of ten batches read a hub on the same machine into Spark's `noop` sink, on local[2], with
1 KiB bodies in 16 partitions. The first batch does not count: a tenant waits in it for its leases.

- **tenant vs all partitions**: rows per second from planning to commit, with `assignment=steady`
  and a SQLite store, compared with the same source without `assignment`. The goal is 0.95: sharing
  the group costs at most 5 %.
- **CPU per row**: the CPU time of all processes but the hub, for the same two.
- **renewals**: two batches saturate both cores, each for about three leases of 10 s. The figure is
  the largest delay of a renewal, divided by the renewal interval (2 s). The goal is at most a half.
  The load of the cores is measured too.
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

from benchmarks._figures import Figure, alternate, compare, progress, run
from benchmarks._processes import Child, start_child
from benchmarks._spark import (
    CORES,
    JVM,
    LOOK_S,
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
    from pyspark.sql.streaming.query import StreamingQuery

PARTITIONS, SIZE, BATCHES = 16, 1024, 10
LEASE_S, RENEW_S, CYCLE_S = 10.0, 2.0, 1.0
OF_INTERVAL, OF_TIME = "of the interval", "of the time"
TRIED_ROWS, TRIED_TURNS = 2_000, 100


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work; `rows` is per partition."""

    rounds: int
    rows: int
    busy_s: float  # the duration of one batch
    warm: bool = True


FULL = Plan(rounds=12, rows=20_000, busy_s=3 * LEASE_S)
QUICK = Plan(rounds=1, rows=1_000, busy_s=1.0, warm=False)


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
    """A tenant with a new store, so that it starts where the other query starts."""
    store = folder / f"{time.monotonic_ns()}.db"
    return stream(
        spark, connection, most, assignment="steady", store=f"sqlite:///{store}", host="benchmark",
        cycleInterval=f"{CYCLE_S:g}s", renewInterval=f"{RENEW_S:g}s", leaseDuration=f"{LEASE_S:g}s",
    )  # fmt: skip


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with (
        spark_session() as spark,
        tempfile.TemporaryDirectory() as folder,
        start_child("_hub", 1, PARTITIONS) as hub,
    ):
        connection, most = hub.result["connection"], plan.rows * PARTITIONS // BATCHES
        fill(connection, PARTITIONS, plan.rows, SIZE)
        shared = partial(tenant, spark, connection, most, Path(folder))
        yield from costs(hub, plan, shared, partial(stream, spark, connection, most))
        yield from renewals(shared, turns_for(spark, most, plan.busy_s))


def costs(
    hub: Child, plan: Plan, shared: Callable[[], DataFrame], alone: Callable[[], DataFrame]
) -> Iterator[Figure]:
    frames = {"tenant": shared, "all partitions": alone}
    for frame in frames.values() if plan.warm else ():
        drain(frame())  # forks the workers and imports their modules
    sides = {
        name: partial(cost_of, partial(drained, frame), hub.pid) for name, frame in frames.items()
    }
    tenant_costs, usual = alternate(plan.rounds, sides).values()
    rates = [[cost.rate for cost in each] for each in (tenant_costs, usual)]
    yield compare("tenant vs all partitions", ROWS_PER_S, *rates, goal=0.95)
    yield compare(
        "tenant vs all partitions, CPU but the hub's", US_PER_ROW,
        spent(tenant_costs), spent(usual), lower_is_better=True,
    )  # fmt: skip


def drained(make: Callable[[], DataFrame]) -> tuple[int, float]:
    """Rows and seconds of all batches but the first."""
    batches = drain(make())[1:]
    return sum(batch["rows"] for batch in batches), sum(map(trigger_ms, batches)) / 1000


def spent(costs: list[Cost]) -> list[float]:
    return [cost.per_row(WORKERS, JVM, OTHER) for cost in costs]


# -- leases under load ----------------------------------------------------------------------------


def burning(rows: DataFrame, turns: int) -> DataFrame:
    """Rows that cost `turns` rounds of hashing each."""
    hashed = "sha2(concat(body, cast(cast(turn as string) as binary)), 512)"
    summed = f"aggregate(sequence(1, {turns}), 0L, (sum, turn) -> sum + length({hashed}))"
    return rows.selectExpr(f"{summed} as burnt").where("burnt > 0")


def turns_for(spark: SparkSession, rows: int, seconds: float) -> int:
    """The number of hashing rounds that keeps all cores busy for `seconds` with `rows` rows."""
    body = f"cast(repeat('x', {SIZE}) as binary) as body"
    tried = burning(spark.range(0, TRIED_ROWS, 1, CORES).selectExpr(body), TRIED_TURNS)
    for _ in range(2):  # the first run compiles it
        since_s = time.monotonic()
        tried.write.format("noop").mode("overwrite").save()
        took_s = time.monotonic() - since_s
    return max(1, round(TRIED_TURNS * seconds / took_s * TRIED_ROWS / rows))


def renewals(shared: Callable[[], DataFrame], turns: int) -> Iterator[Figure]:
    """The largest delay of a renewal while both cores are busy."""
    progress(f"two batches with {turns} hashing rounds per row")
    with started(burning(shared(), turns), processingTime="0 seconds") as query:
        until_done(query, 0)  # workers run, and the tenant owns its partitions
        before = busy_and_idle()
        until_done(query, 1)
        share, gap_s = busy_since(before), gap_of(query.lastProgress)
    late = max(0.0, gap_s - RENEW_S) / RENEW_S
    yield compare("a renewal is late by", OF_INTERVAL, [late], goal=0.5, lower_is_better=True)
    yield compare("both cores are busy meanwhile", OF_TIME, [share], goal=0.9)


def until_done(query: StreamingQuery, batch: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while (query.lastProgress or {"batchId": -1})["batchId"] < batch:
        if query.exception() is not None or time.monotonic() > deadline:
            raise RuntimeError("the query failed or makes no progress") from query.exception()
        time.sleep(LOOK_S)


def busy_and_idle() -> tuple[int, int]:
    """Ticks of all cores since the machine started: busy and idle."""
    ticks = list(map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]))
    idle = ticks[3] + ticks[4]
    return sum(ticks) - idle, idle


def busy_since(before: tuple[int, int]) -> float:
    busy, idle = (now - then for now, then in zip(busy_and_idle(), before, strict=True))
    return busy / max(1, busy + idle)


def gap_of(progress: Any) -> float:
    """The longest time between two renewals of a partition, from the query progress."""
    if progress is None:
        return 0.0
    offset = progress["sources"][0]["latestOffset"]
    tenancy = (json.loads(offset) if isinstance(offset, str) else offset or {}).get("@tenancy", {})
    return float(tenancy.get("renewalGapSeconds", 0.0))


if __name__ == "__main__":
    sys.exit(run(measure))
