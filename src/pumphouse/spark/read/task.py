"""Reads the spans of a task, several at the same time, into record batches.

A task returns exactly the events of its spans, or raises, and Spark runs it again. The order is
the same each time, so a consumer that numbers the rows gives the same numbers.

    Task -> read_task -> BulkClient.read_range -> RecordBatch -> Spark
            ^^^^^^^^^ this module
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pumphouse.client.bulk import (
    TYPES,
    EventsGone,
    RangeOptions,
    RangeTimeout,
    read_range_of_messages,
)
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.logs import line
from pumphouse.spark.advice import with_advice
from pumphouse.spark.identity import open_hub
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.lag.task_reports import DriverAddress, TaskReport, report_sender
from pumphouse.spark.offsets import DataLoss, Span
from pumphouse.spark.options import HubIdentity, ReadOptions
from pumphouse.spark.read.connections import connections
from pumphouse.spark.read.parallel import read_in_parallel
from pumphouse.spark.tenancy.evictions import (
    FAIL,
    LEAVE,
    EvictionDecision,
    EvictionReport,
    report_eviction,
)
from pumphouse.spark.worker import freeze_imported_modules

log = logging.getLogger("pumphouse.spark")

Batches = Generator[pa.RecordBatch, None, None]
FIX_PLUGIN = "fix the plugin, or leave metricPlugin out"


@dataclass(frozen=True, slots=True)
class Task:
    """Everything that a task needs to know; it is pickled and sent to a worker process."""

    spans: tuple[Span, ...]
    identity: HubIdentity
    group: str
    columns: tuple[str, ...]
    reading: ReadOptions
    required: tuple[str, ...] = ()  # columns that the user's schema declares NOT NULL
    epoch: int | None = None
    fail_on_data_loss: bool = True
    reports: DriverAddress | None = None  # where to report what was read
    name: str = ""  # of the reader, in messages of the hub to other readers
    epochs: Mapping[str, int] = field(default_factory=dict)  # of partitions that a tenant owns
    evictions: DriverAddress | None = None  # where a tenant's task reports an evicted reader


def read_task(task: Task) -> Iterator[pa.RecordBatch]:
    """All events of the task, span after span; then a report to the driver."""
    reports: list[TaskReport] = []
    readers = [SpanReader(task, span, reports.append) for span in task.spans]
    if len(readers) == 1:
        yield from readers[0].batches()
    else:
        yield from read_in_parallel([each.batches for each in readers], task.reading.threads)
    if task.reports is not None:
        report_sender.post(task.reports, reports)
    for report in reports if task.reading.metric_plugin else ():
        call_plugin(task.reading.metric_plugin, report)
    freeze_imported_modules()


class SpanReader:
    """Reads one span, and measures it."""

    def __init__(self, task: Task, span: Span, report: Callable[[TaskReport], None]) -> None:
        self.task, self.span, self.report = task, span, report
        self.events = self.bytes = 0
        self.seconds = 0.0
        self.last: KnownPosition | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        options = range_options(self.task)
        options = replace(options, epoch=self.task.epochs.get(self.span.partition, options.epoch))
        convert = batch_converter(self.task, options.columns)
        with closing(read_span(self.task, self.span, options)) as batches:
            while (batch := self.next_timed(batches)) is not None:
                self.count(batch)
                yield convert(batch)
        self.report(
            TaskReport(self.span.partition, self.events, self.bytes, self.seconds, self.last)
        )

    def next_timed(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next batch. The time that Spark needs for the rows is not measured."""
        started_s = time.monotonic()
        batch = next(batches, None)
        self.seconds += time.monotonic() - started_s
        return batch

    def count(self, batch: pa.RecordBatch) -> None:
        self.events += batch.num_rows
        self.bytes += batch.nbytes
        if self.events == self.span.count:
            self.last = position_of_last_row(batch, self.span.last - 1)


