"""Reads the spans of a task, several at the same time, into record batches.

A task returns exactly the events of its spans, or raises, and Spark runs it again. The order is
the same each time, so a consumer that numbers the rows gives the same numbers.

    Task -> read_task -> BulkClient.read_range -> RecordBatch -> Spark
            ^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from random import Random

import pyarrow as pa

from pumphouse.client.bulk import (
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
from pumphouse.spark.outages import WAITS, Outage, pause_s
from pumphouse.spark.process_log import describe_process
from pumphouse.spark.read.columns import HUB, batch_converter
from pumphouse.spark.read.connections import connections
from pumphouse.spark.read.early import EarlyRange, is_small, read_in_turn
from pumphouse.spark.read.parallel import read_in_parallel
from pumphouse.spark.read.plugins import call_plugin
from pumphouse.spark.read.same_hub import PlannedHub, is_suspicious, was_recreated
from pumphouse.spark.read.siblings import (
    LONGEST_WAIT_S,
    SIBLING_S,
    TENANT_WAIT_S,
    TaskOrigin,
    is_reader_of_driver,
    is_sibling,
    taken_error,
    task_epoch,
    task_origin,
    wait_s,
)
from pumphouse.spark.tenancy.evictions import (
    FAIL,
    LEAVE,
    EvictionDecision,
    EvictionReport,
    report_eviction,
)
from pumphouse.spark.worker import end_quietly_without_consumer, freeze_imported_modules

log = logging.getLogger("pumphouse.spark")

NO_ORIGIN = TaskOrigin()
RNG = Random()

Batches = Generator[pa.RecordBatch, None, None]


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
    planned: PlannedHub = field(default_factory=PlannedHub)
    planned_ms: int = 0  # when the batch was planned


def read_task(task: Task) -> Iterator[pa.RecordBatch]:
    """All events of the task, span after span; then a report to the driver."""
    reports: list[TaskReport] = []
    origin = task_origin()
    describe_process(query=origin.query, hub=task.identity.hub, group=task.group)
    end_quietly_without_consumer()
    # The readers of a tenant have the name of its host.
    by_query = NO_ORIGIN if task.epochs else origin
    readers = [SpanReader(task, span, reports.append, by_query) for span in task.spans]
    if len(readers) == 1:
        yield from readers[0].batches()
    elif is_small(task.spans) and has_connections(task):
        yield from read_in_turn(readers, task.reading.threads)
    else:
        yield from read_in_parallel([each.batches for each in readers], task.reading.threads)
    if task.reports is not None:
        report_sender.post(task.reports, reports)
    for report in reports if task.reading.metric_plugin else ():
        call_plugin(task.reading.metric_plugin, report)
    freeze_imported_modules()


def has_connections(task: Task) -> bool:
    """Whether enough connections are open already. Threads open them at the same time."""
    wanted = min(len(task.spans), task.reading.threads)
    return connections.count_idle(task.identity) >= wanted


class SpanReader:
    """Reads one span, and measures it."""

    def __init__(
        self,
        task: Task,
        span: Span,
        report: Callable[[TaskReport], None],
        origin: TaskOrigin = NO_ORIGIN,
    ) -> None:
        self.task, self.span, self.report, self.origin = task, span, report, origin
        self.events = self.bytes = 0
        self.seconds = 0.0
        self.last: KnownPosition | None = None
        self._is_same_hub = False  # the hub has confirmed it
        options = range_options(task)
        self.options = replace(
            options,
            epoch=task.epochs.get(span.partition, options.epoch),
            receiver_name=origin.reader_name(task.name) or None,
        )
        self.early = EarlyRange(connections, task.identity)

    def request(self) -> None:
        """Request the events, so that they arrive while other spans are read."""
        epoch = present_epoch(self.task, self.options.epoch, self.origin.attempt)
        self.early.request(self.span, replace(self.options, epoch=epoch))

    def batches(self) -> Iterator[pa.RecordBatch]:
        task, options = self.task, self.options
        convert = batch_converter(
            task.columns, options.columns, required=task.required, hub=task.identity.hub
        )
        reading = read_span(task, self.span, options, self.origin.attempt, self.early)
        with closing(reading) as batches:
            while (batch := self.next_timed(batches)) is not None:
                if self.is_of_another_hub(batch):
                    break
                self.count(batch)
                yield convert(batch)
        measured = self.span.partition, self.events, self.bytes, self.seconds, self.last
        self.report(TaskReport(*measured))

    def next_timed(self, batches: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """The next batch. The time that Spark needs for the rows is not measured."""
        started_s = time.monotonic()
        batch = next(batches, None)
        self.seconds += time.monotonic() - started_s
        return batch

    def is_of_another_hub(self, batch: pa.RecordBatch) -> bool:
        """Whether the hub was re-created; DataLoss if failOnDataLoss=true."""
        task, partition = self.task, self.span.partition
        if self._is_same_hub or not is_suspicious(batch, partition, task.planned):
            return False
        self._is_same_hub = not was_recreated(task.identity, task.planned)
        if not self._is_same_hub:
            report_recreated(task, self.span, self.span.first + self.events)
        return not self._is_same_hub

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


def read_span(
    task: Task,
    span: Span,
    options: RangeOptions,
    attempt: int = 0,
    early: EarlyRange | None = None,
) -> Batches:
    """The events of the span; with failOnDataLoss=false only those that the hub still holds.

    `early` may have requested the span already.
    """
    remaining, siblings, driver_epoch = [span], SiblingWait(), 0
    outage = Outage(task.reading.outage_s, contacted=True)
    while remaining:
        piece = SpanProgress(remaining.pop(0))
        try:
            epoch = present_epoch(task, options.epoch, attempt)
            with_epoch = replace(options, epoch=epoch and max(epoch, driver_epoch))
            with closing(read_with_reconnects(task, piece, with_epoch, early)) as batches:
                yield from batches
        except EventsGone as gone:
            remaining[:0] = spans_around_gap(task, piece, gone)
        except ReaderEvicted as evicted:
            if not task.epochs and is_reader_of_driver(evicted, options.receiver_name or ""):
                driver_epoch = (evicted.epoch or 0) + 1
                remaining.insert(0, Span(span.partition, piece.next, piece.span.last))
                continue
            if is_own_batch(task, evicted, options, epoch):
                if piece.next > piece.span.first:
                    siblings = SiblingWait()
                siblings.wait(span.partition, TENANT_WAIT_S if task.epochs else LONGEST_WAIT_S)
                remaining.insert(0, Span(span.partition, piece.next, piece.span.last))
                continue
            decision = ask_driver(task, span, options, evicted)
            if decision.action == LEAVE:
                return
            options = replace(options, epoch=decision.epoch)
            remaining.insert(0, Span(span.partition, piece.next, piece.span.last))
        except PumphouseError as failed:
            if piece.next > piece.span.first:
                outage.succeeded()
            if not outage.failed(failed, time.monotonic()):
                raise with_advice(failed, task.identity) from failed
            wait_for_hub(task, span, outage)
            remaining.insert(0, Span(span.partition, piece.next, piece.span.last))


def wait_for_hub(task: Task, span: Span, outage: Outage) -> None:
    if outage.is_logged():
        log.warning(
            "%s",
            line(
                "hub_unreachable", hub=task.identity.hub, group=task.group,
                partition=span.partition, error=outage.error, count=outage.failures, todo=WAITS,
            ),
        )  # fmt: skip
    time.sleep(pause_s(outage.failures, RNG))


def present_epoch(task: Task, epoch: int | None, attempt: int) -> int | None:
    """The epoch for a reader that attaches now; that of a tenant is the epoch of its lease."""
    if epoch is None or task.epochs:
        return epoch
    return task_epoch(epoch, attempt, int(time.time() * 1000) - task.planned_ms, RNG)


def is_own_batch(
    task: Task, evicted: ReaderEvicted, options: RangeOptions, epoch: int | None
) -> bool:
    """Whether the other reader is of this batch. A tenant's readers have the epoch of its lease."""
    if not is_sibling(evicted, options.receiver_name or ""):
        return False
    return not task.epochs or evicted.epoch == epoch


