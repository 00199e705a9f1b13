"""What happens to a fleet, and in which order: a seed decides.

Pure: a script is a sequence of steps drawn from bags. A bag holds every kind of fault once, so even
a short script has them all, and joins make up for the hosts that were killed or sent away.

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
HURRY = 0.3  # of the steps of a long script come before the one before has been got over
SHORT_OUTAGES = 0.4  # are over before a lease is


@dataclass(frozen=True, slots=True)
class Step:
    what: str
    leases: float = 0.0  # how long it lasts, if it lasts
    hurried: bool = False  # the next one follows at once


def steps(rng: Random, *, hurry: float = HURRY, first: Sequence[str] = BAG) -> Iterator[Step]:
    """Steps without end; the first bag is never hurried, and its outages outlast a lease."""
    yield from bag(rng, hurry=0.0, short=0.0, kinds=first)
    while True:
        yield from bag(rng, hurry=hurry, short=SHORT_OUTAGES)


def bag(rng: Random, *, hurry: float, short: float, kinds: Sequence[str] = BAG) -> Iterator[Step]:
    for what in rng.sample(kinds, len(kinds)):
        brief = rng.random() < short
        leases = rng.uniform(0.2, 0.6) if brief else rng.uniform(1.3, 1.8)
        lasts = what in (STORE, FREEZE)
        yield Step(what, leases if lasts else 0.0, rng.random() < hurry)
