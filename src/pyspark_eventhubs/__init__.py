"""Registers `format("eventhubs")`: Spark imports every module named pyspark_*.

Every session does that at its first look-up, so nothing heavy is imported here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]

SCHEMA = (
    "body binary, partition string, offset string, sequenceNumber long, enqueuedTime timestamp, "
    "publisher string, partitionKey string, properties map<string,string>, "
    "systemProperties map<string,string>"
)


class DefaultSource(DataSource):
    """The source and the sink: events of a hub as a stream or a batch, and rows to a hub."""

    @classmethod
    def name(cls) -> str:
        return "eventhubs"

    def schema(self) -> str:
        from pumphouse.spark.several_hubs.selection import reads_several

        return f"{SCHEMA}, hub string" if reads_several(self.options) else SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from pumphouse.spark.source import batch_reader

        return batch_reader(dict(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pumphouse.spark.source import stream_reader

        return stream_reader(dict(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pumphouse.spark.sink import batch_writer

        return batch_writer(dict(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pumphouse.spark.sink import stream_writer

        return stream_writer(dict(self.options), schema)
