"""What does it cost to read events one by one, and how soon are they there?

Our asyncio client beside azure-eventhub's, which reads with `receive_batch`, its recommended way.
Both have the same prefetch, hand over batches of up to that many events, and their handlers look at
all that an event has. A partition is filled by the official client; each event has a partition key
and two properties, a text and a number of varying size.

- **reads**: events per second of CPU time of the reader's process. The official client's default
  prefetch is 300; with 3000 it is at its fastest. The goal is a ratio of 10 for each.
- **delay**: at 20 events per second, sent one at a time by a third process, the time from just
  before an event is sent until the handler has it. The goal is to be no later than the peer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from statistics import quantiles
from typing import Any, NamedTuple

from benchmarks._figures import EVENTS_PER_CPU_S, Figure, alternate, compare, run, say
from benchmarks._processes import answer, waiting

SDK = "azure-eventhub aio"
COST_GOAL, DELAY_GOAL = 10, 1
SIZES = {"1 KiB": 1024, "100 B": 100}
USUAL, FAST = 300, 3000  # prefetch: the official client's default, and where it is fastest
RATE = 20  # events per second, where the delay is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to do."""

    rounds: int
    prefetches: dict[str, tuple[int, ...]]  # by the size of events
    events: int  # in the partition, all of which we read
    sdk_events: int
    delays: int
    answer_s: float


FULL = Plan(
    rounds=5,
    prefetches={"1 KiB": (USUAL, FAST), "100 B": (USUAL, FAST)},
    events=120_000,
    sdk_events=24_000,
    delays=200,
    answer_s=120.0,
)
QUICK = Plan(
    rounds=1,
    prefetches={"1 KiB": (USUAL,), "100 B": (FAST,)},
    events=45_000,
    sdk_events=6_000,
    delays=40,
    answer_s=60.0,
)


class Delay(NamedTuple):
    """Of one round, in milliseconds."""

    p50: float
    p99: float


def ask(plan: Plan, *arguments: object) -> dict[str, Any]:
    return answer("_reader", *arguments, timeout_s=plan.answer_s)


def rate(task: str, connection: str, events: int, prefetch: int, plan: Plan) -> float:
    said = ask(plan, task, connection, events, prefetch)
    return float(said["events"] / said["client_s"])


def delay(task: str, plan: Plan) -> Delay:
    with waiting("_hub", 1, 1) as hub:
        said = ask(plan, task, hub.said["connection"], plan.delays, RATE)
    cuts = quantiles(said["delays_ms"], n=100)
    return Delay(cuts[49], cuts[98])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    for name, size in SIZES.items():
        yield from cost_figures(name, size, plan)
    yield from delay_figures(plan)


def cost_figures(name: str, size: int, plan: Plan) -> Iterator[Figure]:
    with ExitStack() as stack:
        say(f"filling a hub: {name}")
        connection = stack.enter_context(waiting("_hub", 1, 1)).said["connection"]
        wanted = plan.events + 2 * FAST
        answer("_ranges", "fill", connection, size, 1, wanted, timeout_s=plan.answer_s)
        for prefetch in plan.prefetches[name]:
            what = f"{name}, prefetch {prefetch}"
            sides = {
                f"ours, {what}": partial(rate, "ours", connection, plan.events, prefetch, plan),
                f"{SDK}, {what}": partial(rate, "sdk", connection, plan.sdk_events, prefetch, plan),
            }
            ours, peer = alternate(plan.rounds, sides).values()
            title = f"reads {what} vs {SDK}"
            yield compare(title, EVENTS_PER_CPU_S, ours, peer, goal=COST_GOAL)


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
            [getattr(found, quantile) for found in ours],
            [getattr(found, quantile) for found in peer],
            goal=DELAY_GOAL,
            lower_is_better=True,
        )


if __name__ == "__main__":
    sys.exit(run(measure))
