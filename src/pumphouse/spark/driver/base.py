"""The driver of a streaming query: the protocol, and what its implementations share.

Spark asks a stream reader where batches start and end, and what its tasks read. The reader passes
each call to a driver, which lives in the process of the reader. `AllPartitionsDriver` reads all
partitions, `TenantDriver` those that the query owns.

    StreamReader -> SourceDriver -> Planner, HubState -> TaskPartition
                    ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.datasource import InputPartition

from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.spark.driver.hub_state import HubState
from pumphouse.spark.lag.known_positions import (
    POSITIONS_KEY,
    READER_KEY,
    UNAVAILABLE_KEY,
    KnownPosition,
    reader_name,
)
from pumphouse.spark.lag.task_reports import ReportListener, reachable_host
from pumphouse.spark.offsets import Span, to_json
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import (
    NO_STATISTICS,
    HubSnapshot,
    Planner,
    ReadStatistics,
    default_limit,
    partitions_to_read,
)
from pumphouse.spark.read.task import Task

log = logging.getLogger("pumphouse.spark")

Offset = dict[str, Any]  # as Spark journals it
# The epochs of a run lie above those of every earlier run: milliseconds, then a counter of batches.
BATCH_BITS = 12


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
        """Where the batch ends that begins at `start`; `start` if it reads nothing.

        `rows` is Spark's limit. With `everything` no limit applies.
        """

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

    @property
    def hub(self) -> str:
        return self.options.identity.hub

    @property
    def host(self) -> str:
        """The address of this process as tasks reach it."""
        connection = self.options.identity.connection
        return reachable_host(connection.host, connection.port)

    def default_limit(self) -> int:
        partitions = partitions_to_read(self.hub_state.snapshot(), self.options.partitions)
        return default_limit(self.options.limits, len(partitions))

    def statistics(self, partitions: int) -> ReadStatistics:
        if self.reports is None:
            return NO_STATISTICS
        return self.reports.statistics(partitions, self.options.limits.acceptable_s)

    def read_positions(self) -> dict[str, KnownPosition]:
        """The last event read of each partition, as tasks reported it."""
        return self.reports.positions() if self.reports is not None else {}

    def report(self) -> Offset:
        snapshot = self.hub_state.snapshot()
        latest = self.planner.newest_ends(snapshot)
        newest, read = newest_positions(snapshot), self.read_positions()
        positions = {
            partition: {
                "newest": newest[partition].to_json() if partition in newest else None,
                "read": read[partition].to_json() if partition in read else None,
            }
            for partition in latest
        }
        report = {
            **to_json(self.hub, latest),
            POSITIONS_KEY: positions,
            READER_KEY: reader_name(self.options.identity.connection.address, self.options.group),
        }
        if snapshot.unavailable:
            report[UNAVAILABLE_KEY] = list(snapshot.unavailable)
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


def run_epoch() -> int:
    return now_ms(SystemClock()) << BATCH_BITS


def make_task(
    options: SourceOptions,
    columns: ColumnSelection,
    spans: tuple[Span, ...],
    epoch: int | None,
    reports: ReportListener | None = None,
    name: str = "spark",
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
    )
