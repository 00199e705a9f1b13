"""The driver of a streaming query: the protocol, and what its implementations share.

Spark asks a stream reader where batches start and end, and what its tasks read. The reader passes
each call to a driver, which lives in the process of the reader. `AllPartitionsDriver` reads all
partitions, `TenantDriver` those that the query owns.

    StreamReader -> SourceDriver -> Planner, HubState -> TaskPartition
                    ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pyspark.sql.datasource import InputPartition

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.spark.driver.batch_size import NO_LIMIT, BatchSize
from pumphouse.spark.driver.hub_state import HubAway, HubState
from pumphouse.spark.generation import with_created
from pumphouse.spark.lag.known_positions import (
    ERROR_KEY,
    POSITIONS_KEY,
    READER_KEY,
    UNAVAILABLE_KEY,
    WAITING_KEY,
    KnownPosition,
    positions_to_json,
    reader_name,
)
from pumphouse.spark.lag.task_reports import ReportListener, reachable_host
from pumphouse.spark.offsets import Offsets, Span, to_json
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import (
    NO_STATISTICS,
    HubSnapshot,
    Planner,
    ReadStatistics,
)
from pumphouse.spark.read.same_hub import PlannedHub
from pumphouse.spark.read.task import Task

log = logging.getLogger("pumphouse.spark")

Offset = dict[str, Any]  # as Spark journals it
NO_EPOCHS: Mapping[str, int] = {}
# During an outage planning blocks for at most this time: then a trigger ends without a batch, so
# that the progress of the query shows that it waits.
PLANNING_WAITS_S = 10.0


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The columns of a query, and those that its schema declares NOT NULL."""

    names: tuple[str, ...]
    required: tuple[str, ...] = ()


