"""Rates of sent and handled events, from successive overviews of a group.

overview, overview, ... -> RateMeter -> Rate per partition, Point per overview
                           ^^^^^^^^^ this module

A rate is an average over several seconds, because checkpoints advance in jumps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pumphouse.processor.admin.overview import Overview

SPAN_S = 12.0  # longer than the usual checkpoint interval of hosts
POINTS_MAX = 900  # 15 minutes at one overview a second


@dataclass(frozen=True, slots=True)
class Rate:
    """Events per second; None before the second sample."""

    into: float | None = None
    out: float | None = None


@dataclass(frozen=True, slots=True)
class Point:
    """The figures of a group at one moment, for the chart."""

    at_ms: int
    into: float | None
    out: float | None
    lag: int

    def to_json(self) -> list[float | int | None]:
        into, out = (None if rate is None else round(rate, 1) for rate in (self.into, self.out))
        return [self.at_ms, into, out, self.lag]


@dataclass(frozen=True, slots=True)
class GroupSample:
    """The ends and checkpoints of all partitions at one moment."""

    at_s: float
    ends: dict[str, int]
    checkpoints: dict[str, int]


@dataclass(slots=True)
class RateMeter:
    """The samples of the last few seconds, and the points of the last few minutes."""

    samples: deque[GroupSample] = field(default_factory=deque)
    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS_MAX))

    def add(self, overview: Overview, at_s: float, at_ms: int) -> Point:
        ends = {line.partition: line.end for line in overview.lines}
        checkpoints = {
            line.partition: line.checkpoint
            for line in overview.lines
            if line.checkpoint is not None
        }
        self.samples.append(GroupSample(at_s, ends, checkpoints))
        while len(self.samples) > 2 and at_s - self.samples[1].at_s >= SPAN_S:
            self.samples.popleft()
        total = self.total()
        point = Point(at_ms, total.into, total.out, overview.lag)
        self.points.append(point)
        return point

    def rates(self) -> dict[str, Rate]:
        first, last = self.samples[0], self.samples[-1]
        return {
            partition: Rate(
                rise(first.ends, last.ends, [partition], last.at_s - first.at_s),
                rise(first.checkpoints, last.checkpoints, [partition], last.at_s - first.at_s),
            )
            for partition in last.ends
        }

    def total(self) -> Rate:
        first, last = self.samples[0], self.samples[-1]
        elapsed_s = last.at_s - first.at_s
        return Rate(
            rise(first.ends, last.ends, last.ends, elapsed_s),
            rise(first.checkpoints, last.checkpoints, last.checkpoints, elapsed_s),
        )


def rise(
    before: dict[str, int], after: dict[str, int], partitions: Iterable[str], elapsed_s: float
) -> float | None:
    """The sum of the rises per second; a partition that is not in both samples counts as 0.

    A falling number (a rewind, or a re-created hub) counts as 0 too.
    """
    if elapsed_s <= 0:
        return None
    rises = (max(0, after[name] - before[name]) for name in partitions if name in before)
    return sum(rises) / elapsed_s
