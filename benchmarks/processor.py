"""What does processing cost, with leases and checkpoints and all?

A hub of four partitions is filled; one host owns all of them and hands batches to a handler that
only counts. The peer is azure-eventhub's asyncio consumer client with its own blob checkpoint
store. Leases and checkpoints are in Blob storage (Azurite) on both sides, with the same prefetch
and a checkpoint per partition every 1,000 events or so.

- **end to end**: events per second of CPU time of the consumer's process. The goal is a ratio of
  10.
- **added**: CPU time per event that the processor adds to our bare reader, with a handler that does
  nothing and a store in memory. The goal is at most 5 microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks._figures import EVENTS_PER_CPU_S, Figure, alternate, compare, run, say
from benchmarks._processes import answer, waiting

SDK = "azure-eventhub aio with its blob store"
RATIO_GOAL, ADDED_GOAL_US = 10, 5
PARTITIONS, PREFETCH = 4, 300
SPARE_EVENTS = 10_000  # more than a side reads while it warms up
SIZES = {"1 KiB": 1024, "100 B": 100}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int
    events: int
    sdk_events: int
    answer_s: float


FULL = Plan(rounds=5, events=120_000, sdk_events=24_000, answer_s=120.0)
QUICK = Plan(rounds=1, events=40_000, sdk_events=6_000, answer_s=60.0)


def cost_s(side: str, plan: Plan, events: int, connection: str, *more: str) -> float:
    """CPU seconds per event."""
    said = answer("_processor", side, connection, events, PREFETCH, *more, timeout_s=plan.answer_s)
    return float(said["client_s"] / said["events"])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with waiting("_processor", "azurite") as azurite:
        for name, size in list(SIZES.items())[: 1 if quick else None]:
            yield from figures(name, size, azurite.said["storage"], plan)


def figures(name: str, size: int, storage: str, plan: Plan) -> Iterator[Figure]:
    with ExitStack() as stack:
        say(f"filling a hub: {name}")
        connection = stack.enter_context(waiting("_hub", 1, PARTITIONS)).said["connection"]
        wanted = (plan.events + SPARE_EVENTS) // PARTITIONS
        answer("_processor", "fill", connection, wanted, size, timeout_s=plan.answer_s)
        sides = {
            f"ours, {name}": partial(cost_s, "ours", plan, plan.events, connection, storage),
            f"{SDK}, {name}": partial(cost_s, "sdk", plan, plan.sdk_events, connection, storage),
            f"the engine, {name}": partial(cost_s, "engine", plan, plan.events, connection),
            f"our bare reader, {name}": partial(cost_s, "bare", plan, plan.events, connection),
        }
        ours, peer, engine, bare = alternate(plan.rounds, sides).values()
    yield compare(
        f"end to end {name}, prefetch {PREFETCH} vs {SDK}",
        EVENTS_PER_CPU_S,
        [1 / seconds for seconds in ours],
        [1 / seconds for seconds in peer],
        goal=RATIO_GOAL,
    )
    added = [
        max(0.0, (with_it - without) * 1e6) for with_it, without in zip(engine, bare, strict=True)
    ]
    yield compare(
        f"added to our bare reader, {name}",
        "cpu-us/event",
        added,
        goal=ADDED_GOAL_US,
        lower_is_better=True,
    )


if __name__ == "__main__":
    sys.exit(run(measure))
