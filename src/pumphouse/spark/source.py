"""The source as Spark sees it: thin, since everything is decided elsewhere.

Spark makes two of each reader: one lives in a process of the driver and answers its questions, the
other is pickled and sent to the tasks. So nothing is opened before the first question, and a task
is told everything it needs in its InputPartition.

    Spark -> StreamReader, BatchReader -> Outlook, Planner -> InputPartition -> read_task
             ^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pumphouse.clock import SystemClock, now_ms
from pumphouse.leases.model import Group
from pumphouse.leases.store_url import parse_store_url
from pumphouse.spark.columns import check_columns, required_columns
from pumphouse.spark.hub_state import HubState
from pumphouse.spark.lag.known_positions import (
    POSITIONS_KEY,
    READER_KEY,
    UNAVAILABLE_KEY,
    KnownPosition,
    reader_name,
)
from pumphouse.spark.lag.mirror import BackgroundMirror, CheckpointMirror
from pumphouse.spark.lag.task_reports import ReportListener, reachable_host
from pumphouse.spark.offsets import Span, assign_to_tasks, from_json, split, to_json
from pumphouse.spark.options import SourceOptions, read_source
from pumphouse.spark.planner import (
    NO_STATISTICS,
    HubSnapshot,
    Planner,
    ReadStatistics,
    batch_range,
    default_limit,
    wanted,
)
from pumphouse.spark.read.task import Task, read_task
from pumphouse.spark.tenancy.journal import check_not_shared

log = logging.getLogger("pumphouse.spark")

# A run's epochs lie above those of every earlier run: milliseconds, then a counter of batches.
BATCH_BITS = 12


@dataclass(frozen=True, slots=True)
class ColumnSelection:
    """The columns of a query, and those that its schema calls NOT NULL."""

    names: tuple[str, ...]
    required: tuple[str, ...] = ()


leaving = threading.Event()  # Spark wants this process to end


class TaskPartition(InputPartition):
    """One task's part."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)

    @property
    def task(self) -> Task:
        task: Task = self.value
        return task


