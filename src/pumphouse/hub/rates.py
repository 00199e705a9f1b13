"""Rates of partitions in events per second, computed from samples of their totals.

A sample is taken every second and kept for ten seconds. A rate is the increase since the oldest
kept sample, divided by the elapsed time. Callers pass the current time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

WINDOW_S = 10.0
SAMPLE_EVERY_S = 1.0

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Totals:
    """All events received and sent since the start."""

    received: int
    sent: int


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second, averaged over at most the last ten seconds."""

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
        """The rate up to now; idle if no sample has the key."""
        for sampled_at, sampled in self._samples:
            if key in sampled and now > sampled_at:
                return rate_between(sampled[key], totals, now - sampled_at)
        return IDLE


def rate_between(earlier: Totals, later: Totals, seconds: float) -> Rate:
    return Rate(
        round((later.received - earlier.received) / seconds, 3),
        round((later.sent - earlier.sent) / seconds, 3),
    )
