"""Rates in and out, from looks at a group: how far ends and checkpoints moved in how much time.

overview, overview, ... -> RateMeter -> Rate per partition, Point per look
                           ^^^^^ this module

A rate is taken over the last few seconds: checkpoints come in jumps, and a number that swings
between nothing and twice the truth tells nobody anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pumphouse.processor.admin.overview import Overview

SPAN_S = 12.0  # longer than hosts usually wait between two checkpoints
POINTS_MAX = 900  # a quarter of an hour at one look a second


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second; None until two looks have been taken."""

    into: float | None = None
    out: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """One look at a whole group, for the chart."""

    at_ms: int
    into: float | None
    out: float | None
    lag: int

    def shown(self) -> list[float | int | None]:
        into, out = (None if rate is None else round(rate, 1) for rate in (self.into, self.out))
        return [self.at_ms, into, out, self.lag]


@dataclass(frozen=True, slots=True)
class GroupSample:
    at_s: float
    ends: dict[str, int]
    marks: dict[str, int]


@dataclass(slots=True)
class RateMeter:
    """The looks of the last few seconds, and the points of the last few minutes."""

    samples: deque[GroupSample] = field(default_factory=deque)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))

    def add(self, found: Overview, at_s: float, at_ms: int) -> Point:
        ends = {line.partition: line.end for line in found.lines}
        marks = {
            line.partition: line.checkpoint for line in found.lines if line.checkpoint is not None
        }
        self.samples.append(GroupSample(at_s, ends, marks))
        while len(self.samples) > 2 and at_s - self.samples[1].at_s >= SPAN_S:
            self.samples.popleft()
        total = self.total()
        point = Point(at_ms, total.into, total.out, found.lag)
        self.points.append(point)
        return point

    def rates(self) -> dict[str, Rate]:
        first, last = self.samples[0], self.samples[-1]
        return {
            partition: Rate(
                rise(first.ends, last.ends, [partition], last.at_s - first.at_s),
                rise(first.marks, last.marks, [partition], last.at_s - first.at_s),
            )
            for partition in last.ends
        }

    def total(self) -> Rate:
        first, last = self.samples[0], self.samples[-1]
        took_s = last.at_s - first.at_s
        return Rate(
            rise(first.ends, last.ends, last.ends, took_s),
            rise(first.marks, last.marks, last.marks, took_s),
        )


def rise(
    before: dict[str, int], after: dict[str, int], partitions: Iterable[str], took_s: float
) -> float | None:
    """How fast these numbers rose together; a partition that is not in both looks counts as still.

    A number that fell (a rewind, a hub made anew) is no negative rate: it counts as still too.
    """
    if took_s <= 0:
        return None
    moved = (max(0, after[one] - before[one]) for one in partitions if one in before)
    return sum(moved) / took_s
