"""The driver of a query that reads all partitions of its hub, or those that its options name.

Spark -> StreamReader -> AllPartitionsDriver -> Planner -> TaskPartition
                         ^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex

from pumphouse.clock import now_ms
from pumphouse.leases.model import Group
from pumphouse.spark.driver.base import (
    ColumnSelection,
    Offset,
    QueryRun,
    TaskPartition,
    make_task,
    newest_positions,
    planned_hub,
)
from pumphouse.spark.driver.epochs import run_epoch
from pumphouse.spark.driver.guard import GroupGuard, GuardedBatch
from pumphouse.spark.generation import created_in, is_recreated, with_created
from pumphouse.spark.lag.mirror import BackgroundMirror, CheckpointMirror
from pumphouse.spark.lag.task_reports import ReportListener
from pumphouse.spark.offsets import (
    Offsets,
    Span,
    assign_to_tasks,
    count_events,
    from_json,
    order,
    split_span,
    start_of_batch,
    to_json,
    with_start,
)
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import HubSnapshot
from pumphouse.spark.read.same_hub import PlannedHub
from pumphouse.spark.read.siblings import BATCH_EPOCH
from pumphouse.spark.tenancy.journal import check_not_shared


class AllPartitionsDriver:
    """A `SourceDriver` for a query that shares its partitions with no other host."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.run = QueryRun(options, run_epoch() if options.reading.exclusive else None)
        self._guard = GroupGuard(self.run.hub_state, options.group)
        self._ends = False  # AvailableNow: the run ends with a batch that is empty
        self._batches = 0  # how many the run has planned
        self._end: Offset | None = None  # of the last one
        self._first_created_ms: int | None = None  # of the hub, at the first contact of the run
        self._name = f"spark-{token_hex(4)}"  # of readers whose query is not known
        self._mirror = BackgroundMirror(checkpoint_mirror(options)) if options.store else None

    def initial_offset(self) -> Offset:
        snapshot = self.run.hub_state.snapshot()
        start = self.run.planner.initial_offsets(snapshot, now_ms(self.run.clock))
        return self._journal(start, snapshot)

    def _journal(self, offsets: Offsets, snapshot: HubSnapshot) -> Offset:
        return with_created(to_json(self.run.hub, offsets), snapshot.created_ms)

    def default_limit(self) -> int:
        return self.run.default_limit()

    def latest_offset(self, start: Offset, rows: int | None, everything: bool = False) -> Offset:
        check_not_shared(start)
        self._guard.check()
        snapshot = self.run.refresh(blocks=everything or self._ends)
        if snapshot is None:
            return start
        offsets = from_json(self.run.hub, start)
        snapshot = self.run.hub_state.without_frozen(snapshot, offsets)
        statistics, now_s = self.run.statistics(offsets, snapshot), self.run.clock.monotonic()
        if not everything:
            rows = self.run.limit(start, rows, len(offsets))
        created_ms = self._created_ms(start, snapshot)
        end = self.run.planner.plan_end(
            offsets, rows, snapshot, now_s, statistics,
            everything=everything, created_ms=created_ms,
        )  # fmt: skip
        recreated = is_recreated(created_ms, snapshot.created_ms)
        if end == offsets and not recreated:
            return start  # with the same text: otherwise Spark would run an empty batch
        journal = self._journal(end, snapshot)
        if everything and self.run.planner.is_initial(offsets):
            journal = with_start(journal, offsets)
        elif recreated and created_in(start) is None:  # a replay needs the start
            begin = self.run.planner.complete_start(offsets, snapshot, created_ms)
            journal = with_start(journal, begin)
        self.run.size.planned(journal, count_events(offsets, end), now_s)
        return journal

    def _created_ms(self, start: Offset, snapshot: HubSnapshot) -> int | None:
        """When the hub of an offset was created.

        Old journals do not contain it. It is then the time at the first contact of this run.
        """
        if self._first_created_ms is None:
            self._first_created_ms = snapshot.created_ms
        return created_in(start) or self._first_created_ms

    def waiting(self, start: Offset) -> int:
        snapshot = self.run.refresh(blocks=self._ends)
        return self.run.planner.waiting(from_json(self.run.hub, start), snapshot) if snapshot else 0

    def report(self) -> Offset:
        return self.run.report()

    def end_at_newest(self) -> None:
        self._ends = True
        self.run.end_at_newest()

    def tasks(self, start: Offset, end: Offset, columns: ColumnSelection) -> list[TaskPartition]:
        check_not_shared(end)
        snapshot = self.run.hub_state.snapshot()
        offsets = start_of_batch(self.run.hub, start, end), from_json(self.run.hub, end)
        created_ms = created_in(start), created_in(end)
        spans = self.run.planner.plan_spans(*offsets, snapshot, created_ms)
        epoch = self._epoch_of(end)
        if epoch is not None and spans:
            guarded = min(offsets[1], key=order)
            self._guard.begin_batch(GuardedBatch(spans[0].partition, guarded, epoch))
        planned = planned_hub(snapshot)
        return make_tasks(
            self.options, columns, spans, epoch, self.run.reports, planned, self._name
        )

    def _epoch_of(self, end: Offset) -> int | None:
        """The epoch of the batch that ends here: the same for all scans of the batch."""
        if end != self._end:
            self._batches, self._end = self._batches + 1, end
        first = self.run.hub_state.epoch
        return None if first is None else first + self._batches * BATCH_EPOCH

    def committed(self, end: Offset) -> None:
        """Mirror the positions that are known; a store that fails does not fail the query."""
        if self._mirror is None:
            return
        newest = newest_positions(self.run.hub_state.snapshot())
        known = {(name, position.sequence): position for name, position in newest.items()}
        read = self.run.read_positions()
        known |= {(name, position.sequence): position for name, position in read.items()}
        ends = from_json(self.run.hub, end)
        lasts = {name: (name, following - 1) for name, following in ends.items()}
        self._mirror.write({name: known[last] for name, last in lasts.items() if last in known})

    def close(self) -> None:
        if self._mirror is not None:
            self._mirror.close()
        self._guard.close()
        self.run.close()


def checkpoint_mirror(options: SourceOptions) -> CheckpointMirror:
    identity = options.identity
    group = Group(identity.connection.authority, identity.hub, options.group)
    return CheckpointMirror(options.store, group)


def make_tasks(
    options: SourceOptions,
    columns: ColumnSelection,
    spans: Sequence[Span],
    epoch: int | None,
    reports: ReportListener | None = None,
    planned: PlannedHub | None = None,
    name: str = "spark",
) -> list[TaskPartition]:
    """Tasks that read these spans; with `minPartitions` several may read one partition."""
    per_task = options.partitions_per_task
    if options.tasks_min is not None and spans:
        per_task = per_task or 1
        pieces_per_span = -(-options.tasks_min // len(spans))
        spans = [piece for span in spans for piece in split_span(span, pieces_per_span)]
    return [
        TaskPartition(make_task(options, columns, task_spans, epoch, reports, name, planned))
        for task_spans in assign_to_tasks(spans, per_task)
    ]
