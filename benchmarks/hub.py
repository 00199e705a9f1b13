"""CPU cost of the hub, compared with the official client

The hub and its client run in separate processes. The figure is the number of events per second of
CPU time of each process. The hub's number divided by the client's number is how many such clients
one core of the hub can serve. The peer is the synchronous azure-eventhub client with a prefetch of
3000, which is its fastest mode. It reads with `receive_batch` and sends full batches of 1 MiB,
built event by event.

- **sends**: the client reads a filled partition; both processes are measured over the same events.
  The goals are for this exchange. The client grants credit for 3000 events at a time, so the hub
  sends in portions.
- **sends at full speed**: a reader that only counts frames reads the same events and grants all
  credit at once. At 1 KiB, copying the bytes is the limit.
- **takes in**: the client builds batches and sends them; both are measured over the same events.
  The hub's own goal is 700,000 events of 1 KiB.
- **takes in single events**: CPU time of the hub per event of 100 B that a client sends by itself,
  not in a batch, with 20 or 1 of them without an outcome. The goal is at most 12 us with 20.
- **metrics**: CPU time of the hub per event of 1 KiB that it takes in from the native client, and
  per event that it sends to the reader that only counts, while metrics are recorded. The peer is
  the same hub without. A goal of 0.98 means: at most 2 % more. The hub without metrics is measured
  twice: how much both differ is the noise. The cheapest round of each side counts. `--metrics`
  measures only this.
- **idle**: 1,000 hubs of 32 partitions each, without connections.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any, NamedTuple

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
from benchmarks._processes import cpu_s, memory_bytes, run_child, start_child
from benchmarks._sdk import PREFETCH

SDK = "azure-eventhub"
SIZES = {"1 KiB": 1024, "100 B": 100}
SEND_GOALS = {"1 KiB": 25, "100 B": 40}
INTAKE_GOAL = 8
INTAKE_RATES = {"1 KiB": 700_000}  # events per CPU second of the hub
SINGLE_GOAL_US, SINGLE_BYTES = 12, 100
IN_FLIGHT = (20, 1)  # single events without an outcome
IDLE_GOAL_PERCENT = 1
IDLE_HUBS, IDLE_PARTITIONS = 1000, 32


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work."""

    rounds: int
    decode_events: int  # a multiple of the client's window, so that the last one is used up
    passes: int  # of the reader that only counts
    send_events: int
    single_events: int
    metered_events: int
    metered_rounds: int
    idle_s: float
    timeout_s: float  # of any step


FULL = Plan(
    rounds=5,
    decode_events=90_000,
    passes=5,
    send_events=50_000,
    single_events=20_000,
    metered_events=200_000,
    metered_rounds=7,
    idle_s=10.0,
    timeout_s=120.0,
)
QUICK = Plan(
    rounds=1,
    decode_events=15_000,
    passes=2,
    send_events=8_000,
    single_events=2_000,
    metered_events=30_000,
    metered_rounds=1,
    idle_s=1.0,
    timeout_s=120.0,
)


class Rates(NamedTuple):
    """Events per CPU second of both sides of one exchange."""

    hub: float
    client: float


class Exchanges(NamedTuple):
    """The results of one round for one event size."""

    sends: Rates
    full_speed: float  # of the hub alone
    takes_in: Rates


class Idle(NamedTuple):
    cpu_percent: float
    memory_mib: float
    start_s: float


def rates(result: dict[str, Any]) -> Rates:
    return Rates(result["events"] / result["hub_s"], result["events"] / result["client_s"])


def exchange(size: int, plan: Plan) -> Exchanges:
    """Fill a new hub, read it in both ways, and send to it."""
    with start_child("_hub", 1, 1) as hub:
        connection = hub.result["connection"]

        def sdk(task: str, events: int) -> dict[str, Any]:
            return run_child(
                "_sdk", task, connection, hub.pid, size, events, timeout_s=plan.timeout_s
            )

        filled = plan.decode_events + PREFETCH
        sdk("fill", filled)
        read = sdk("read", plan.decode_events)
        counted = run_child(
            "_frame_counter", connection, hub.pid, filled, plan.passes, timeout_s=plan.timeout_s
        )
        sent = sdk("send", plan.send_events)
    return Exchanges(rates(read), counted["events"] / counted["hub_s"], rates(sent))


def single_us(plan: Plan, in_flight: int) -> float:
    """CPU microseconds of the hub per event that is sent by itself."""
    with start_child("_hub", 1, 1) as hub:
        connection, events = hub.result["connection"], plan.single_events
        result = run_child(
            "_producer", connection, hub.pid, events, 1, SINGLE_BYTES, in_flight,
            timeout_s=plan.timeout_s,
        )  # fmt: skip
    return float(result["hub_s"] / result["events"] * 1e6)


