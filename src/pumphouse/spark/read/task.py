"""What a task does: read its spans, several at once, straight into record batches.

A task runs in a worker process that Spark uses again for later tasks, so connections are kept for a
while. Exactly the events of a span come out, or an exception, upon which Spark runs the task again;
and always in the same order, so that whoever counts rows behind us counts the same ones again.

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
from pumphouse.spark.advice import with_advice
from pumphouse.spark.identity import open_hub
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.lag.task_reports import DriverAddress, TaskReport, report_sender
from pumphouse.spark.offsets import DataLoss, Span
from pumphouse.spark.options import HubIdentity, ReadOptions
from pumphouse.spark.read.connections import connections
from pumphouse.spark.read.parallel import read_in_parallel
from pumphouse.spark.tenancy.appeals import FAIL, LEAVE, Appeal, Ruling, appeal
from pumphouse.spark.worker import freeze_imported_modules

log = logging.getLogger("pumphouse.spark")

Batches = Generator[pa.RecordBatch, None, None]


@dataclass(frozen=True, slots=True)
class Task:
    """Everything a task knows: it sees nothing else of the driver."""

    spans: tuple[Span, ...]
    identity: HubIdentity
    group: str
    columns: tuple[str, ...]
    reading: ReadOptions
    required: tuple[str, ...] = ()  # columns that the user's schema calls NOT NULL
    epoch: int | None = None
    fail_on_data_loss: bool = True
    feedback: DriverAddress | None = None
    name: str = ""  # how the hub calls the reader when it tells of it to others
    epochs: Mapping[str, int] = field(default_factory=dict)  # of partitions that a tenant owns
    appeals: DriverAddress | None = None  # whom a tenant's task asks when its reader was evicted


def read_task(task: Task) -> Iterator[pa.RecordBatch]:
    """All events of the task's spans, span after span; then a report of them to the driver."""
    reports: list[TaskReport] = []
    readings = [SpanReader(task, span, reports.append) for span in task.spans]
    if len(readings) == 1:
        yield from readings[0].batches()
    else:
        yield from read_in_parallel([one.batches for one in readings], task.reading.at_once)
    if task.feedback is not None:
        report_sender.post(task.feedback, reports)
    for report in reports if task.reading.metric_plugin else ():
        call_plugin(task.reading.metric_plugin, report)
    freeze_imported_modules()


