"""Drops events that the sink wrote twice: the reader's half of an exactly-once effect.

The sink sends at least once. Each event of a streaming query names its query, batch, task and row
in its properties. Spark replays a batch with the same rows in the same tasks, so two events with
the same four values are duplicates.

The row is its number and the checksum of its body and key. If a query gives its rows in another
order when Spark replays them, the values differ: the duplicates stay, and no event is lost.

    from pumphouse.spark import drop_repeats
    rows = drop_repeats(spark.readStream.format("eventhubs")...load(), within="1 hour")
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The properties by which the sink identifies each row.
QUERY, BATCH, TASK, ROW = "spark-query-id", "spark-batch-id", "spark-partition-id", "spark-row"

IDENTITY = (QUERY, BATCH, TASK, ROW)

ROW_ID, READ_AT = "__written_as", "__read_at"


def name_row(number: int, body: bytes, key: str | None) -> str:
    """The name of a row among those of its task."""
    return f"{number}-{crc32((key or '').encode(), crc32(body)):08x}"


def drop_repeats(events: DataFrame, within: str = "1 hour") -> DataFrame:
    """The events of a hub without the duplicates that the sink of a streaming query wrote.

    Events without these properties are all kept. In a stream, an event is a duplicate if the same
    event was read within the last `within`. Choose a time longer than a restart of the writer, the
    lag between two partitions, and any pause of this query. Late events are kept. The columns
    partition, sequenceNumber and properties are needed.
    """
    from pyspark.sql import functions as f

    properties = [f.col("properties")[name] for name in IDENTITY]
    row_id_parts = [part for value in properties for part in (f.lit("/"), value)]
    position = f.concat(f.lit("#"), f.col("partition"), f.lit("/"), f.col("sequenceNumber"))
    identified = events.withColumn(ROW_ID, f.coalesce(f.concat(*row_id_parts), position))
    if not events.isStreaming:
        return identified.dropDuplicates([ROW_ID]).drop(ROW_ID)
    # Not by enqueuedTime: Spark drops every event older than the watermark, duplicate or not, and
    # one partition may lie hours behind another.
    timed = identified.withColumn(READ_AT, f.current_timestamp()).withWatermark(READ_AT, within)
    return timed.dropDuplicatesWithinWatermark([ROW_ID]).drop(ROW_ID, READ_AT)
