"""Reading events one by one: cost and delay

The native asyncio client is compared with the asyncio client of azure-eventhub, which reads with
`receive_batch`, its recommended method. Both have the same prefetch, deliver batches of up to that
many events, and their handlers read all fields of an event. The official client fills the
partition; each event has a partition key and two properties, a text and a number of varying size.

- **reads**: events per second of CPU time of the reader's process. The official client's default
  prefetch is 300; with 3000 it is at its fastest. The goal is a ratio of 10 for each.
- **reads body and key**: the same with a handler that reads only these two. Pumphouse then leaves
  the other fields encoded. The goal is 600,000 events of 1 KiB.
- **delay**: a third process sends 20 events per second, one at a time. The delay is the time from
  just before an event is sent until the handler has it. The goal is to be no later than the peer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any, NamedTuple

from benchmarks._figures import EVENTS_PER_CPU_S, Figure, alternate, compare, progress, run
from benchmarks._processes import run_child, start_child

SDK = "azure-eventhub aio"
COST_GOAL, DELAY_GOAL = 10, 1
KEY_GOALS = {"1 KiB": 600_000}  # events per CPU second whose body and key are read
SIZES = {"1 KiB": 1024, "100 B": 100}
USUAL, FAST = 300, 3000  # prefetch: the default of the official client, and its fastest
RATE = 20  # events per second, where the delay is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    rounds: int
    prefetches: dict[str, tuple[int, ...]]  # by the size of events
    events: int  # in the partition; the native client reads all of them
    sdk_events: int
    delays: int
    timeout_s: float


FULL = Plan(
    rounds=5,
    prefetches={"1 KiB": (USUAL, FAST), "100 B": (USUAL, FAST)},
    events=120_000,
    sdk_events=24_000,
    delays=200,
    timeout_s=120.0,
)
QUICK = Plan(
    rounds=1,
    prefetches={"100 B": (FAST,)},
    events=45_000,
    sdk_events=6_000,
    delays=40,
    timeout_s=60.0,
)


class Delay(NamedTuple):
    """The delays of one round, in milliseconds."""

    p50: float
    p99: float


def ask(plan: Plan, *arguments: object) -> dict[str, Any]:
    return run_child("_reader", *arguments, timeout_s=plan.timeout_s)


def rate(task: str, connection: str, events: int, prefetch: int, plan: Plan) -> float:
    result = ask(plan, task, connection, events, prefetch)
    return float(result["events"] / result["client_s"])


def delay(task: str, plan: Plan) -> Delay:
    with start_child("_hub", 1, 1) as hub:
        result = ask(plan, task, hub.result["connection"], plan.delays, RATE)
    cuts = quantiles(result["delays_ms"], n=100)
    return Delay(cuts[49], cuts[98])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    for name in plan.prefetches:
        yield from cost_figures(name, SIZES[name], plan)
    yield from delay_figures(plan)


def cost_figures(name: str, size: int, plan: Plan) -> Iterator[Figure]:
    with ExitStack() as stack:
        progress(f"filling a hub: {name}")
        connection = stack.enter_context(start_child("_hub", 1, 1)).result["connection"]
        events = plan.events + 2 * FAST
        run_child("_ranges", "fill", connection, size, 1, events, timeout_s=plan.timeout_s)
        for prefetch in plan.prefetches[name]:
            case = f"{name}, prefetch {prefetch}"
            yield cost_figure("reads", case, "", connection, prefetch, plan)
        both = cost_figure("reads body and key", case, "-key", connection, prefetch, plan)
        yield both
        if name in KEY_GOALS:
            figure = f"reads body and key {case}"
            yield Figure(figure, both.ours, EVENTS_PER_CPU_S, goal=KEY_GOALS[name])


def cost_figure(
    title: str, case: str, task: str, connection: str, prefetch: int, plan: Plan
) -> Figure:
    sides = {
        f"ours{task}, {case}": partial(
            rate, f"ours{task}", connection, plan.events, prefetch, plan
        ),
        f"{SDK}{task}, {case}": partial(
            rate, f"sdk{task}", connection, plan.sdk_events, prefetch, plan
        ),
    }
    ours, peer = alternate(plan.rounds, sides).values()
    return compare(f"{title} {case} vs {SDK}", EVENTS_PER_CPU_S, ours, peer, goal=COST_GOAL)


def delay_figures(plan: Plan) -> Iterator[Figure]:
    sides = {
        "ours, delay": partial(delay, "ours-delay", plan),
        f"{SDK}, delay": partial(delay, "sdk-delay", plan),
    }
    ours, peer = alternate(plan.rounds, sides).values()
    for quantile in Delay._fields:
        yield compare(
            f"{quantile} delay at {RATE} events/s vs {SDK}",
            "ms",
            [getattr(delays, quantile) for delays in ours],
            [getattr(delays, quantile) for delays in peer],
            goal=DELAY_GOAL,
            lower_is_better=True,
        )


if __name__ == "__main__":
    sys.exit(run(measure))
