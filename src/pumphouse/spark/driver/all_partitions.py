"""The driver of a query that reads all partitions of its hub, or those that its options name.

Spark -> StreamReader -> AllPartitionsDriver -> Planner -> TaskPartition
                         ^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence

from pumphouse.clock import now_ms
from pumphouse.leases.model import Group
from pumphouse.spark.driver.base import (
    ColumnSelection,
    Offset,
    QueryRun,
    TaskPartition,
    make_task,
    newest_positions,
    run_epoch,
)
from pumphouse.spark.lag.mirror import BackgroundMirror, CheckpointMirror
from pumphouse.spark.lag.task_reports import ReportListener
from pumphouse.spark.offsets import Span, assign_to_tasks, from_json, split_span, to_json
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.tenancy.journal import check_not_shared


class AllPartitionsDriver:
    """A `SourceDriver` for a query that shares its partitions with no other host."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self._epoch = run_epoch()
        self.run = QueryRun(options, self._epoch if options.reading.exclusive else None)
        self._mirror = BackgroundMirror(checkpoint_mirror(options)) if options.store else None

    def initial_offset(self) -> Offset:
        snapshot = self.run.hub_state.snapshot()
        start = self.run.planner.initial_offsets(snapshot, now_ms(self.run.clock))
        return to_json(self.run.hub, start)

    def default_limit(self) -> int:
        return self.run.default_limit()

    def latest_offset(self, start: Offset, rows: int | None, everything: bool = False) -> Offset:
        check_not_shared(start)
        snapshot = self.run.hub_state.refresh()
        offsets = from_json(self.run.hub, start)
        statistics, now_s = self.run.statistics(len(offsets)), self.run.clock.monotonic()
        end = self.run.planner.plan_end(
            offsets, rows, snapshot, now_s, statistics, everything=everything
        )
        return to_json(self.run.hub, end)

    def report(self) -> Offset:
        return self.run.report()

    def end_at_newest(self) -> None:
        self.run.planner.end_at_newest(self.run.hub_state.refresh())

    def tasks(self, start: Offset, end: Offset, columns: ColumnSelection) -> list[TaskPartition]:
        check_not_shared(end)
        snapshot = self.run.hub_state.snapshot()
        offsets = from_json(self.run.hub, start), from_json(self.run.hub, end)
        spans = self.run.planner.plan_spans(*offsets, snapshot)
        self._epoch += 1
        epoch = self._epoch if self.options.reading.exclusive else None
        return make_tasks(self.options, columns, spans, epoch, self.run.reports)

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
) -> list[TaskPartition]:
    """Tasks that read these spans; with `minPartitions` several may read one partition."""
    if options.tasks_min is not None and spans:
        pieces_per_span = -(-options.tasks_min // len(spans))
        spans = [piece for span in spans for piece in split_span(span, pieces_per_span)]
    return [
        TaskPartition(make_task(options, columns, task_spans, epoch, reports))
        for task_spans in assign_to_tasks(spans, options.partitions_per_task)
    ]
