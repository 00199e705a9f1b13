"""The calls of the sink of a stream, as each version of Spark makes them.

Spark 4.1 and newer -> WritesArrow |
Spark 4.0           -> WritesRows  | -> write_batches
                       ^^^^^^^^^^ this module
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from pumphouse.spark.versions.features import ARROW_SINK, has

if TYPE_CHECKING:
    import pyarrow as pa

    from pumphouse.spark.write.rows import RowFormat


class WritesRows(DataSourceStreamWriter):
    """The sink of a stream in Spark 4.0, which passes rows and not Arrow batches."""

    row_format: RowFormat

    @abstractmethod
    def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage: ...

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.write_batches(self.row_format.record_batches(iterator))


if TYPE_CHECKING or has(ARROW_SINK):
    from pyspark.sql.datasource import DataSourceStreamArrowWriter

    class WritesArrow(DataSourceStreamArrowWriter):
        """The sink of a stream in Spark 4.1 and newer."""

        @abstractmethod
        def write_batches(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage: ...

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            return self.write_batches(iterator)

    StreamSink = WritesArrow
else:
    StreamSink = WritesRows
