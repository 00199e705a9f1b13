"""Several handlers per partition: the effect, and what it costs

The hub has one partition. Every event of 100 B has a partition key, and 25 events of a key follow
each other. The processor has a store in memory and writes no checkpoints. The peer is the same
processor with one handler per partition, in the same run.

- **handler that waits**: events per second of time, from the first handled event on. The handler
  waits 20 ms with each event. With 16 handlers at once 16 times the rate is possible; the goal is
  12. Without partition keys, events have no order.
- **handler that does nothing**: CPU time per event of the process. The goal is at most 2
  microseconds above one handler per partition, for every number of keys. Without keys, a handler
  that is this quick gets calls of up to 64 events.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks._figures import Figure, alternate, compare, progress, run
from benchmarks._processes import run_child, start_child
from benchmarks._processor import WARM_EVENTS

HANDLERS = 16
RATIO_GOAL, ADDED_GOAL_US = 12, 2
KEYS = (16, 64, 1000)
NO_KEYS = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    keys: tuple[int, ...]
    rounds: int
    waits: int  # events with one handler; with several, as many times more
    events: int


FULL = Plan(keys=(*KEYS, NO_KEYS), rounds=3, waits=100, events=100_000)
QUICK = Plan(keys=(16, NO_KEYS), rounds=1, waits=50, events=30_000)


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    for keys in plan.keys:
        name = f"{keys} keys" if keys else "no keys"
        progress(f"filling a hub: {name}")
        with start_child("_hub", 1, 1) as hub:
            connection = hub.result["connection"]
            filled = plan.events + 2 * WARM_EVENTS
            run_child("_concurrency", "fill", connection, filled, keys)
            yield waiting(name, connection, plan)
            yield from cost(name, connection, plan)


def rate(connection: str, plan: Plan, handlers: int) -> float:
    """Events per second, of a handler that waits."""
    events = plan.waits * handlers
    return float(run_child("_concurrency", "wait", connection, events, handlers)["rate"])


def cost_us(connection: str, plan: Plan, handlers: int) -> float:
    """CPU microseconds per event, of a handler that does nothing."""
    result = run_child("_concurrency", "spin", connection, plan.events, handlers)
    return float(result["client_s"] / result["events"]) * 1e6


def waiting(name: str, connection: str, plan: Plan) -> Figure:
    sides = {
        f"waits, {name}, {handlers} at once": partial(rate, connection, plan, handlers)
        for handlers in (HANDLERS, 1)
    }
    figure = f"a handler that waits 20 ms, {name}, concurrency={HANDLERS} vs 1"
    return compare(figure, "events/s", *alternate(plan.rounds, sides).values(), goal=RATIO_GOAL)


def cost(name: str, connection: str, plan: Plan) -> Iterator[Figure]:
    sides = {
        f"does nothing, {name}, {handlers} at once": partial(cost_us, connection, plan, handlers)
        for handlers in (HANDLERS, 1)
    }
    several, one = alternate(plan.rounds, sides).values()
    figure = f"a handler that does nothing, {name}, concurrency={HANDLERS}"
    unit = "cpu-us/event"
    yield compare(f"{figure} vs 1", unit, several, one, lower_is_better=True)
    added = [max(0.0, many - serial) for many, serial in zip(several, one, strict=True)]
    yield compare(f"{figure}, added", unit, added, goal=ADDED_GOAL_US, lower_is_better=True)


if __name__ == "__main__":
    sys.exit(run(measure))
