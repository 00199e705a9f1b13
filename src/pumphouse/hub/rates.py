"""How fast a partition fills and is read: samples in, events per second out.

Totals are looked at once a second and kept for a few; a rate is what was added since the oldest one
still kept. Nothing is counted per event, and time is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW_S = 10.0
EVERY_S = 1.0

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Totals:
    """Events that have ever come in and gone out."""

    came_in: int
    went_out: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second, over the last seconds."""

    in_per_s: float = 0.0
    out_per_s: float = 0.0


IDLE = Rate()


class Rates(Generic[Key]):
    """The last samples of many partitions."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Mapping[Key, Totals]]] = deque()

    def sample(self, now: float, totals: Mapping[Key, Totals]) -> None:
        self._samples.append((now, totals))
        while now - self._samples[0][0] > WINDOW_S:
            self._samples.popleft()

    def rate(self, key: Key, now: float, totals: Totals) -> Rate:
        """The rate up to now; idle if the key was not there when a sample was taken."""
        for then, sampled in self._samples:
            if key in sampled and now > then:
                return between(sampled[key], totals, now - then)
        return IDLE


def between(earlier: Totals, later: Totals, seconds: float) -> Rate:
    return Rate(
        round((later.came_in - earlier.came_in) / seconds, 3),
        round((later.went_out - earlier.went_out) / seconds, 3),
    )