class SiblingWait:
    """Waits while another task of the same batch reads the partition."""

    def __init__(self) -> None:
        self._attempts = 0
        self._since_s: float | None = None

    def wait(self, partition: str, longest_s: float) -> None:
        now_s = time.monotonic()
        self._since_s = self._since_s or now_s
        if now_s - self._since_s > SIBLING_S:
            raise PumphouseError(
                f"partition {partition}: another task of this batch has read it for more than "
                f"{SIBLING_S:g} s; check whether its executor still runs, or set "
                "useExclusiveReceiver=false"
            )
        time.sleep(wait_s(self._attempts, RNG, longest_s))
        self._attempts += 1


@dataclass(slots=True)
class SpanProgress:
    """A span, and the next event to read of it."""

    span: Span
    next: int = -1

    def __post_init__(self) -> None:
        self.next = self.span.first


def read_with_reconnects(
    task: Task, piece: SpanProgress, options: RangeOptions, early: EarlyRange | None
) -> Batches:
    """Reconnect after `maxSilentTime` without events; give up after `receiverTimeout`."""
    silent_max_s, last_batch_s = task.reading.silent_max_s, time.monotonic()
    while piece.next < piece.span.last:
        try:
            for batch in read_once(task, piece, options, early):
                piece.next += batch.num_rows
                yield batch
                last_batch_s = time.monotonic()
        except RangeTimeout:
            waited_s = time.monotonic() - last_batch_s
            if silent_max_s is None or waited_s >= task.reading.receiver_timeout_s:
                raise


