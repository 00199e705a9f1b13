"""Rows of Spark as events, and rows of Spark 4.0 as Arrow batches."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
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


@given(st.lists(st.tuples(st.binary(max_size=9), st.sampled_from([None, "a", "b"])), min_size=1))
def test_rows_without_properties_become_the_events_of_rows_with_empty_ones(
    rows: list[tuple[bytes, str | None]],
) -> None:
    bodies, keys = zip(*rows, strict=True)
    columns = [pa.array(bodies, pa.binary()), pa.array(keys, pa.string())]
    empty = pa.array([[]] * len(rows), pa.map_(pa.string(), pa.string()))
    simple = pa.RecordBatch.from_arrays(columns, names=["body", "partitionKey"])
    full = pa.RecordBatch.from_arrays([*columns, empty], names=[*simple.schema.names, "properties"])
    without = RowFormat(None, "partitionKey", None, None, None)
    having = RowFormat(None, "partitionKey", "properties", None, None)
    assert list(without.events(simple, 0, None)) == list(having.events(full, 0, None))


def test_a_key_of_all_rows_and_a_partition_of_all_rows() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"], pa.binary())], names=["body"])
    keyed = RowFormat(None, None, None, None, "home-7").events(batch, 0, None)
    assert [(partition, event.partition_key) for partition, event in keyed] == [
        (None, "home-7"),
        (None, "home-7"),
    ]
    placed = RowFormat(None, None, None, "3", None).events(batch, 0, None)
    assert [(partition, event.body) for partition, event in placed] == [("3", b"x"), ("3", b"y")]
