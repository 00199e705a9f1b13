"""The fault schedule of a soak: a sequence of steps from a seed. Pure.

Steps are drawn from bags. A bag has every kind of fault once, so even a short schedule has all of
them. Joins replace the hosts that were killed or stopped.

    seed -> steps -> fleet
            ^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

KILL, FREEZE, LEAVE, JOIN, HUB, STORE = "kill", "freeze", "leave", "join", "hub", "store"
BAG = (KILL, FREEZE, LEAVE, JOIN, JOIN, HUB, STORE)
SMALL_BAG = (KILL, FREEZE, JOIN, HUB, STORE)
HURRY = 0.3  # the share of steps that do not wait for recovery
SHORT_OUTAGES = 0.4  # the share of outages shorter than a lease


@dataclass(frozen=True, slots=True)
class Step:
    kind: str
    leases: float = 0.0  # its duration in leases, if it has one
    hurried: bool = False  # the next step follows at once


def steps(rng: Random, *, hurry: float = HURRY, first: Sequence[str] = BAG) -> Iterator[Step]:
    """Endless steps; the first bag waits for recovery, and its outages outlast a lease."""
    yield from bag(rng, hurry=0.0, short=0.0, kinds=first)
    while True:
        yield from bag(rng, hurry=hurry, short=SHORT_OUTAGES)


def bag(rng: Random, *, hurry: float, short: float, kinds: Sequence[str] = BAG) -> Iterator[Step]:
    for kind in rng.sample(kinds, len(kinds)):
        brief = rng.random() < short
        leases = rng.uniform(0.2, 0.6) if brief else rng.uniform(1.3, 1.8)
        lasts = kind in (STORE, FREEZE)
        yield Step(kind, leases if lasts else 0.0, rng.random() < hurry)
