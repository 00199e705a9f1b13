"""Reading a range of events into Arrow

The official client fills a partition. The range reader and the synchronous azure-eventhub client
with a prefetch of 3000, which is its fastest mode, read it in turns. Both make the same record
batches: body, sequence number, offset, enqueued time, partition key, and the properties as a map of
text. Batches are discarded at once. The figure is events per second of CPU time of the reader's
process.

- **key and 2 properties**: each event has a partition key and two properties, a text and a number
  of varying size, which both readers decode. The goal of 40 is for this case at 1 KiB.
- **plain**: events that have only a body.
- **vs the bytes alone**: a process receives the same number of bytes over loopback and discards
  them. This is an upper bound for every reader. The ratio is the share of the CPU time of the range
  reader that is spent on receiving bytes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks._figures import EVENTS_PER_CPU_S, Figure, alternate, compare, progress, run
from benchmarks._processes import run_child, start_child
from benchmarks._sdk import PREFETCH

SDK = "azure-eventhub sync"
GOAL = 40


class Shape(NamedTuple):
    """The kind of events that are read."""

    name: str
    size: int
    dressed: bool


SHAPES = (
    Shape("1 KiB, key and 2 properties", 1024, True),
    Shape("1 KiB, plain", 1024, False),
    Shape("100 B, key and 2 properties", 100, True),
    Shape("100 B, plain", 100, False),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    rounds: int
    events: int  # in the partition, read by us `passes` times
    passes: int
    sdk_events: int  # a multiple of the client's window, so that the last window is used up
    timeout_s: float


FULL = Plan(rounds=5, events=100_000, passes=10, sdk_events=60_000, timeout_s=120.0)
QUICK = Plan(rounds=1, events=30_000, passes=10, sdk_events=9_000, timeout_s=120.0)


class Filled(NamedTuple):
    """A hub with events in it."""

    connection: str
    events: int
    size: int  # in bytes


def fill(shape: Shape, plan: Plan, stack: ExitStack) -> Filled:
    progress(f"filling a hub: {shape.name}")
    hub = stack.enter_context(start_child("_hub", 1, 1))
    connection = hub.result["connection"]
    events = max(plan.events, plan.sdk_events + PREFETCH)
    result = ask(plan, "fill", connection, shape.size, int(shape.dressed), events)
    return Filled(connection, result["events"], result["bytes"])


def ask(plan: Plan, *arguments: object) -> dict[str, Any]:
    return run_child("_ranges", *arguments, timeout_s=plan.timeout_s)


def rate(result: dict[str, Any]) -> float:
    return float(result["events"] / result["client_s"])


def ours(filled: Filled, plan: Plan) -> float:
    return rate(ask(plan, "bulk", filled.connection, plan.events, plan.passes))


def sdk(filled: Filled, plan: Plan) -> float:
    return rate(ask(plan, "sdk", filled.connection, plan.sdk_events))


def bytes_alone(filled: Filled, plan: Plan) -> float:
    result = ask(plan, "count", filled.size, plan.passes)
    return filled.events * plan.passes / float(result["client_s"])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    shapes = SHAPES[:1] if quick else SHAPES
    for shape in shapes:
        yield from figures(shape, plan)


def figures(shape: Shape, plan: Plan) -> Iterator[Figure]:
    with ExitStack() as stack:
        filled = fill(shape, plan, stack)
        sides = {
            f"bulk, {shape.name}": partial(ours, filled, plan),
            f"{SDK}, {shape.name}": partial(sdk, filled, plan),
            f"bytes alone, {shape.name}": partial(bytes_alone, filled, plan),
        }
        bulk, official, limit = alternate(plan.rounds, sides).values()
    goal = GOAL if shape is SHAPES[0] else None
    yield compare(f"bulk {shape.name} vs {SDK}", EVENTS_PER_CPU_S, bulk, official, goal=goal)
    yield compare(f"bulk {shape.name} vs the bytes alone", EVENTS_PER_CPU_S, bulk, limit)


if __name__ == "__main__":
    sys.exit(run(measure))
