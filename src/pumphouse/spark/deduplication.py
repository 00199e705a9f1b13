"""Dropping what was written twice: the reader's half of an exactly-once effect.

The sink sends at least once. With `dedupProperties=true` each event says which row of which task of
which batch it is, and Spark repeats a batch with the same rows in the same tasks; so an event that
says the same as another is a repeat of it.

    from pumphouse.spark import drop_repeats
    rows = drop_repeats(spark.readStream.format("eventhubs")...load(), within="1 hour")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The properties by which the sink numbers each row.
QUERY, BATCH, TASK, ROW = "spark-query-id", "spark-batch-id", "spark-partition-id", "spark-row"

MARK, READ = "__written_as", "__read_at"


def drop_repeats(events: DataFrame, within: str = "1 hour") -> DataFrame:
    """The events of a hub without repeats; those that do not say what they are all stay.

    Of a stream, repeats are found among the events read in the last while: `within` must be longer
    than a writer may need to come back after a crash, than one partition may be read later than
    another, and than this query may stand still. Nothing is ever dropped for being late. It needs
    the columns partition, sequenceNumber and properties.
    """
    from pyspark.sql import functions as f

    told = [f.col("properties")[name] for name in (QUERY, BATCH, TASK, ROW)]
    parted = [part for one in told for part in (f.lit("/"), one)]
    itself = f.concat(f.lit("#"), f.col("partition"), f.lit("/"), f.col("sequenceNumber"))
    marked = events.withColumn(MARK, f.coalesce(f.concat(*parted), itself))
    if not events.isStreaming:
        return marked.dropDuplicates([MARK]).drop(MARK)
    # Not by enqueuedTime: whatever is older than a watermark is dropped, repeat or not, and one
    # partition may well lie hours behind another.
    read = marked.withColumn(READ, f.current_timestamp()).withWatermark(READ, within)
    return read.dropDuplicatesWithinWatermark([MARK]).drop(MARK, READ)
