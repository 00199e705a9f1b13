"""The connector with gates between the stages of a batch: `format("held")`."""

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
from tests.spark.tenants.gates import pass_through


class Held(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "held"

    def streamReader(self, schema: StructType) -> HeldReader:
        return HeldReader(dict(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> HeldWriter:
        options = read_sink(dict(self.options))
        return HeldWriter(read_row_format(schema, options), options)


class HeldReader(StreamReader):
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        pass_through("planned")
        return super().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for some in super().read(partition):
            yield some
            pass_through("reading")


class HeldWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = super().write(iterator)
        if isinstance(message, TaskCommit) and message.events:
            pass_through("written")
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass_through("committing")
        super().commit(messages, batchId)
