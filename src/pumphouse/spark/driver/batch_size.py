"""How many events the next batch takes if the query sets no limit. Pure.

A batch has a fixed cost, so small batches catch up slowly; a huge one shows no progress for long.
So the size follows the time that batches take: it grows until a full batch takes `TARGET_S`. The
time is measured from plan to plan. With a slow trigger it includes the wait for the trigger, and
the size stays at its smallest value.

    plan, next plan -> BatchSize -> Planner.plan_end(rows)
                       ^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pumphouse.spark.options import EVENTS_PER_PARTITION, Limits

TARGET_S = 10.0
GROWTH_MAX = 8.0
# A run that ends (AvailableNow) has a backlog, and the delay of a single batch does not matter.
FIRST_OF_A_RUN_THAT_ENDS = 5
EVENTS_PER_PARTITION_MAX = 1_000_000
NO_LIMIT = (1 << 62) - 1  # as Spark's limit, which has to be a number


def adapted(size: int, events: int, seconds: float) -> int:
    """The next size, after a batch of `events` took `seconds`."""
    is_full = events >= 0.9 * size
    if not is_full and seconds <= TARGET_S:
        return size  # it shows nothing about a full batch
    factor = TARGET_S / max(seconds, TARGET_S / GROWTH_MAX)
    return int(size * factor)


class BatchSize:
    """The size of the next batch of one run."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.run_ends = False
        self._events: int | None = None
        self._planned: tuple[Mapping[str, Any], int, float] | None = None

    @property
    def is_adaptive(self) -> bool:
        return self.limits.events is None and self.limits.events_per_partition is None

    def limit(self, start: Mapping[str, Any], partitions: int, now_s: float) -> int | None:
        """The most events of the batch at `start`; None if the limits of the query decide."""
        if not self.is_adaptive:
            return None
        least = EVENTS_PER_PARTITION * max(1, partitions)
        if self._events is None:
            self._events = least * (FIRST_OF_A_RUN_THAT_ENDS if self.run_ends else 1)
        if self._planned is not None and self._planned[0] == start:
            _, events, planned_s = self._planned
            self._events = adapted(self._events, events, now_s - planned_s)
            self._planned = None
        most = EVENTS_PER_PARTITION_MAX * max(1, partitions)
        self._events = min(max(self._events, least), most)
        return self._events

    def planned(self, end: Mapping[str, Any], events: int, now_s: float) -> None:
        """Record the batch that ends here."""
        self._planned = end, events, now_s