def position_of_last_row(batch: pa.RecordBatch, sequence: int) -> KnownPosition:
    """The position of the last row, from the columns that were read."""
    row = batch.slice(batch.num_rows - 1)
    names = batch.schema.names
    offset = row.column("offset")[0].as_py() if "offset" in names else None
    micros = row.column("enqueuedTime")[0].value if "enqueuedTime" in names else None
    return KnownPosition(sequence, offset, None if micros is None else micros // 1000)


# -- ranges ---------------------------------------------------------------------------------------


def read_span(task: Task, span: Span, options: RangeOptions) -> Batches:
    """The events of the span; with failOnDataLoss=false only those that the hub still holds."""
    remaining = [span]
    while remaining:
        piece = SpanProgress(remaining.pop(0))
        try:
            with closing(read_with_reconnects(task, piece, options)) as batches:
                yield from batches
        except EventsGone as gone:
            remaining[:0] = spans_around_gap(task, piece, gone)
        except ReaderEvicted as refused:
            decision = ask_driver(task, span, options, refused)
            if decision.action == LEAVE:
                return
            options = replace(options, epoch=decision.epoch)
            remaining.insert(0, Span(span.partition, piece.next, piece.span.last))
        except PumphouseError as failed:
            raise with_advice(failed, task.identity) from failed


@dataclass(slots=True)
class SpanProgress:
    """A span, and the next event to read of it."""

    span: Span
    next: int = -1

    def __post_init__(self) -> None:
        self.next = self.span.first


def read_with_reconnects(task: Task, piece: SpanProgress, options: RangeOptions) -> Batches:
    """Reconnect after `maxSilentTime` without events; give up after `receiverTimeout`."""
    silent_max_s, last_batch_s = task.reading.silent_max_s, time.monotonic()
    while piece.next < piece.span.last:
        try:
            for batch in read_once(task, piece, options):
                piece.next += batch.num_rows
                yield batch
                last_batch_s = time.monotonic()
        except RangeTimeout:
            waited_s = time.monotonic() - last_batch_s
            if silent_max_s is None or waited_s >= task.reading.receiver_timeout_s:
                raise


def read_once(task: Task, piece: SpanProgress, options: RangeOptions) -> Iterator[pa.RecordBatch]:
    partition, first, last = piece.span.partition, piece.next, piece.span.last
    if task.identity.driver == "azure":
        client = open_hub(task.identity)
        yield from read_range_of_messages(
            client, partition, first, last, options, task.reading.prefetch
        )
        return
    with connections.borrow(task.identity) as bulk:
        yield from bulk.read_range(partition, first, last, options)


def spans_around_gap(task: Task, piece: SpanProgress, gone: EventsGone) -> list[Span]:
    """The spans before and after events that the hub no longer holds; DataLoss if not allowed."""
    if task.fail_on_data_loss:
        raise DataLoss(
            f"{gone}; retention removed them before they were read. Set failOnDataLoss=false to "
            "continue without them"
        ) from None
    span, after = piece.span, max(gone.available, gone.wanted + 1)
    log.warning(
        "%s",
        line(
            "events_skipped", partition=span.partition, first=gone.wanted,
            last=min(after, span.last) - 1, reason="failOnDataLoss=false",
            todo="lengthen the retention of the hub, or read faster",
        ),
    )  # fmt: skip
    parts = Span(span.partition, piece.next, gone.wanted), Span(span.partition, after, span.last)
    return [part for part in parts if part.count > 0]


# -- options and columns --------------------------------------------------------------------------


def range_options(task: Task) -> RangeOptions:
    reading = task.reading
    left_out = {
        *(() if reading.properties else ("properties",)),
        *(() if reading.system_properties else ("systemProperties",)),
    }
    columns = [name for name in task.columns if name not in left_out]
    if task.reports is not None:  # the report names the last event
        columns += [name for name in ("offset", "enqueuedTime") if name not in columns]
    timeout_s = reading.receiver_timeout_s
    return RangeOptions(
        group=task.group,
        epoch=task.epoch,
        receiver_name=task.name or None,
        columns=tuple(columns) or ("sequenceNumber",),
        batch_rows=reading.batch_rows,
        batch_bytes=reading.batch_bytes,
        deadline_s=min(timeout_s, reading.silent_max_s or timeout_s),
    )


def batch_converter(
    task: Task, read: tuple[str, ...]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Converts batches to the schema of the query; columns that were not read are null."""
    if task.columns == read and not task.required:
        return lambda batch: batch
    schema = pa.schema(
        [pa.field(name, TYPES[name], name not in task.required) for name in task.columns]
    )

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        present = dict(zip(read, batch.columns, strict=True))
        columns = [
            present[name] if name in present else pa.nulls(batch.num_rows, TYPES[name])
            for name in task.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return convert


# -- evictions and plugins ------------------------------------------------------------------------


def ask_driver(
    task: Task, span: Span, options: RangeOptions, refused: ReaderEvicted
) -> EvictionDecision:
    """The driver's decision after an eviction. Only the task of a tenant can ask; others fail."""
    if task.evictions is None:
        raise evicted_error(task, span, refused) from None
    report = EvictionReport(span.partition, options.epoch or 0, refused.description, refused.epoch)
    decision = report_eviction(task.evictions, report)
    if decision.action == FAIL:
        message = f"partition {span.partition}: {refused.description} {decision.reason}"
        raise PumphouseError(message.rstrip()) from None
    log.warning(
        "%s",
        line(
            "reader_evicted", partition=span.partition, error=refused.description,
            action=decision.action, reason=decision.reason or None,
            todo="if this repeats, look for another reader of this consumer group",
        ),
    )  # fmt: skip
    return decision


def evicted_error(task: Task, span: Span, refused: ReaderEvicted) -> PumphouseError:
    return PumphouseError(
        f"partition {span.partition} of consumer group {task.group} has another reader with a "
        f"higher epoch: {refused.description}. Give this query a consumer group of its own, or "
        "set useExclusiveReceiver=false on both"
    )


def call_plugin(name: str, report: TaskReport) -> None:
    """Call the user's function; its errors are logged and do not fail the task."""
    module, _, function = name.partition(":")
    try:
        plugin: Any = getattr(importlib.import_module(module), function)
        plugin(report)
    except Exception as failed:
        event = line(
            "plugin_failed", option="metricPlugin", plugin=name, error=failed, todo=FIX_PLUGIN
        )
        log.warning("%s", event, exc_info=True)
