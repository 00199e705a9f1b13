"""All checkpoint stores: latency, requests and hand-overs

Each store has its server on this machine, in one run: PostgreSQL with `fsync=on`, Redis with
`appendfsync always`, SQLite with `synchronous=FULL`, and Azurite in memory for the two stores in
Azure Storage. Azure itself takes several milliseconds for each request. The latencies of a database
are those of its server and of this machine; over a network, add its round trips.
[leases.md](leases.md#stores-compared) has what each store survives.

- **claim**, **renew**, **checkpoint**: time of one call for one partition, one after the other.
- **requests per cycle**: round trips to the server in one cycle of a host that owns 16 partitions
  and renews all of them, at rest. SQLite and memory have no server.
- **hand-over**: a host owns 8 partitions, and a second one joins. The time from the request of a
  partition until its new owner serves it, with the default options (a cycle every 10 s). With
  notifications the goal is 100 ms. Without them the owner notices a request at its next renewal.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks._figures import Figure, compare, progress, run, shorten
from benchmarks._homes_observation import percentile
from benchmarks._stores import (
    Place,
    hand_over_times,
    latencies,
    open_stores,
    round_trips_per_cycle,
)
from pumphouse import ProcessorOptions

NOTIFIES, POLLED = ("PostgresStore", "RedisStore"), "BlobStore"
HAND_OVER_GOAL_MS = 100
PARTITIONS, MOVED_FROM = 16, 8
OPERATIONS = ("claim", "renew", "checkpoint")


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    calls: int
    cycles: int
    interval_s: float  # of these cycles
    hand_overs: int  # times half of MOVED_FROM
    options: ProcessorOptions


FULL = Plan(calls=500, cycles=5, interval_s=2, hand_overs=3, options=ProcessorOptions())
SHORT = ProcessorOptions(interval_s=1, renew_s=1, lease_s=15)
QUICK = Plan(calls=50, cycles=2, interval_s=1, hand_overs=1, options=SHORT)


def measure(quick: bool) -> Iterator[Figure]:
    plan, hand_overs = QUICK if quick else FULL, dict[str, Figure]()
    with open_stores() as places:
        for name, place in places.items():
            progress(name)
            measured = list(figures(name, place, plan))
            hand_overs[name] = measured[-1]
            yield from measured
    yield compare(
        f"hand-over, p50, {NOTIFIES[0]} vs {POLLED}",
        "ms",
        [hand_overs[NOTIFIES[0]].ours],
        [hand_overs[POLLED].ours],
        lower_is_better=True,
    )


def figures(name: str, place: Place, plan: Plan) -> Iterator[Figure]:
    took = asyncio.run(latencies(place(), plan.calls))
    for operation in OPERATIONS:
        for share in (50, 99):
            ms = percentile(took[operation], share / 100) * 1000
            yield Figure(f"{name}, {operation}, p{share}", shorten(ms), "ms", rounds=plan.calls)
    counted = round_trips_per_cycle(place(), PARTITIONS, plan.cycles, plan.interval_s)
    requests = asyncio.run(counted)
    yield Figure(f"{name}, requests per cycle", shorten(requests), "requests", rounds=plan.cycles)
    yield hand_over(name, place, plan)


def hand_over(name: str, place: Place, plan: Plan) -> Figure:
    took = [
        seconds
        for _ in range(plan.hand_overs)
        for seconds in asyncio.run(hand_over_times(place(), MOVED_FROM, plan.options))
    ]
    return Figure(
        f"{name}, hand-over, p50",
        shorten(percentile(took, 0.5) * 1000),
        "ms",
        goal=HAND_OVER_GOAL_MS if name in NOTIFIES else None,
        lower_is_better=True,
        rounds=len(took),
    )


if __name__ == "__main__":
    sys.exit(run(measure))
