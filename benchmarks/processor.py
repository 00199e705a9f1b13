"""The cost of processing with leases and checkpoints

One host owns all four partitions of a filled hub and passes batches to a handler that only counts.
The peer is the asyncio consumer client of azure-eventhub with its own blob checkpoint store. Both
sides keep leases and checkpoints in Blob Storage (Azurite), with the same prefetch and a checkpoint
per partition about every 1,000 events.

- **end to end**: events per second of CPU time of the consumer's process. The goal is a ratio of
  14 at 1 KiB and 10 at 100 B.
- **metrics**: CPU time per event of the processor with a handler that does nothing and a store in
  memory, while metrics are recorded. The peer is the same without. A goal of 0.98 means: at most
  2 % more. The processor without metrics is measured twice: how much both differ is the noise. The
  cheapest round of each side counts. `--metrics` measures only metrics, and what they add to one
  call of `receive` and of a handler: a host makes both once per batch.
- **traces**: the same with OpenTelemetry's TracerProvider and its batch processor, whose exporter
  sends nothing, while all calls, 1 % or none are sampled. Every event carries the context of its
  producer. Both spans of a batch, `receive` and `process`, link to the contexts of its first 128
  events, so traces cost less per event the larger the batches are.
- **added**: CPU time per event that the processor adds to the bare reader, with a handler that does
  nothing and a store in memory. The goal is at most 5 microseconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks._figures import (
    EVENTS_PER_CPU_S,
    Figure,
    alternate,
    compare,
    compare_metrics,
    metrics_sides,
    progress,
    run,
)
from benchmarks._processes import run_child, start_child

SDK = "azure-eventhub aio with its blob store"
RATIO_GOALS = {"1 KiB": 14, "100 B": 10}
ADDED_GOAL_US = 5
CALL_GOAL_US = 1.5  # both calls together are less than 2 % of a batch of 40 events
PARTITIONS, PREFETCH = 4, 300
SPARE_EVENTS = 10_000  # more than a side reads during its warm-up
SIZES = {"1 KiB": 1024, "100 B": 100}


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    rounds: int
    observed_rounds: int
    events: int
    sdk_events: int
    timeout_s: float


FULL = Plan(rounds=5, observed_rounds=7, events=120_000, sdk_events=24_000, timeout_s=120.0)
QUICK = Plan(rounds=1, observed_rounds=1, events=40_000, sdk_events=6_000, timeout_s=60.0)


def cost_s(side: str, plan: Plan, events: int, connection: str, *more: str) -> float:
    """CPU seconds per event."""
    timeout_s = plan.timeout_s
    result = run_child("_processor", side, connection, events, PREFETCH, *more, timeout_s=timeout_s)
    return float(result["client_s"] / result["events"])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    with start_child("_processor", "azurite") as azurite:
        for name, size in list(SIZES.items())[: 1 if quick else None]:
            yield from figures(name, size, azurite.result["storage"], plan)


def figures(name: str, size: int, storage: str, plan: Plan) -> Iterator[Figure]:
    with filled_hub(name, size, plan) as connection:
        sides = {
            f"ours, {name}": partial(cost_s, "ours", plan, plan.events, connection, storage),
            f"{SDK}, {name}": partial(cost_s, "sdk", plan, plan.sdk_events, connection, storage),
            f"the engine, {name}": partial(cost_s, "engine", plan, plan.events, connection),
            f"our bare reader, {name}": partial(cost_s, "bare", plan, plan.events, connection),
        }
        ours, peer, engine, bare = alternate(plan.rounds, sides).values()
        yield from metrics_figures(name, connection, plan, plan.observed_rounds)
    yield from traces_figures(name, size, plan)
    yield compare(
        f"end to end {name}, prefetch {PREFETCH} vs {SDK}",
        EVENTS_PER_CPU_S,
        [1 / seconds for seconds in ours],
        [1 / seconds for seconds in peer],
        goal=RATIO_GOALS[name],
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


@contextmanager
def filled_hub(name: str, size: int, plan: Plan, *words: str) -> Iterator[str]:
    """The connection string of a hub with the events of the plan."""
    progress(f"filling a hub: {name}")
    with start_child("_hub", 1, PARTITIONS) as hub:
        connection: str = hub.result["connection"]
        events = (plan.events + SPARE_EVENTS) // PARTITIONS
        run_child("_processor", "fill", connection, events, size, *words, timeout_s=plan.timeout_s)
        yield connection


def traces_figures(name: str, size: int, plan: Plan) -> Iterator[Figure]:
    shares = {"all": "traces=1", "1 %": "traces=0.01", "none": "traces=0"}
    with filled_hub(f"{name}, with trace contexts", size, plan, "traced") as connection:
        engine = partial(cost_us, plan, connection)
        sides = {f"traces of {share}": partial(engine, word) for share, word in shares.items()}
        *costs, without = alternate(
            plan.observed_rounds, sides | {"without traces": partial(engine, "")}
        ).values()
    for share, cost in zip(shares, costs, strict=True):
        yield compare(
            f"the engine, {name}, with traces of {share} of the calls vs without",
            "cpu-us/event",
            cost,
            without,
            lower_is_better=True,
        )


def metrics_figures(name: str, connection: str, plan: Plan, rounds: int) -> Iterator[Figure]:
    sides = metrics_sides(lambda on: cost_us(plan, connection, "metrics" if on else ""))
    costs = alternate(rounds, sides).values()
    yield from compare_metrics(f"the engine, {name},", "cpu-us/event", costs)


def cost_us(plan: Plan, connection: str, observed: str) -> float:
    """CPU microseconds of the engine per event."""
    return cost_s("engine", plan, plan.events, connection, observed) * 1e6


def call_figures() -> Iterator[Figure]:
    """A host makes both calls once per batch."""
    result = run_child("_recorded_calls", timeout_s=FULL.timeout_s)
    for name in ("receive", "handler"):
        yield Figure(
            f"added to a call of {name} by metrics",
            round(result[f"{name}_us"], 2),
            "cpu-us/call",
            goal=CALL_GOAL_US,
            lower_is_better=True,
        )


def measure_metrics(rounds: int) -> Iterator[Figure]:
    yield from call_figures()
    for name, size in SIZES.items():
        with filled_hub(name, size, FULL) as connection:
            yield from metrics_figures(name, connection, FULL, rounds)


if __name__ == "__main__":
    sys.exit(run(measure, metrics=measure_metrics))