class SpanReader:
    """One span, and what was measured while it was read."""

    def __init__(self, task: Task, span: Span, tell: Callable[[TaskReport], None]) -> None:
        self.task, self.span, self.tell = task, span, tell
        self.events = self.bytes = 0
        self.seconds = 0.0
        self.last: KnownPosition | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        options = range_options(self.task)
        options = replace(options, epoch=self.task.epochs.get(self.span.partition, options.epoch))
        shape = batch_converter(self.task, options.columns)
        with closing(read_span(self.task, self.span, options)) as found:
            while (batch := self.timed(found)) is not None:
                self.count(batch)
                yield shape(batch)
        self.tell(TaskReport(self.span.partition, self.events, self.bytes, self.seconds, self.last))

    def timed(self, found: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next batch; only what we wait for counts, not how long Spark takes for the rows."""
        since = time.monotonic()
        batch = next(found, None)
        self.seconds += time.monotonic() - since
        return batch

    def count(self, batch: pa.RecordBatch) -> None:
        self.events += batch.num_rows
        self.bytes += batch.nbytes
        if self.events == self.span.count:
            self.last = position_of_last_row(batch, self.span.last - 1)


def position_of_last_row(batch: pa.RecordBatch, sequence: int) -> KnownPosition:
    """The last row, as far as the columns that were read tell."""
    row = batch.slice(batch.num_rows - 1)
    names = batch.schema.names
    offset = row.column("offset")[0].as_py() if "offset" in names else None
    micros = row.column("enqueuedTime")[0].value if "enqueuedTime" in names else None
    return KnownPosition(sequence, offset, None if micros is None else micros // 1000)


# -- ranges ---------------------------------------------------------------------------------------


def read_span(task: Task, span: Span, options: RangeOptions) -> Batches:
    """The span, or what is left of it if that is allowed."""
    todo = [span]
    while todo:
        piece = SpanProgress(todo.pop(0))
        try:
            with closing(read_with_reconnects(task, piece, options)) as batches:
                yield from batches
        except EventsGone as gone:
            todo[:0] = spans_around_gap(task, piece, gone)
        except ReaderEvicted as refused:
            ruling = appealed(task, span, options, refused)
            if ruling.verb == LEAVE:
                return
            options = replace(options, epoch=ruling.epoch)
            todo.insert(0, Span(span.partition, piece.next, piece.span.last))
        except PumphouseError as failed:
            raise with_advice(failed, task.identity) from failed


@dataclass(slots=True)
class SpanProgress:
    """A span, and the event that comes next of it."""

    span: Span
    next: int = -1

    def __post_init__(self) -> None:
        self.next = self.span.first


def read_with_reconnects(task: Task, piece: SpanProgress, options: RangeOptions) -> Batches:
    """Over another connection after `maxSilentTime`, until `receiverTimeout` is over."""
    silent_s, since = task.reading.silent_max_s, time.monotonic()
    while piece.next < piece.span.last:
        try:
            for batch in read_once(task, piece, options):
                piece.next += batch.num_rows
                yield batch
                since = time.monotonic()
        except RangeTimeout:
            waited_s = time.monotonic() - since
            if silent_s is None or waited_s >= task.reading.receiver_timeout_s:
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
    """What there is before and behind a gap, for those who go on in spite of it."""
    if task.fail_on_data_loss:
        raise DataLoss(
            f"{gone}; they left the hub before they were read. Set failOnDataLoss=false to "
            "go on without them"
        ) from None
    span, behind = piece.span, max(gone.available, gone.wanted + 1)
    log.warning(
        "lost partition=%s events=%d-%d (failOnDataLoss=false)",
        span.partition,
        gone.wanted,
        min(behind, span.last) - 1,
    )
    parts = Span(span.partition, piece.next, gone.wanted), Span(span.partition, behind, span.last)
    return [part for part in parts if part.count > 0]


# -- options and columns --------------------------------------------------------------------------


def range_options(task: Task) -> RangeOptions:
    reading = task.reading
    left_out = {
        *(() if reading.properties else ("properties",)),
        *(() if reading.system_properties else ("systemProperties",)),
    }
    columns = [name for name in task.columns if name not in left_out]
    if task.feedback is not None:  # the driver is told which event was the last
        columns += [name for name in ("offset", "enqueuedTime") if name not in columns]
    patience = reading.receiver_timeout_s
    return RangeOptions(
        group=task.group,
        epoch=task.epoch,
        receiver_name=task.name or None,
        columns=tuple(columns) or ("sequenceNumber",),
        batch_rows=reading.batch_rows,
        batch_bytes=reading.batch_bytes,
        deadline_s=min(patience, reading.silent_max_s or patience),
    )


def batch_converter(
    task: Task, read: tuple[str, ...]
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Batches as the user's schema has them; columns that were not read are null."""
    if task.columns == read and not task.required:
        return lambda batch: batch
    schema = pa.schema(
        [pa.field(name, TYPES[name], name not in task.required) for name in task.columns]
    )

    def shape(batch: pa.RecordBatch) -> pa.RecordBatch:
        there = dict(zip(read, batch.columns, strict=True))
        columns = [
            there[name] if name in there else pa.nulls(batch.num_rows, TYPES[name])
            for name in task.columns
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return shape


def appealed(task: Task, span: Span, options: RangeOptions, refused: ReaderEvicted) -> Ruling:
    """What to do about a reader that took ours away; only a tenant has somebody to ask."""
    if task.appeals is None:
        raise evicted_error(task, span, refused) from None
    question = Appeal(span.partition, options.epoch or 0, refused.description, refused.epoch)
    ruling = appeal(task.appeals, question)
    told = f"partition {span.partition}: {refused.description} {ruling.why}".rstrip()
    if ruling.verb == FAIL:
        raise PumphouseError(told) from None
    log.warning("%s %s", ruling.verb, told)
    return ruling


def evicted_error(task: Task, span: Span, refused: ReaderEvicted) -> PumphouseError:
    return PumphouseError(
        f"partition {span.partition} of consumer group {task.group} is read by somebody else with "
        f"a higher epoch: {refused.description}. Give this query a consumer group of its own, or "
        "set useExclusiveReceiver=false on both"
    )


def call_plugin(name: str, told: TaskReport) -> None:
    """A user's own function; its errors are its own, and do not fail the task."""
    module, _, function = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), function)
        found(told)
    except Exception:
        log.warning("metricPlugin %s failed", name, exc_info=True)
