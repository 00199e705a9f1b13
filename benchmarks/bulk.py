"""What does it cost to read a range of events into Arrow?

A partition is filled by the official client. Then it is read in turns by our range reader and by
azure-eventhub, synchronous, with a prefetch of 3000, which is its fastest way. Both make the same
record batches: body, sequence number, offset, enqueued time, partition key, and the properties as a
map of text. Batches are dropped as soon as they are made. What counts are events per second of CPU
time of the reader's process.

- **key and 2 properties**: each event has a partition key and two properties, a text and a number
  of varying size, which both readers decode. The goal of 40 is for this at 1 KiB.
- **plain**: events that are nothing but a body.
- **vs the bytes alone**: the same number of bytes received over loopback and not looked at. No
  reader can reach it; the ratio says what share of our time is spent on receiving.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from benchmarks._figures import EVENTS_PER_CPU_S, Figure, alternate, compare, run, say
from benchmarks._processes import answer, waiting
from benchmarks._sdk import PREFETCH

SDK = "azure-eventhub sync"
GOAL = 40


class Shape(NamedTuple):
    """Which events are read."""

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
    """How much to do."""

    rounds: int
    events: int  # in the partition, read by us `passes` times
    passes: int
    sdk_events: int  # a multiple of the client's window, so that the last one is used up
    answer_s: float


FULL = Plan(rounds=5, events=100_000, passes=10, sdk_events=60_000, answer_s=120.0)
QUICK = Plan(rounds=1, events=30_000, passes=10, sdk_events=9_000, answer_s=120.0)


class Filled(NamedTuple):
    """A hub with events in it."""

    connection: str
    events: int
    size: int  # in bytes


def fill(shape: Shape, plan: Plan, stack: ExitStack) -> Filled:
    say(f"filling a hub: {shape.name}")
    hub = stack.enter_context(waiting("_hub", 1, 1))
    connection = hub.said["connection"]
    wanted = max(plan.events, plan.sdk_events + PREFETCH)
    said = ask(plan, "fill", connection, shape.size, int(shape.dressed), wanted)
    return Filled(connection, said["events"], said["bytes"])


def ask(plan: Plan, *arguments: object) -> dict[str, Any]:
    return answer("_ranges", *arguments, timeout_s=plan.answer_s)


def rate(said: dict[str, Any]) -> float:
    return float(said["events"] / said["client_s"])


def ours(filled: Filled, plan: Plan) -> float:
    return rate(ask(plan, "bulk", filled.connection, plan.events, plan.passes))


def sdk(filled: Filled, plan: Plan) -> float:
    return rate(ask(plan, "sdk", filled.connection, plan.sdk_events))


def bytes_alone(filled: Filled, plan: Plan) -> float:
    said = ask(plan, "count", filled.size, plan.passes)
    return filled.events * plan.passes / float(said["client_s"])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    shapes = SHAPES[::2] if quick else SHAPES
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
        found, official, limit = alternate(plan.rounds, sides).values()
    goal = GOAL if shape is SHAPES[0] else None
    yield compare(f"bulk {shape.name} vs {SDK}", EVENTS_PER_CPU_S, found, official, goal=goal)
    yield compare(f"bulk {shape.name} vs the bytes alone", EVENTS_PER_CPU_S, found, limit)


if __name__ == "__main__":
    sys.exit(run(measure))