class TaskPartition(InputPartition):
    """What one task reads; Spark pickles it and sends it to an executor."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    @property
    def task(self) -> Task:
        task: Task = self.value
        return task


class SourceDriver(Protocol):
    """Plans the batches and tasks of one run of a query."""

    def initial_offset(self) -> Offset:
        """Where a query without a checkpoint starts."""

    def default_limit(self) -> int:
        """How many rows a batch takes if Spark sets no limit."""

    def latest_offset(self, start: Offset, rows: int | None, everything: bool = False) -> Offset:
        """The end of the batch that begins at `start`; `start` itself if it reads nothing.

        `rows` is Spark's limit. With `everything` no limit applies.
        """

    def waiting(self, start: Offset) -> int:
        """How many events wait after `start`: about so many, to share a limit among hubs."""

    def report(self) -> Offset:
        """The newest events and the positions read, for the progress of the query."""

    def end_at_newest(self) -> None:
        """Read what the hub holds now, and nothing newer (the trigger AvailableNow)."""

    def tasks(self, start: Offset, end: Offset, columns: ColumnSelection) -> list[TaskPartition]:
        """The tasks of a batch. Spark may ask again for the same batch."""

    def committed(self, end: Offset) -> None:
        """Spark has committed the batches up to `end`."""

    def close(self) -> None: ...


class QueryRun:
    """What every driver needs: the state of the hub, the planner, and the reports of the tasks."""

    def __init__(self, options: SourceOptions, epoch: int | None) -> None:
        self.options = options
        self.clock: Clock = SystemClock()
        self.hub_state = HubState(options, epoch=epoch)
        self.planner = Planner(options, self.hub_state.resolve, log.warning)
        self.reports = ReportListener(self.host) if options.feedback else None
        self.size = BatchSize(options.limits)

    @property
    def hub(self) -> str:
        return self.options.identity.hub

    @property
    def host(self) -> str:
        """The address of this process as tasks reach it."""
        connection = self.options.identity.connection
        return reachable_host(connection.host, connection.port)

    def default_limit(self) -> int:
        return self.options.limits.events or NO_LIMIT

    def end_at_newest(self) -> None:
        self.size.run_ends = True
        self.planner.end_at_newest(self.hub_state.refresh())

    def limit(self, start: Offset, rows: int | None, partitions: int) -> int | None:
        """The most events of the next batch; `rows` is Spark's limit."""
        reported_s = self.reports.received_s if self.reports is not None else None
        adapted = self.size.limit(start, partitions, self.clock.monotonic(), reported_s)
        return min((limit for limit in (rows, adapted) if limit is not None), default=None)

    def statistics(
        self, start: Offsets, snapshot: HubSnapshot, epochs: Mapping[str, int] = NO_EPOCHS
    ) -> ReadStatistics:
        """What tasks reported; for the first batch, the size of the events that it would read.

        `epochs` has the epoch of each partition that a tenant owns.
        """
        if self.reports is None:
            return NO_STATISTICS
        known = self.reports.statistics(len(start), self.options.limits.acceptable_s)
        if self.options.limits.bytes is None or known.event_bytes is not None:
            return known
        waiting = {
            name: start[name]
            for name, state in snapshot.partitions.items()
            if name in start and start[name] <= state.last_sequence and not state.empty
        }
        return replace(known, event_bytes=self.hub_state.event_bytes(waiting, epochs))

    def read_positions(self) -> dict[str, KnownPosition]:
        """The last event read of each partition, as tasks reported it."""
        return self.reports.positions() if self.reports is not None else {}

    def refresh(self, *, blocks: bool) -> HubSnapshot | None:
        """What the hub holds now; None if it cannot be reached and the query waits for it.

        With `blocks` this waits until the hub responds: an empty batch would end the query.
        """
        try:
            return self.hub_state.refresh(wait_max_s=None if blocks else PLANNING_WAITS_S)
        except HubAway:
            return None

    def report(self) -> Offset:
        snapshot = self.hub_state.snapshot()
        latest = self.planner.newest_ends(snapshot)
        known = (*newest_positions(snapshot).items(), *self.read_positions().items())
        address = self.options.identity.connection.address
        report: Offset = {
            **with_created(to_json(self.hub, latest), snapshot.created_ms),
            POSITIONS_KEY: positions_to_json(each for each in known if each[0] in latest),
            READER_KEY: {reader_name(address, self.options.group): 0},
        }
        if snapshot.unavailable:
            report[UNAVAILABLE_KEY] = dict.fromkeys(snapshot.unavailable, 0)
        outage, now_s = self.hub_state.outage, self.clock.monotonic()
        if outage.failures:
            report[WAITING_KEY] = {"seconds": round(now_s - outage.since_s, 1)}
            report[ERROR_KEY] = {outage.error: 0}
        return report

    def close(self) -> None:
        self.hub_state.close()
        if self.reports is not None:
            self.reports.close()


def newest_positions(snapshot: HubSnapshot) -> dict[str, KnownPosition]:
    """The newest event of each partition that ever had one."""
    return {
        partition: KnownPosition(state.last_sequence, state.last_offset, state.last_enqueued_ms)
        for partition, state in snapshot.partitions.items()
        if state.last_sequence >= 0
    }


def planned_hub(snapshot: HubSnapshot) -> PlannedHub:
    """What tasks must know to notice that the hub was re-created."""
    newest_ms = {
        name: position.enqueued_ms
        for name, position in newest_positions(snapshot).items()
        if position.enqueued_ms is not None
    }
    return PlannedHub(snapshot.created_ms, newest_ms)


def make_task(
    options: SourceOptions,
    columns: ColumnSelection,
    spans: tuple[Span, ...],
    epoch: int | None,
    reports: ReportListener | None = None,
    name: str = "spark",
    planned: PlannedHub | None = None,
) -> Task:
    return Task(
        spans=spans,
        identity=options.identity,
        group=options.group,
        columns=columns.names,
        required=columns.required,
        reading=options.reading,
        epoch=epoch,
        fail_on_data_loss=options.fail_on_data_loss,
        reports=reports.address if reports is not None else None,
        name=name,
        planned=planned or PlannedHub(),
        planned_ms=now_ms(SystemClock()),
    )
