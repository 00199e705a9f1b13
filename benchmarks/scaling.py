"""What a connection, a reader and a partition of a hub cost

- **a connection**: with one reader, without events. The CPU time of the hub to accept it and to
  attach the reader, the growth of the hub's memory, and the share of a core that it uses while
  nothing is sent.
- **a reader**: the same for readers that share one connection.
- **partitions**: the CPU time of the hub per event of 1 KiB that the native client sends to all
  partitions, by their number. The number of events is the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import NamedTuple

from benchmarks._figures import Figure, alternate, run
from benchmarks._processes import cpu_s, memory_bytes, run_child, start_child

READERS_PER_PARTITION = 4  # a hub accepts five per partition and consumer group
BODY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    rounds: int
    readers: int
    idle_s: float
    partitions: tuple[int, ...]
    events: int  # over all partitions


FULL = Plan(rounds=3, readers=1000, idle_s=10.0, partitions=(1, 16, 256), events=102_400)
QUICK = Plan(rounds=1, readers=40, idle_s=1.0, partitions=(1, 16), events=6_400)


class Readers(NamedTuple):
    """The cost of all readers."""

    open_s: float
    bytes: int
    idle_percent: float


def attached(plan: Plan, clients: int) -> Readers:
    with start_child("_hub", 1, plan.readers // READERS_PER_PARTITION) as hub:
        cpu, memory = cpu_s(hub.pid), memory_bytes(hub.pid)
        with start_child("_connections", hub.result["connection"], plan.readers, clients):
            opened_s, grown = cpu_s(hub.pid) - cpu, memory_bytes(hub.pid) - memory
            idle, began = cpu_s(hub.pid), time.monotonic()
            time.sleep(plan.idle_s)
            share = (cpu_s(hub.pid) - idle) / (time.monotonic() - began)
    return Readers(opened_s, grown, 100 * share)


def reader_figures(plan: Plan) -> Iterator[Figure]:
    sides = {
        "a connection": partial(attached, plan, plan.readers),
        "a reader": partial(attached, plan, 1),
    }
    for name, costs in alternate(plan.rounds, sides).items():
        open_s, size, idle_percent = (median(values) for values in zip(*costs, strict=True))
        count = plan.readers
        yield Figure(f"{name}: to open", round(open_s / count * 1e3, 3), "cpu-ms")
        yield Figure(f"{name}: memory", round(size / count / 1024, 1), "KiB")
        yield Figure(f"{name}: {count:,} of them idle", round(idle_percent, 2), "cpu-%")


def intake_us(plan: Plan, partitions: int) -> float:
    """CPU microseconds of the hub per event that it takes in."""
    events = plan.events // partitions
    with start_child("_hub", 1, partitions) as hub:
        before = cpu_s(hub.pid)
        run_child("_processor", "fill", hub.result["connection"], events, BODY_BYTES)
        return (cpu_s(hub.pid) - before) / (events * partitions) * 1e6


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    yield from reader_figures(plan)
    sides = {f"{count} partitions": partial(intake_us, plan, count) for count in plan.partitions}
    for name, rounds in alternate(plan.rounds, sides).items():
        yield Figure(f"hub takes in 1 KiB, {name}", round(median(rounds), 2), "cpu-us/event")


if __name__ == "__main__":
    sys.exit(run(measure))
