"""The connector with a breakpoint at each stage of a batch: `format("pausing")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition, WriterCommitMessage
from pyspark.sql.types import StructType

from pumphouse.spark.options import read_sink
from pumphouse.spark.sink import StreamWriter, TaskCommit
from pumphouse.spark.source import StreamReader
from pumphouse.spark.write.rows import read_row_format
from pyspark_eventhubs import DefaultSource
from tests.spark.tenancy.support.breakpoints import reach


class PausingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "pausing"

    def streamReader(self, schema: StructType) -> PausingReader:
        return PausingReader(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> PausingWriter:
        options = read_sink(dict(self.options))
        return PausingWriter(read_row_format(schema, options), options)


class PausingReader(StreamReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        reach("planned")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for batch in super().read(partition):
            yield batch
            reach("reading")


class PausingWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        if isinstance(message, TaskCommit) and message.events:
            reach("written")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        reach("committing")
        super().commit(messages, batchId)
