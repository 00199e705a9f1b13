"""Whether a pipeline keeps up with its homes, and how many it is given if it does not. Pure.

    samples of lag, once a second -> judge -> fewer homes, or as many as before
                                     ^^^^^ this module

A pipeline works in batches, so its lag goes up and down like a saw. What counts is the lowest point
of it: what is left behind even when a batch has just ended. If that is far behind and farther than
it was, the machine is too small, and waiting would only hide it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_S = 40.0  # long enough for a few batches
GRACE_S = 60.0  # after a change, and at the start: Spark is slow to warm up
BEHIND_S = 20.0  # of input: less than that is a batch in hand
GROWTH = 1.1
CUT = 0.7
LEAST_HOMES = 1_000
PER_CORE = 50_000
PER_GIB = 25_000
SENSORS = 5


@dataclass(frozen=True, slots=True)
class Sample:
    """What was waiting before a pipeline, in events, at a moment."""

    at_s: float
    lag: int


def judge(homes: int, samples: Sequence[Sample], changed_s: float) -> int:
    """How many homes to go on with."""
    if not samples or samples[-1].at_s - changed_s < GRACE_S + WINDOW_S:
        return homes
    end_s = samples[-1].at_s
    recent = [sample for sample in samples if sample.at_s > end_s - WINDOW_S]
    earlier, later = _halves(recent, end_s - WINDOW_S / 2)
    if not earlier or not later:
        return homes
    behind = min(later) > BEHIND_S * rate_of(homes)
    return fewer(homes) if behind and min(later) > min(earlier) * GROWTH else homes


def _halves(samples: Sequence[Sample], middle_s: float) -> tuple[list[int], list[int]]:
    earlier = [sample.lag for sample in samples if sample.at_s <= middle_s]
    later = [sample.lag for sample in samples if sample.at_s > middle_s]
    return earlier, later


def rate_of(homes: int) -> float:
    """Events a second: every sensor once a minute."""
    return homes * SENSORS / 60


def fewer(homes: int) -> int:
    """A good deal fewer, in a round number."""
    return max(LEAST_HOMES, min(homes, round(int(homes * CUT), -3)))


def fitting(asked: int, cores: int, memory_gib: float) -> int:
    """How many homes to start with on a machine of this size."""
    room = min(cores * PER_CORE, int(memory_gib * PER_GIB))
    return min(asked, max(LEAST_HOMES, round(room, -3)))
