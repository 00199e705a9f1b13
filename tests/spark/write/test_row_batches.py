"""Rows of Spark 4.0, which has no Arrow batches for the sink of a stream."""

from __future__ import annotations

from pyspark.sql import Row

from pumphouse.spark.write.rows import RowFormat


def test_rows_become_arrow_batches_of_the_columns_that_are_written() -> None:
    rows = [
        Row(Body=bytearray(b"a"), partitionKey="k", properties={"n": "1"}, offset="7"),
        Row(Body=bytearray(b"b"), partitionKey=None, properties=None, offset="8"),
    ]
    row_format = RowFormat(None, "partitionKey", "properties", None, None, "Body")
    (batch,) = row_format.record_batches(rows)
    events = [event for _, event in row_format.events(batch, 0, None)]
    assert [(event.body, event.partition_key, event.properties) for event in events] == [
        (b"a", "k", {"n": "1"}),
        (b"b", None, {}),
    ]


def test_many_rows_become_several_batches() -> None:
    row_format = RowFormat(None, None, None, None, None)
    batches = list(row_format.record_batches(Row(body=str(each)) for each in range(2500)))
    assert [batch.num_rows for batch in batches] == [1000, 1000, 500]
