"""The sink as Spark sees it: writers of batches and streams.

Options and columns are checked when a query starts. Delivery is at least once: if Spark runs a task
again, its rows are sent again. In a streaming query each event names its row, and a reader can drop
duplicates.

    Spark -> StreamWriter, BatchWriter -> write_rows
             ^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pumphouse.errors import OptionError
from pumphouse.spark.driver.secrets import Environment, resolve_options
from pumphouse.spark.options import SinkOptions, read_sink
from pumphouse.spark.versions.sinks import StreamSink
from pumphouse.spark.worker import (
    end_quietly_without_consumer,
    freeze_imported_modules,
    message_first,
    messages_first,
)
from pumphouse.spark.write.rows import RowFormat, RowOrigin, read_row_format
from pumphouse.spark.write.task import WriteTotals, check_hub_accepts_sender, write_rows


@dataclass
class TaskCommit(WriterCommitMessage):
    """What one task sent; Spark passes it to the driver."""

    events: int
    bytes: int


@messages_first
class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("eventhubs")`."""

    def __init__(self, row_format: RowFormat, options: SinkOptions) -> None:
        self.row_format = row_format
        self.options = options
        self.job = uuid4().hex  # the same in all tasks, also when Spark retries them

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        origin = row_origin(self.options, self.job)
        return commit_message(write_rows(iterator, self.row_format, self.options, origin))


@messages_first
class StreamWriter(StreamSink):
    """`df.writeStream.format("eventhubs")`."""

    def __init__(self, row_format: RowFormat, options: SinkOptions) -> None:
        self.row_format = row_format
        self.options = options

    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        origin = row_origin(self.options)
        # `stream_writer` has checked the hub: most tasks of a stream of alerts have no rows.
        return commit_message(
            write_rows(batches, self.row_format, self.options, origin, is_checked=True)
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing is left to do: the hub acknowledged every row before the tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Sent rows cannot be withdrawn; Spark runs the batch again."""


@message_first
def batch_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    end_quietly_without_consumer()
    if overwrite:
        raise OptionError("invalid mode overwrite: a hub cannot be overwritten; use mode append")
    options = read_sink(resolve_options(given), environment=Environment())
    return BatchWriter(read_row_format(schema, options), options)


@message_first
def stream_writer(given: dict[str, str], schema: StructType) -> StreamWriter:
    options = read_sink(resolve_options(given), streaming=True, environment=Environment())
    row_format = read_row_format(schema, options)
    check_hub_accepts_sender(options.identity)
    return StreamWriter(row_format, options)


def commit_message(totals: WriteTotals) -> TaskCommit:
    """The message to Spark at the end of a task."""
    freeze_imported_modules()
    return TaskCommit(totals.events, totals.bytes)


def row_origin(options: SinkOptions, job: str = "") -> RowOrigin | None:
    """What identifies the rows of this task; None without `dedupProperties`.

    A batch written inside foreachBatch belongs to the query: it is replayed with the query.
    """
    if not options.dedup:
        return None
    task = TaskContext.get()
    assert task is not None
    query = task.getLocalProperty("sql.streaming.queryId") or job
    batch = task.getLocalProperty("streaming.sql.batchId") or ""
    return RowOrigin(query, batch, task.partitionId())
