"""Drops events that the sink wrote twice: the reader's half of an exactly-once effect.

The sink sends at least once. With `dedupProperties=true` each event names its query, batch, task
and row. Spark replays a batch with the same rows in the same tasks, so two events with the same
names are duplicates.

    from pumphouse.spark import drop_repeats
    rows = drop_repeats(spark.readStream.format("eventhubs")...load(), within="1 hour")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The properties by which the sink numbers each row.
QUERY, BATCH, TASK, ROW = "spark-query-id", "spark-batch-id", "spark-partition-id", "spark-row"

ROW_ID, READ_AT = "__written_as", "__read_at"


def drop_repeats(events: DataFrame, within: str = "1 hour") -> DataFrame:
    """The events of a hub without duplicates; events without these properties are all kept.

    In a stream, duplicates are found among the events read within the last `within`. It must be
    longer than a writer needs to restart after a crash, than the lag between two partitions, and
    than this query may be stopped. No event is dropped for being late. The columns partition,
    sequenceNumber and properties are needed.
    """
    from pyspark.sql import functions as f

    properties = [f.col("properties")[name] for name in (QUERY, BATCH, TASK, ROW)]
    row_id_parts = [part for value in properties for part in (f.lit("/"), value)]
    position = f.concat(f.lit("#"), f.col("partition"), f.lit("/"), f.col("sequenceNumber"))
    identified = events.withColumn(ROW_ID, f.coalesce(f.concat(*row_id_parts), position))
    if not events.isStreaming:
        return identified.dropDuplicates([ROW_ID]).drop(ROW_ID)
    # Not by enqueuedTime: Spark drops every event older than the watermark, duplicate or not, and
    # one partition may lie hours behind another.
    timed = identified.withColumn(READ_AT, f.current_timestamp()).withWatermark(READ_AT, within)
    return timed.dropDuplicatesWithinWatermark([ROW_ID]).drop(ROW_ID, READ_AT)
