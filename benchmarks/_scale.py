"""Large fleets by calculation: the cost of one decision, and the store calls of a fleet at rest.

python -m benchmarks._scale

The decision is measured: the median CPU time of a census and a plan of `steady`. The calls are
calculated: one listing in pages per host and interval, and one write per partition and renewal. A
test compares the calculation with the calls of a simulated fleet and with the docs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator
from random import Random
from statistics import median
from typing import NamedTuple

from pumphouse.leases.census import take_census
from pumphouse.leases.model import Listing, Member, Ownership
from pumphouse.leases.strategies import STEADY
from pumphouse.processor.options import RELAXED, ProcessorOptions

SIZES = ((32, 8), (1_024, 200), (10_000, 1_000))  # partitions, hosts
PAGE_ROWS = 5_000  # of a listing of a blob container
ROUNDS = 5


class Calls(NamedTuple):
    """The store calls of a fleet at rest."""

    listings: int  # per interval
    pages: int  # of one listing
    writes: int  # per renewal
    per_second: float


def calls_at_rest(partitions: int, hosts: int, options: ProcessorOptions) -> Calls:
    pages = math.ceil((partitions + hosts) / PAGE_ROWS)  # a row each, and a member record each
    per_second = hosts * pages / options.interval_s + partitions / options.renew_s
    return Calls(hosts, pages, partitions, per_second)


# -- one decision ---------------------------------------------------------------------------------


def name(host: int) -> str:
    return f"host-{host:04}"


def listing(partitions: int, hosts: int, owner: Callable[[int], str]) -> Listing:
    rows = tuple(Ownership(str(n), owner(n), 1, "etag") for n in range(partitions))
    return Listing(rows, tuple(Member(name(n)) for n in range(hosts)))


def newcomer(partitions: int, hosts: int) -> Listing:
    """All hosts but the last one own all partitions."""
    return listing(partitions, hosts, lambda partition: name(partition % (hosts - 1)))


def cold(partitions: int, hosts: int) -> Listing:
    return listing(partitions, hosts, lambda partition: "")


def at_rest(partitions: int, hosts: int) -> Listing:
    return listing(partitions, hosts, lambda partition: name(partition % hosts))


def plan(listed: Listing, partitions: int, host: int) -> list[str]:
    """The partitions that this host claims."""
    names = [str(n) for n in range(partitions)]
    return list(STEADY(take_census(name(host), names, listed, 30.0), Random(1)))


def plan_ms(state: Callable[[int, int], Listing], partitions: int, hosts: int) -> float:
    listed = state(partitions, hosts)
    return median(_cpu_ms(listed, partitions, hosts - 1) for _ in range(ROUNDS))


def _cpu_ms(listed: Listing, partitions: int, host: int) -> float:
    started_s = time.process_time()
    plan(listed, partitions, host)
    return 1000 * (time.process_time() - started_s)


# -- the table ------------------------------------------------------------------------------------


def calls_cells(partitions: int, hosts: int) -> list[str]:
    calls = calls_at_rest(partitions, hosts, ProcessorOptions())
    pages = f" of {calls.pages} pages" if calls.pages > 1 else ""
    relaxed = calls_at_rest(partitions, hosts, RELAXED)
    return [
        f"{calls.listings:,} listings{pages} + {calls.writes:,} writes",
        f"{calls.per_second:,.0f}",
        f"{relaxed.per_second:,.0f}",
    ]


def table() -> Iterator[str]:
    states = {"newcomer": newcomer, "from cold": cold, "at rest": at_rest}
    heads = ["partitions x hosts", *(f"plan: {state}" for state in states)]
    heads += ["calls per 10 s", "per second", "with `RELAXED`"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for partitions, hosts in SIZES:
        cells = [f"{plan_ms(state, partitions, hosts):.1f} ms" for state in states.values()]
        cells += calls_cells(partitions, hosts)
        yield f"| {partitions:,} x {hosts:,} | {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(print("\n".join(table())))