class BatchReader(DataSourceReader):
    """`spark.read.format("eventhubs")`."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self.columns = ColumnSelection(check_columns(schema), required_columns(schema))
        self.options = read_source(given, streaming=False, now_ms=now_ms(SystemClock()))

    def partitions(self) -> Sequence[InputPartition]:
        epoch = run_epoch() if self.options.reading.exclusive else None
        hub_state = HubState(self.options, epoch=epoch)
        try:
            view = hub_state.fresh()
            planner = Planner(self.options, hub_state.resolve, log.warning)
            planner.check_starts(view)
            start, end = batch_range(self.options, view, hub_state.resolve)
            work = planner.work(start, end, view)
        finally:
            hub_state.close()
        return parts(self.options, self.columns, work, epoch)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task_partition(partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("eventhubs")`."""

    def __init__(self, given: dict[str, str], schema: StructType) -> None:
        self.columns = ColumnSelection(check_columns(schema), required_columns(schema))
        self.options = read_source(given, streaming=True, now_ms=now_ms(SystemClock()))
        for store in filter(None, (self.options.store, store_of(self.options))):
            parse_store_url(store)  # says so at once if it is none
        self._driver: AllPartitionsDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"columns": self.columns, "options": self.options, "_driver": None}

    @property
    def driver(self) -> AllPartitionsDriver:
        if self._driver is None:
            self._driver = driver_for(self.options)
            leave_on_sigterm()
        return self._driver

    def initialOffset(self) -> dict[str, Any]:
        return self.driver.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        there = wanted(self.driver.hub_state.view(), self.options.partitions)
        return ReadMaxRows(default_limit(self.options.limits, len(there)))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        return self.driver.latest(start, rows, isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any]:
        return self.driver.report()

    def prepareForTriggerAvailableNow(self) -> None:
        self.driver.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self.driver.parts(start, end, self.columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_task_partition(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the offsets. A store that mirrors them is told, and cannot fail a query."""
        self.driver.committed(end)

    def stop(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            # Spark sends it more than once; the next one must not cut short what we do here.
            on_sigterm(signal.SIG_IGN)
            driver.close()
        if leaving.is_set() or isinstance(sys.exc_info()[1], EOFError):
            # Spark has closed its end; what its runner would still say there is only noise.
            os._exit(0)


def read_task_partition(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """A task's events. Where there is nothing to read, Spark makes up a task without a part."""
    return read_task(partition.task) if isinstance(partition, TaskPartition) else iter(())


def store_of(options: SourceOptions) -> str:
    return "" if options.tenancy is None else options.tenancy.store


def driver_for(options: SourceOptions) -> AllPartitionsDriver:
    """Who answers Spark's questions: for all partitions, or for those that are ours."""
    if options.tenancy is None:
        return AllPartitionsDriver(options)
    from pumphouse.spark.tenancy.driver import TenantDriver

    return TenantDriver(options, options.tenancy)


class AllPartitionsDriver:
    """The memory of one run of a query, in the process that answers Spark's questions."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.clock = SystemClock()
        self.epoch = run_epoch()
        self.hub_state = HubState(options, epoch=self.epoch if options.reading.exclusive else None)
        self.planner = Planner(options, self.hub_state.resolve, log.warning)
        place = options.identity.connection
        self.feedback = (
            ReportListener(reachable_host(place.host, place.port)) if options.feedback else None
        )
        self.mirror = BackgroundMirror(checkpoint_mirror(options)) if options.store else None

    @property
    def hub(self) -> str:
        return self.options.identity.hub

    def initial(self) -> dict[str, Any]:
        return to_json(self.hub, self.planner.initial(self.hub_state.view(), now_ms(self.clock)))

    def latest(
        self, start: dict[str, Any], rows: int | None, everything: bool = False
    ) -> dict[str, Any]:
        check_not_shared(start)
        view = self.hub_state.fresh()
        offsets = from_json(self.hub, start)
        seen, now_s = self.statistics(len(offsets)), self.clock.monotonic()
        end = self.planner.latest(offsets, rows, view, now_s, seen, everything=everything)
        return to_json(self.hub, end)

    def statistics(self, partitions: int) -> ReadStatistics:
        if self.feedback is None:
            return NO_STATISTICS
        return self.feedback.statistics(partitions, self.options.limits.acceptable_s)

    def report(self) -> dict[str, Any]:
        """For the progress: the newest events, and what is known of them and of those read."""
        view = self.hub_state.view()
        latest = self.planner.report(view)
        newest, read = newest_positions(view), self.marks()
        marks = {
            one: {
                "newest": newest[one].to_json() if one in newest else None,
                "read": read[one].to_json() if one in read else None,
            }
            for one in latest
        }
        silent = {UNAVAILABLE_KEY: list(view.unavailable)} if view.unavailable else {}
        reader = reader_name(self.options.identity.connection.address, self.options.group)
        return {**to_json(self.hub, latest), POSITIONS_KEY: marks, READER_KEY: reader, **silent}

    def marks(self) -> dict[str, KnownPosition]:
        return self.feedback.marks() if self.feedback is not None else {}

    def committed(self, end: dict[str, Any]) -> None:
        if self.mirror is None:
            return
        known = {
            (one, mark.sequence): mark
            for one, mark in newest_positions(self.hub_state.view()).items()
        }
        known |= {(one, mark.sequence): mark for one, mark in self.marks().items()}
        places = {one: (one, following - 1) for one, following in from_json(self.hub, end).items()}
        self.mirror.write({one: known[at] for one, at in places.items() if at in known})

    def freeze(self) -> None:
        self.planner.freeze(self.hub_state.fresh())

    def parts(
        self, start: dict[str, Any], end: dict[str, Any], columns: ColumnSelection
    ) -> list[TaskPartition]:
        check_not_shared(end)
        view = self.hub_state.view()
        work = self.planner.work(from_json(self.hub, start), from_json(self.hub, end), view)
        self.epoch += 1
        epoch = self.epoch if self.options.reading.exclusive else None
        return parts(self.options, columns, work, epoch, self.feedback)

    def close(self) -> None:
        if self.mirror is not None:
            self.mirror.close()
        self.hub_state.close()
        if self.feedback is not None:
            self.feedback.close()


def newest_positions(view: HubSnapshot) -> dict[str, KnownPosition]:
    """The newest event of each partition that ever had one."""
    return {
        one: KnownPosition(found.last_sequence, found.last_offset, found.last_enqueued_ms)
        for one, found in view.partitions.items()
        if found.last_sequence >= 0
    }


def checkpoint_mirror(options: SourceOptions) -> CheckpointMirror:
    identity = options.identity
    return CheckpointMirror(
        options.store, Group(identity.connection.authority, identity.hub, options.group)
    )


def run_epoch() -> int:
    return now_ms(SystemClock()) << BATCH_BITS


def parts(
    options: SourceOptions,
    columns: ColumnSelection,
    work: Sequence[Span],
    epoch: int | None,
    feedback: ReportListener | None = None,
) -> list[TaskPartition]:
    """Tasks, each with everything it needs to know."""
    if options.tasks_min is not None and work:
        pieces = -(-options.tasks_min // len(work))
        work = [piece for span in work for piece in split(span, pieces)]
    return [
        TaskPartition(make_task(options, columns, spans, epoch, feedback))
        for spans in assign_to_tasks(work, options.partitions_per_task)
    ]


def make_task(
    options: SourceOptions,
    columns: ColumnSelection,
    spans: tuple[Span, ...],
    epoch: int | None,
    feedback: ReportListener | None,
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
        feedback=feedback.address if feedback is not None else None,
        name=name,
    )


def leave_on_sigterm() -> None:
    """Spark ends the driver's process with SIGTERM and never calls stop().

    Leaving in an orderly way calls it after all; the hub then knows at once that we have gone.
    """

    def leave(*_: object) -> None:
        on_sigterm(signal.SIG_IGN)
        leaving.set()
        sys.exit(0)

    on_sigterm(leave)


def on_sigterm(action: Callable[..., None] | signal.Handlers) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, action)
