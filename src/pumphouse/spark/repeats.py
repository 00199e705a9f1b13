"""Dropping what was written twice: the reader's half of an exactly-once effect.

The sink sends at least once. With `dedupProperties=true` each event says which row of which task of
which batch it is, and Spark repeats a batch with the same rows in the same tasks; so an event that
says the same as another is a repeat of it.

    from pumphouse.spark import drop_repeats
    rows = drop_repeats(spark.readStream.format("eventhubs")...load(), within="1 hour")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.spark.identities import BATCH, QUERY, ROW, TASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

MARK = "__written_as"


def drop_repeats(events: DataFrame, within: str = "1 hour") -> DataFrame:
    """The events of a hub without repeats; those that do not say what they are all stay.

    Of a stream, repeats are found among the events of the last while: `within` must be longer than
    a writer may need to come back after a crash. It needs the columns enqueuedTime, partition,
    sequenceNumber and properties.
    """
    from pyspark.sql import functions as f

    told = [f.col("properties")[name] for name in (QUERY, BATCH, TASK, ROW)]
    parted = [part for one in told for part in (f.lit("/"), one)]
    itself = f.concat(f.lit("#"), f.col("partition"), f.lit("/"), f.col("sequenceNumber"))
    marked = events.withColumn(MARK, f.coalesce(f.concat(*parted), itself))
    if not events.isStreaming:
        return marked.dropDuplicates([MARK]).drop(MARK)
    late = marked.withWatermark("enqueuedTime", within)
    return late.dropDuplicatesWithinWatermark([MARK]).drop(MARK)
