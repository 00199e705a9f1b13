"""The calls of a stream, as each version of Spark makes them.

Spark 4.2 and newer -> CallsWithLimits    |
Spark 4.0 and 4.1   -> CallsWithoutLimits | -> SourceDriver
                       ^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pumphouse.logs import line
from pumphouse.spark.versions.features import LIMITS, has

if TYPE_CHECKING:
    import pyarrow as pa

    from pumphouse.spark.driver.base import ColumnSelection, Offset, SourceDriver
    from pumphouse.spark.options import SourceOptions

log = logging.getLogger("pumphouse.spark")


class StreamCallsBase(DataSourceStreamReader):
    """The calls that every Spark makes in the same way."""

    columns: ColumnSelection
    options: SourceOptions

    @property
    @abstractmethod
    def driver(self) -> SourceDriver: ...

    @abstractmethod
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]: ...

    def initialOffset(self) -> Offset:
        return self.driver.initial_offset()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self.driver.tasks(start, end, self.columns)

    def commit(self, end: Offset) -> None:
        self.driver.committed(end)


class CallsWithoutLimits(StreamCallsBase):
    """The calls of Spark 4.0 and 4.1, without the start of a batch, its limit and the trigger.

    Spark plans the tasks of every batch. At a restart it also plans an empty batch where the last
    one ended. So a batch starts at the end that was planned last, or else at the first offset of
    the query.

    With the triggers AvailableNow and Once it asks for one end only, and then ends the run. So the
    first end of a run is the newest event, unless `firstBatch=limited`.
    """

    _start: Offset | None = None
    _is_first = True

    def latestOffset(self) -> Offset:  # type: ignore[override]
        start = self.driver.initial_offset() if self._start is None else self._start
        everything = self._is_first and not self.options.limits.first_batch
        end = self.driver.latest_offset(start, None, everything)
        if everything and end != start:
            warn_of_first_batch(self.options)
        self._is_first = False
        return end

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        tasks = super().partitions(start, end)
        self._start = end
        return tasks


def warn_of_first_batch(options: SourceOptions) -> None:
    if options.limits.has_maximum:
        log.warning(
            "%s",
            line(
                "first_batch_unlimited", hub=options.identity.hub, spark=pyspark.__version__,
                todo="set firstBatch=limited if the trigger is not AvailableNow",
            ),
        )  # fmt: skip


if TYPE_CHECKING or has(LIMITS):
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class CallsWithLimits(StreamCallsBase, SupportsTriggerAvailableNow):
        """The calls of Spark 4.2 and newer."""

        def getDefaultReadLimit(self) -> ReadLimit:
            return ReadMaxRows(self.driver.default_limit())

        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
            rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            return self.driver.latest_offset(start, rows, isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> Offset:
            return self.driver.report()

        def prepareForTriggerAvailableNow(self) -> None:
            self.driver.end_at_newest()

    StreamCalls = CallsWithLimits
else:
    StreamCalls = CallsWithoutLimits
