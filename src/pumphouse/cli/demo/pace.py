"""Decides how many homes a pipeline can keep up with. Pure.

    lag, once a second -> next_homes -> the same number of homes, or fewer
                          ^^^^^^^^^^ this module

A pipeline works in batches: its lag grows during a batch and falls at its end. So the minimum lag
counts, which is the number of events that still wait right after a batch. If the minimum is large
and grows, the machine is too small for this number of homes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

WINDOW_S = 40.0  # long enough for a few batches
GRACE_S = 60.0  # after a change, and at the start: Spark is slow to warm up
# A pipeline is behind if its lag is larger than the input of this time. A smaller lag is only the
# batch in progress.
BEHIND_S = 20.0
GROWTH = 1.1  # the lag grows if its minimum rises by this factor in half a window
CUT = 0.7  # the factor from one number of homes to the next
LEAST_HOMES = 1_000
PER_CORE = 50_000  # homes that one core can process
PER_GIB = 25_000  # homes for each GiB of memory
SENSORS = 5  # in each home


@dataclass(frozen=True, slots=True)
class Sample:
    """The lag of a pipeline in events at one moment."""

    at_s: float
    lag: int


def next_homes(homes: int, samples: Sequence[Sample], changed_s: float) -> int:
    """How many homes to continue with."""
    if not samples or samples[-1].at_s - changed_s < GRACE_S + WINDOW_S:
        return homes
    end_s = samples[-1].at_s
    recent = [sample for sample in samples if sample.at_s > end_s - WINDOW_S]
    earlier, later = _halves(recent, end_s - WINDOW_S / 2)
    if not earlier or not later:
        return homes
    is_behind = min(later) > BEHIND_S * rate_of(homes)
    return fewer(homes) if is_behind and min(later) > min(earlier) * GROWTH else homes


def _halves(samples: Sequence[Sample], middle_s: float) -> tuple[list[int], list[int]]:
    earlier = [sample.lag for sample in samples if sample.at_s <= middle_s]
    later = [sample.lag for sample in samples if sample.at_s > middle_s]
    return earlier, later


def rate_of(homes: int) -> float:
    """Events per second: every sensor sends once a minute."""
    return homes * SENSORS / 60


def fewer(homes: int) -> int:
    """The next smaller number of homes, rounded to thousands."""
    return max(LEAST_HOMES, min(homes, round(int(homes * CUT), -3)))


def fitting(requested: int, cores: int, memory_gib: float) -> int:
    """How many of the requested homes to start with on a machine of this size."""
    capacity = min(cores * PER_CORE, int(memory_gib * PER_GIB))
    return min(requested, max(LEAST_HOMES, round(capacity, -3)))
