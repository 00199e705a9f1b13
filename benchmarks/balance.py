"""Balancing: time until even, and partitions moved

Real processor cycles with the default strategy (`steady`) run against the unchanged balancer of
azure-eventhub with its default strategy (`greedy`). Both run on a virtual clock with a store in
memory, so only the intervals between cycles count. A cycle is the interval of each side: 10 s for
Pumphouse, 30 to 36 s for the peer. A fleet is even when all partitions are owned and the numbers
of partitions of two hosts differ by at most one.

- **1 -> 2 hosts**: one host owns all partitions, and a second one starts at a random time. Half of
  the partitions have to move; every further move is unnecessary.
- **1 -> 16 hosts**: the spread of the fleet when nothing moves any more.
- **from cold**: eight hosts start within half a second. No partition has to move.
- **a plan**: the CPU time of one decision of one host for 10,000 partitions and 1,000 hosts, from a
  listing to the list of claims. The peer decides less: it does not compute the shares of others.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from benchmarks._balancing import COLD, FAN_OUT, JOIN, Outcome, Scenario, Side, ours, simulate
from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._official_balancer import OFFICIAL, official, one_decision
from pumphouse.leases.census import take_census
from pumphouse.leases.model import Listing, Member, Ownership
from pumphouse.leases.strategies import STEADY

PEER = f"{OFFICIAL} greedy"
CYCLES_MAX = 60.0  # the peer never gets even in 1 -> 16: it stops moving earlier
PARTITIONS, HOSTS = 10_000, 1_000
PLAN_GOAL_MS = 100
LEASE_S = 30.0


class Goals(NamedTuple):
    """Upper limits; None where there is no goal."""

    cycles: float | None = None
    moves: int | None = None
    spread: int | None = None
    times_faster: float | None = None


SCENARIOS = {
    JOIN: Goals(cycles=2, moves=16, times_faster=8),
    FAN_OUT: Goals(spread=1),
    COLD: Goals(cycles=3, moves=0, times_faster=10),
}


# -- scenarios ------------------------------------------------------------------------------------


def measure(quick: bool) -> Iterator[Figure]:
    rounds = 3 if quick else 25
    for scenario, goals in SCENARIOS.items():
        yield from scenario_figures(scenario, goals, rounds)
    yield from plan_figures(3 if quick else 7)


def scenario_figures(scenario: Scenario, goals: Goals, rounds: int) -> Iterator[Figure]:
    sides = {
        f"steady, {scenario.name}": simulation_of(partial(ours, STEADY), scenario),
        f"{PEER}, {scenario.name}": simulation_of(partial(official, "greedy"), scenario),
    }
    steady, peer = alternate(rounds, sides).values()
    yield from limits(scenario, goals, steady)
    if goals.spread is None:
        yield against(scenario, "cycles", steady, peer, goals.times_faster)
        yield against(scenario, "seconds", steady, peer)
    else:
        yield against(scenario, "spread", steady, peer)


def simulation_of(
    side: Callable[[Scenario, Random], Side], scenario: Scenario
) -> Callable[[], Outcome]:
    """Simulate the scenario with another seed every time; both sides get the same seeds."""
    seeds = iter(range(1_000_000))

    def run_next() -> Outcome:
        seed = next(seeds)
        return simulate(scenario, side(scenario, Random(seed)), Random(seed), CYCLES_MAX)

    return run_next


def limits(scenario: Scenario, goals: Goals, outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """The goals must hold in the worst round, not in the median one."""
    for name, unit in (("cycles", "cycles"), ("moves", "moves"), ("spread", "partitions")):
        if (goal := getattr(goals, name)) is not None:
            worst = max(float(getattr(outcome, name)) for outcome in outcomes)
            yield Figure(
                f"{scenario.name}: {TITLES[name]}, worst of {len(outcomes)}",
                round(worst, 2),
                unit,
                goal=goal,
                lower_is_better=True,
                rounds=len(outcomes),
            )


TITLES = {
    "cycles": "cycles until even",
    "seconds": "seconds until even, default intervals",
    "moves": "moves",
    "spread": "spread in the end",
}


def against(
    scenario: Scenario,
    name: str,
    steady: Sequence[Outcome],
    peer: Sequence[Outcome],
    goal: float | None = None,
) -> Figure:
    return compare(
        f"{scenario.name}: {TITLES[name]} vs {PEER}",
        {"cycles": "cycles", "seconds": "s", "spread": "partitions"}[name],
        [float(getattr(outcome, name)) for outcome in steady],
        [float(getattr(outcome, name)) for outcome in peer],
        goal=goal,
        lower_is_better=True,
    )


# -- plans ----------------------------------------------------------------------------------------


def owner_of(partition: int) -> str:
    """All hosts but the last one own ten or eleven partitions each."""
    return f"host-{partition % (HOSTS - 1):04}"


STATES: dict[str, Callable[[int], str]] = {
    "a newcomer to a full fleet": owner_of,
    "everything free": lambda partition: "",
    "a tenth of it free": lambda partition: "" if partition % 10 == 0 else owner_of(partition),
}
ME = f"host-{HOSTS - 1:04}"
NAMES = [str(n) for n in range(PARTITIONS)]


def plan_figures(rounds: int) -> Iterator[Figure]:
    slowest = 0.0
    for state, owner in STATES.items():
        name = f"a plan, {state}"
        sides = {
            f"steady, {name}": partial(our_plan_ms, owner),
            f"{PEER}, {name}": partial(their_plan_ms, owner),
        }
        steady, peer = alternate(rounds, sides).values()
        figure = compare(f"{name} vs {PEER}", "cpu-ms", steady, peer, lower_is_better=True)
        slowest = max(slowest, figure.ours)
        yield figure
    yield Figure(
        f"a plan for {PARTITIONS:,} partitions and {HOSTS:,} hosts, the slowest of these",
        slowest,
        "cpu-ms",
        goal=PLAN_GOAL_MS,
        lower_is_better=True,
        rounds=rounds,
    )


def our_plan_ms(owner: Callable[[int], str]) -> float:
    rows = tuple(Ownership(str(n), owner(n), 1, "etag") for n in range(PARTITIONS))
    listing = Listing(rows, tuple(Member(f"host-{n:04}") for n in range(HOSTS)))
    return cpu_ms(lambda: STEADY(take_census(ME, NAMES, listing, LEASE_S), Random(1)))


def their_plan_ms(owner: Callable[[int], str]) -> float:
    return cpu_ms(one_decision(ME, {str(n): owner(n) for n in range(PARTITIONS)}))


def cpu_ms(work: Callable[[], Any]) -> float:
    started = time.process_time()
    assert work()
    return 1000 * (time.process_time() - started)


if __name__ == "__main__":
    sys.exit(run(measure))