def single_figures(plan: Plan) -> Iterator[Figure]:
    sides = {f"single events, {count} in flight": partial(single_us, plan, count)
             for count in IN_FLIGHT}  # fmt: skip
    for count, costs in zip(IN_FLIGHT, alternate(plan.rounds, sides).values(), strict=True):
        yield Figure(
            f"hub takes in single events, {count} in flight",
            round(median(costs), 2),
            "cpu-us/event",
            goal=SINGLE_GOAL_US if count > 1 else None,
            lower_is_better=True,
        )


def metered(plan: Plan, metrics: str) -> tuple[float, float]:
    """CPU microseconds per event that a new hub takes in, and that it sends."""
    events, memory = plan.metered_events, ("", "memory", 1 << 30)
    with start_child("_hub", 1, 1, *memory, metrics) as hub:
        connection, before = hub.result["connection"], cpu_s(hub.pid)
        run_child("_processor", "fill", connection, events, 1024, timeout_s=plan.timeout_s)
        taken_s = cpu_s(hub.pid) - before
        counted = run_child(
            "_frame_counter", connection, hub.pid, events, plan.passes, timeout_s=plan.timeout_s
        )
    return taken_s / events * 1e6, counted["hub_s"] / counted["events"] * 1e6


def metrics_figures(plan: Plan, rounds: int) -> Iterator[Figure]:
    sides = metrics_sides(lambda metrics: metered(plan, "metrics" if metrics else ""))
    results = alternate(rounds, sides).values()
    for index, name in enumerate(("takes in", "sends")):
        costs = [[cost[index] for cost in side] for side in results]
        yield from compare_metrics(f"hub {name} 1 KiB", "cpu-us/event", costs)


def idle(plan: Plan) -> Idle:
    """Leave many hubs alone, and look at what they cost."""
    with start_child("_hub", IDLE_HUBS, IDLE_PARTITIONS) as hub:
        time.sleep(1.0)  # the last of the start-up
        start, began = cpu_s(hub.pid), time.monotonic()
        time.sleep(plan.idle_s)
        share = (cpu_s(hub.pid) - start) / (time.monotonic() - began)
        return Idle(100 * share, memory_bytes(hub.pid) / 2**20, hub.result["start_s"])


def measure(quick: bool) -> Iterator[Figure]:
    plan = QUICK if quick else FULL
    sides = {f"{name} events": partial(exchange, size, plan) for name, size in SIZES.items()}
    results = alternate(plan.rounds, sides)
    for name, rounds in zip(SIZES, results.values(), strict=True):
        yield from exchange_figures(name, rounds)
    yield from single_figures(plan)
    yield from metrics_figures(plan, plan.metered_rounds)
    progress(f"idle: {IDLE_HUBS} hubs x {IDLE_PARTITIONS} partitions")
    yield from idle_figures(idle(plan))


def exchange_figures(name: str, rounds: list[Exchanges]) -> Iterator[Figure]:
    receives = [each.sends.client for each in rounds]
    yield compare(
        f"hub sends {name} vs {SDK} sync receives",
        EVENTS_PER_CPU_S,
        [each.sends.hub for each in rounds],
        receives,
        goal=SEND_GOALS[name],
    )
    yield compare(
        f"hub sends {name} at full speed vs {SDK} sync receives",
        EVENTS_PER_CPU_S,
        [each.full_speed for each in rounds],
        receives,
    )
    yield compare(
        f"hub takes in {name} batches vs {SDK} sync builds and sends",
        EVENTS_PER_CPU_S,
        [each.takes_in.hub for each in rounds],
        [each.takes_in.client for each in rounds],
        goal=INTAKE_GOAL,
    )
    if name in INTAKE_RATES:
        taken = [each.takes_in.hub for each in rounds]
        goal = INTAKE_RATES[name]
        yield compare(f"hub takes in {name} batches", EVENTS_PER_CPU_S, taken, goal=goal)


def idle_figures(measured: Idle) -> Iterator[Figure]:
    hubs = f"{IDLE_HUBS:,} hubs x {IDLE_PARTITIONS} partitions"
    yield Figure(
        f"idle: {hubs}, share of a core",
        round(measured.cpu_percent, 3),
        "cpu-%",
        goal=IDLE_GOAL_PERCENT,
        lower_is_better=True,
    )
    yield Figure(f"{hubs}, memory", round(measured.memory_mib), "MiB", lower_is_better=True)
    yield Figure(f"{hubs}, start-up", round(measured.start_s, 3), "s", lower_is_better=True)


if __name__ == "__main__":
    sys.exit(run(measure, metrics=partial(metrics_figures, FULL)))
