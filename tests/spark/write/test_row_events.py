"""Rows of Spark as events, and rows of Spark 4.0 as Arrow batches."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row

from pumphouse.client.base import PlainEvents
from pumphouse.events import Event
from pumphouse.spark.write.rows import OutgoingRows, RowFormat, RowOrigin


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


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.sampled_from([None, "a", "b"])), min_size=1),
    st.integers(1, 4),
)
def test_plain_rows_are_the_events_of_rows_with_empty_properties_by_key(
    rows: list[tuple[bytes, str | None]], piece: int
) -> None:
    bodies, keys = zip(*rows, strict=True)
    columns = [pa.array(bodies, pa.binary()), pa.array(keys, pa.string())]
    empty = pa.array([[]] * len(rows), pa.map_(pa.string(), pa.string()))
    simple = pa.RecordBatch.from_arrays(columns, names=["body", "partitionKey"])
    full = pa.RecordBatch.from_arrays([*columns, empty], names=[*simple.schema.names, "properties"])
    plain_format = RowFormat(None, "partitionKey", None, None, None)
    assert plain_format.is_plain(None)
    pieces = [simple.slice(first, piece) for first in range(0, len(rows), piece)]
    plain = plain_format.plain_rows(pieces, 7)
    having = RowFormat(None, "partitionKey", "properties", None, None)
    expected = dict(enumerate((event for _, event in having.events(full, 7, None)), 7))
    assert [expected[number] for number in plain.numbers] == list(plain.events)
    for key in set(keys):
        numbers = [number for number in plain.numbers if expected[number].partition_key == key]
        assert numbers == sorted(numbers)
    found = [event.partition_key for event in plain.events]
    changes = sum(left != right for left, right in itertools.pairwise(found))
    assert changes == len(set(keys)) - 1  # rows of one key are side by side
    assert plain.body_bytes() == sum(map(len, bodies))


def test_rows_of_which_each_must_be_checked_are_not_plain() -> None:
    origin = RowOrigin("query", "1", 0)
    assert RowFormat(None, None, None, "3", None).is_plain(None)
    assert not RowFormat(None, None, None, None, None).is_plain(origin)
    assert not RowFormat("partition", None, None, None, None).is_plain(None)
    assert not RowFormat(None, None, "properties", None, None).is_plain(None)
    assert not RowFormat(None, "partitionKey", None, "3", None).is_plain(None)


def test_outgoing_rows_name_their_numbers_and_the_largest() -> None:
    several = OutgoingRows([5, 3, 4], PlainEvents([("k", [b"a", b"long"]), (None, [b"b"])]))
    assert (str(several), several.largest()) == (
        "rows 3 to 5 of the task",
        (3, Event(b"long", partition_key="k")),
    )
    assert str(OutgoingRows([8], [Event(b"a")])) == "row 8 of the task"


def test_a_key_of_all_rows_and_a_partition_of_all_rows() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"], pa.binary())], names=["body"])
    keyed = RowFormat(None, None, None, None, "home-7").events(batch, 0, None)
    assert [(partition, event.partition_key) for partition, event in keyed] == [
        (None, "home-7"),
        (None, "home-7"),
    ]
    placed = RowFormat(None, None, None, "3", None).events(batch, 0, None)
    assert [(partition, event.body) for partition, event in placed] == [("3", b"x"), ("3", b"y")]
