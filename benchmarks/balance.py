"""How fast do hosts share partitions, and how much do they move to get there?

Ours are real cycles of processors with the default strategy (`steady`). The peer is the balancer
inside azure-eventhub, unchanged, with its default strategy (`greedy`). Both run on a virtual clock
with a store in memory: nothing takes time but waiting. A cycle is the interval of either (10 s
ours, 30 s and up to a fifth more the peer's); even means that everything is owned, by nobody two
partitions more than by another.

- **1 -> 2 hosts**: one host has all partitions, a second comes at any moment. Half of them have to
  move, whoever does it; moves beyond the fewest possible are disturbance for nothing.
- **1 -> 16 hosts**: how uneven the fleet still is when nothing moves any more.
- **from cold**: eight hosts start within half a second. Nothing would have to move at all.
- **a plan**: one decision of one host for 10,000 partitions and 1,000 hosts, from a listing to the
  list of claims, in CPU time. The peer decides less: it never looks at where others should end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple

from benchmarks._figures import Figure, alternate, compare, run
from benchmarks._fleet import COLD, FAN_OUT, JOIN, Played, Scene, Side, ours, play
from benchmarks._official import OFFICIAL, official, one_decision
from pumphouse.leases.census import take_census
from pumphouse.leases.model import Listing, Member, Ownership
from pumphouse.leases.strategies import STEADY

PEER = f"{OFFICIAL} greedy"
CYCLES_MAX = 60.0  # the peer's 1 -> 16 never gets even: it has stopped moving long before
PARTITIONS, HOSTS = 10_000, 1_000
PLAN_GOAL_MS = 100
LEASE_S = 30.0


class Goals(NamedTuple):
    """The most of each, where something was promised; None where nothing was."""

    cycles: float | None = None
    moves: int | None = None
    spread: int | None = None
    times_faster: float | None = None


SCENES = {
    JOIN: Goals(cycles=2, moves=16, times_faster=8),
    FAN_OUT: Goals(spread=1),
    COLD: Goals(cycles=3, moves=0, times_faster=10),
}


# -- scenes ---------------------------------------------------------------------------------------


def measure(quick: bool) -> Iterator[Figure]:
    rounds = 3 if quick else 25
    for scene, goals in SCENES.items():
        yield from scene_figures(scene, goals, rounds)
    yield from plan_figures(3 if quick else 7)


def scene_figures(scene: Scene, goals: Goals, rounds: int) -> Iterator[Figure]:
    turns = {
        f"steady, {scene.name}": turn(partial(ours, STEADY), scene),
        f"{PEER}, {scene.name}": turn(partial(official, "greedy"), scene),
    }
    found, peer = alternate(rounds, turns).values()
    yield from limits(scene, goals, found)
    if goals.spread is None:
        yield against(scene, "cycles", found, peer, goals.times_faster)
        yield against(scene, "seconds", found, peer)
    else:
        yield against(scene, "spread", found, peer)


def turn(side: Callable[[Scene, Random], Side], scene: Scene) -> Callable[[], Played]:
    """Play the scene with another seed every time, the same for both sides."""
    seeds = iter(range(1_000_000))

    def played() -> Played:
        seed = next(seeds)
        return play(scene, side(scene, Random(seed)), Random(seed), CYCLES_MAX)

    return played


def limits(scene: Scene, goals: Goals, found: Sequence[Played]) -> Iterator[Figure]:
    """What was promised has to hold in the worst round, not in the median one."""
    for name, unit in (("cycles", "cycles"), ("moves", "moves"), ("spread", "partitions")):
        if (goal := getattr(goals, name)) is not None:
            worst = max(float(getattr(played, name)) for played in found)
            yield Figure(
                f"{scene.name}: {WORDS[name]}, worst of {len(found)}",
                round(worst, 2),
                unit,
                goal=goal,
                lower_is_better=True,
                rounds=len(found),
            )


WORDS = {
    "cycles": "cycles until even",
    "seconds": "seconds until even, default intervals",
    "moves": "moves",
    "spread": "spread in the end",
}


def against(
    scene: Scene,
    name: str,
    found: Sequence[Played],
    peer: Sequence[Played],
    goal: float | None = None,
) -> Figure:
    return compare(
        f"{scene.name}: {WORDS[name]} vs {PEER}",
        {"cycles": "cycles", "seconds": "s", "spread": "partitions"}[name],
        [float(getattr(played, name)) for played in found],
        [float(getattr(played, name)) for played in peer],
        goal=goal,
        lower_is_better=True,
    )


# -- plans ----------------------------------------------------------------------------------------


def owner_of(partition: int) -> str:
    """All hosts but the last one own ten or eleven each."""
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
        found, peer = alternate(rounds, sides).values()
        figure = compare(f"{name} vs {PEER}", "cpu-ms", found, peer, lower_is_better=True)
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