def read_once(
    task: Task, piece: SpanProgress, options: RangeOptions, early: EarlyRange | None = None
) -> Iterator[pa.RecordBatch]:
    if early is not None and (requested := early.take()) is not None:
        with connections.borrow(task.identity, requested) as bulk:
            yield from bulk.read_requested()
        return
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
    """The spans before and after events that the hub has removed; DataLoss if they must exist."""
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


def report_recreated(task: Task, span: Span, first: int) -> None:
    """Log the events that are lost with the earlier hub; DataLoss if failOnDataLoss=true."""
    if task.fail_on_data_loss:
        raise DataLoss(
            f"hub {task.identity.hub} was re-created while a batch was read: events {first} to "
            f"{span.last - 1} of partition {span.partition} are gone. Start with a new "
            "checkpointLocation, or set failOnDataLoss=false to continue without them"
        )
    log.warning(
        "%s",
        line(
            "events_skipped", partition=span.partition, first=first, last=span.last - 1,
            reason="the hub was re-created, failOnDataLoss=false",
            todo="the next batch reads the new hub from its beginning",
        ),
    )  # fmt: skip


# -- options and columns --------------------------------------------------------------------------


def range_options(task: Task) -> RangeOptions:
    reading = task.reading
    columns = columns_to_read(task)
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


def columns_to_read(task: Task) -> list[str]:
    """The columns of the query, and those that this module uses itself."""
    left_out = {
        HUB,
        *(() if task.reading.properties else ("properties",)),
        *(() if task.reading.system_properties else ("systemProperties",)),
    }
    columns = [name for name in task.columns if name not in left_out]
    own = []
    if task.reports is not None:  # the report names the last event
        own = ["offset", "enqueuedTime"]
    elif task.planned.created_ms is not None:  # a newer event may be of a re-created hub
        own = ["enqueuedTime"]
    return columns + [name for name in own if name not in columns]


# -- evictions -------------------------------------------------------------------------------------


def ask_driver(
    task: Task, span: Span, options: RangeOptions, evicted: ReaderEvicted
) -> EvictionDecision:
    """The driver's decision after an eviction. Raises in a task of a query that is not a tenant."""
    if task.evictions is None:
        raise evicted_error(task, span, evicted) from None
    report = EvictionReport(span.partition, options.epoch or 0, evicted.description, evicted.epoch)
    decision = report_eviction(task.evictions, report)
    if decision.action == FAIL:
        message = f"partition {span.partition}: {evicted.description} {decision.reason}"
        raise PumphouseError(message.rstrip()) from None
    log.warning(
        "%s",
        line(
            "reader_evicted", partition=span.partition, error=evicted.description,
            action=decision.action, reason=decision.reason or None,
            todo="if this repeats, look for another reader of this consumer group",
        ),
    )  # fmt: skip
    return decision


def evicted_error(task: Task, span: Span, evicted: ReaderEvicted) -> PumphouseError:
    return taken_error(task.group, span.partition, evicted)
