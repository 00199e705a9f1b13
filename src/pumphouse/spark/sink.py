"""The sink as Spark sees it: thin, since rows and sending stand elsewhere.

Everything that can be known when a query starts is checked when it starts: options and columns.
Delivery is at least once: if Spark runs a task again, its rows are sent again. With
`dedupProperties=true` each event says which row it is, and a reader can drop repeats.

    Spark -> StreamWriter, BatchWriter -> write_rows
             ^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pumphouse.errors import OptionError
from pumphouse.spark.options import SinkOptions, read_sink
from pumphouse.spark.worker import freeze_imported_modules
from pumphouse.spark.write.rows import RowFormat, RowOrigin, read_row_format
from pumphouse.spark.write.task import WriteTotals, check_hub_accepts_sender, write_rows


@dataclass
class TaskCommit(WriterCommitMessage):
    """What one task sent; Spark carries it to the driver."""

    events: int
    bytes: int


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("eventhubs")`."""

    def __init__(self, shape: RowFormat, options: SinkOptions) -> None:
        self.shape = shape
        self.options = options
        self.job = uuid4().hex  # made once: its tasks, and their repetitions, all have the same

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        origin = row_origin(self.options, self.job)
        return sent(write_rows(iterator, self.shape, self.options, origin))


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("eventhubs")`."""

    def __init__(self, shape: RowFormat, options: SinkOptions) -> None:
        self.shape = shape
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return sent(write_rows(iterator, self.shape, self.options, row_origin(self.options)))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Everything was acknowledged before the tasks ended."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was sent stays sent; Spark runs the batch again."""


def batch_writer(given: dict[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    if overwrite:
        raise OptionError("a hub cannot be overwritten; use mode append")
    options = read_sink(given)
    return BatchWriter(read_row_format(schema, options), options)


def stream_writer(given: dict[str, str], schema: StructType) -> StreamWriter:
    options = read_sink(given)
    shape = read_row_format(schema, options)
    check_hub_accepts_sender(options.identity)
    return StreamWriter(shape, options)


def sent(written: WriteTotals) -> TaskCommit:
    """What Spark is told at the end of a task."""
    freeze_imported_modules()
    return TaskCommit(written.events, written.bytes)


def row_origin(options: SinkOptions, job: str = "") -> RowOrigin | None:
    """Who the rows of this task are; None if nobody asked.

    A batch that is written inside of foreachBatch belongs to the query: it is repeated with it.
    """
    if not options.dedup:
        return None
    task = TaskContext.get()
    assert task is not None
    query = task.getLocalProperty("sql.streaming.queryId") or job
    batch = task.getLocalProperty("streaming.sql.batchId") or ""
    return RowOrigin(query, batch, task.partitionId())
