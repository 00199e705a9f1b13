"""How many events the next batch takes if the query sets no limit. Pure.

A batch has a fixed cost, so small batches catch up slowly; a huge one shows no progress for long.
So the size follows the time that batches take: it grows until a full batch takes `TARGET_S`. The
time is measured from plan to plan, which contains everything that Spark does with the events.

With a slow trigger it also contains the wait for the trigger, which Spark does not report.
So if reading, as the tasks report it, takes much less time, a larger batch is tried. If the time
from plan to plan stays the same, it is that of the trigger, and the size follows the time of
reading. If it grows, the batch takes the time, and its size is set back.

    plan, reports of tasks, next plan -> BatchSize -> Planner.plan_end(rows)
                                         ^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pumphouse.spark.options import EVENTS_PER_PARTITION, Limits

TARGET_S = 10.0
GROWTH_MAX = 8.0
TRIAL_GROWTH = 2.0
SAME = 1.1  # two durations count as equal up to this ratio
BATCHES_BETWEEN_TRIALS = 20
# A run that ends (AvailableNow) has a backlog, and the delay of a single batch does not matter.
FIRST_OF_A_RUN_THAT_ENDS = 5
EVENTS_PER_PARTITION_MAX = 1_000_000
EVENTS_MAX = 1 << 60
NO_LIMIT = (1 << 62) - 1  # as Spark's limit, which has to be a number


@dataclass(frozen=True, slots=True)
class MeasuredBatch:
    """How long a batch took."""

    events: int
    seconds: float  # from its plan to the next one
    reading_s: float | None = None  # from its plan to the last report of a task; None: no report

    def is_full(self, size: int) -> bool:
        return self.events >= 0.9 * size


def adapted(size: int, batch: MeasuredBatch) -> int:
    """The next size, after a batch that did not wait for a trigger."""
    if not batch.is_full(size) and batch.seconds <= TARGET_S:
        return size  # it shows nothing about a full batch
    factor = TARGET_S / max(batch.seconds, TARGET_S / GROWTH_MAX)
    return int(size * factor)


class TriggerTrials:
    """Finds out whether batches wait for a slow trigger, by trying a larger one."""

    def __init__(self) -> None:
        self._trigger_s: float | None = None  # the time between two triggers, if batches wait
        self._largest = EVENTS_MAX  # the size that fits between two triggers
        self._trial: tuple[int, float] | None = None  # the size and the duration before the trial
        self._pause = 0  # batches until the next trial

    def next_size(self, size: int, batch: MeasuredBatch) -> int:
        """The next size, after a batch of the query."""
        if batch.seconds <= TARGET_S or batch.reading_s is None:
            self._trigger_s = self._trial = None
            return adapted(size, batch)
        size = self._end_trial(size, batch)
        if self._trigger_s is not None:
            return self._within_trigger(size, batch, self._trigger_s, batch.reading_s)
        if self._is_time_to_try(size, batch):
            self._trial = size, batch.seconds
            return int(size * TRIAL_GROWTH)
        return adapted(size, batch)

    def _end_trial(self, size: int, batch: MeasuredBatch) -> int:
        trial, self._trial = self._trial, None
        if trial is None or not batch.is_full(size):
            return size
        before, seconds = trial
        if batch.seconds <= SAME * seconds:
            self._trigger_s, self._largest = seconds, EVENTS_MAX
            return size
        self._pause = BATCHES_BETWEEN_TRIALS
        return before

    def _within_trigger(
        self, size: int, batch: MeasuredBatch, trigger_s: float, reading_s: float
    ) -> int:
        if batch.seconds > SAME * trigger_s:
            self._largest = int(size * trigger_s / batch.seconds)
        elif batch.is_full(size):  # an outage may have made the last one long
            self._largest = min(EVENTS_MAX, int(self._largest * SAME))
        return min(self._largest, adapted(size, MeasuredBatch(batch.events, reading_s)))

    def _is_time_to_try(self, size: int, batch: MeasuredBatch) -> bool:
        if self._pause:
            self._pause -= 1
            return False
        reading_s = batch.reading_s
        return reading_s is not None and TRIAL_GROWTH * reading_s < TARGET_S and batch.is_full(size)


class BatchSize:
    """The size of the next batch of one run."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.run_ends = False
        self._events: int | None = None
        self._planned: tuple[Mapping[str, Any], int, float] | None = None
        self._trials = TriggerTrials()

    @property
    def is_adaptive(self) -> bool:
        return self.limits.events is None and self.limits.events_per_partition is None

    def limit(
        self,
        start: Mapping[str, Any],
        partitions: int,
        now_s: float,
        reported_s: float | None = None,
    ) -> int | None:
        """The most events of the batch at `start`; None if the limits of the query decide.

        `reported_s` is when the last report of a task arrived.
        """
        if not self.is_adaptive:
            return None
        least = EVENTS_PER_PARTITION * max(1, partitions)
        if self._events is None:
            self._events = least * (FIRST_OF_A_RUN_THAT_ENDS if self.run_ends else 1)
        if self._planned is not None and self._planned[0] == start:
            batch = measured(*self._planned[1:], now_s, reported_s)
            self._events, self._planned = self._trials.next_size(self._events, batch), None
        most = EVENTS_PER_PARTITION_MAX * max(1, partitions)
        self._events = min(max(self._events, least), most)
        return self._events

    def planned(self, end: Mapping[str, Any], events: int, now_s: float) -> None:
        """Record the batch that ends here."""
        self._planned = end, events, now_s


def measured(
    events: int, planned_s: float, now_s: float, reported_s: float | None
) -> MeasuredBatch:
    is_reported = reported_s is not None and reported_s > planned_s
    reading_s = reported_s - planned_s if reported_s is not None and is_reported else None
    return MeasuredBatch(events, now_s - planned_s, reading_s)
