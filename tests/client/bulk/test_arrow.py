"""Record batches: groups of rows and single messages give the same columns."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.columnar.buffer_view import SLACK, BufferView
from pumphouse.amqp.columnar.columns import ColumnReader
from pumphouse.amqp.messages import Message, Properties, encode_message
from pumphouse.amqp.types import Byte, Int, Symbol, Timestamp, UByte, UInt, ULong, UShort
from pumphouse.client.bulk.arrow import ALL_COLUMNS, TYPES, BatchBuilder, schema_of
from pumphouse.errors import MalformedBytes, OptionError, RemoteProtocolError
from tests.amqp.columnar.frame_runs import CHANNEL, HANDLE, SIMPLE, Run, indexed, runs, transfer

GROUPED, SINGLE = 0, 1 << 30
NOTES = {
    Symbol("x-opt-sequence-number"): 500,
    Symbol("x-opt-offset"): "7000",
    Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_123),
}


def batch_of(
    data: bytearray, singles_max: int, columns: tuple[str, ...] = ALL_COLUMNS
) -> pa.RecordBatch | None:
    index = indexed(data)
    reader = ColumnReader(CHANNEL, HANDLE, singles_max=singles_max)
    rows = BatchBuilder("4", columns).rows(reader.read(BufferView(data), index.starts, index.ends))
    rows.sequence()
    return rows.batch()


def both(messages: list[Message | bytes], columns: tuple[str, ...] = ALL_COLUMNS) -> list[Any]:
    """The rows of a batch, which must be equal for both ways of reading."""
    payloads = [
        message if isinstance(message, bytes) else encode_message(message) for message in messages
    ]
    frames = [transfer("fixed", at, payload) for at, payload in enumerate(payloads)]
    data = bytearray(b"".join(frames)) + bytes(SLACK)
    together, alone = batch_of(data, GROUPED, columns), batch_of(data, SINGLE, columns)
    assert together == alone
    assert together is not None
    together.validate(full=True)
    rows: list[Any] = together.to_pylist()
    return rows


def message(**fields: Any) -> Message:
    fields = {"annotations": NOTES, "data": (b"body",), **fields}
    return Message(**fields)


# --- Groups and single messages ------------------------------------------------------------------


@given(runs(rows=12), st.permutations(ALL_COLUMNS))
def test_groups_and_single_messages_give_the_same_batch(run: Run, columns: list[str]) -> None:
    outcomes: list[Any] = []
    for singles_max in (GROUPED, SINGLE):
        try:
            outcomes.append(batch_of(run.data, singles_max, tuple(columns[:7])))
        except RemoteProtocolError:
            outcomes.append("refused")  # each raises its first error
    assert outcomes[0] == outcomes[1]


@given(st.sampled_from(list(SIMPLE)).flatmap(lambda kind: st.lists(SIMPLE[kind], min_size=1)))
def test_properties_of_every_type_become_text(values: list[Any]) -> None:
    rows = both([message(application={"a": value, "b": "x"}) for value in values])
    assert [len(row["properties"]) for row in rows] == [2] * len(values)


NEAR = st.floats(-1e11, 1e11) | st.floats(-1e-3, 1e-3) | st.integers(-(10**11), 10**11).map(float)


@given(st.lists(NEAR, min_size=1) | st.lists(st.sampled_from([0.0, -0.0, 20.5, 20.0, 1e-4, 1e10])))
def test_doubles_become_text(values: list[float]) -> None:
    rows = both([message(application={"a": value}) for value in [*values, 0.5]], ("properties",))
    assert [row["properties"] for row in rows[:-1]] == [[("a", repr(value))] for value in values]


@pytest.mark.parametrize("kind", ["long", "int", "uint", "ulong", "ubyte", "ushort", "byte"])
def test_integers_of_any_size_become_text(kind: str) -> None:
    """Zero and small integers have short forms, mixed with others."""
    kinds = {"long": int, "int": Int, "uint": UInt, "ulong": ULong, "ubyte": UByte,
             "ushort": UShort, "byte": Byte}  # fmt: skip
    top = {"byte": 127, "ubyte": 255, "ushort": 65535}.get(kind, (1 << 31) - 1)
    values = [kinds[kind](value) for value in (0, 1, 100, 0, top, 5)]
    rows = both([message(application={"a": value}) for value in values], ("properties",))
    assert [row["properties"][0][1] for row in rows] == [str(int(value)) for value in values]


def test_a_row_with_all_columns() -> None:
    notes = {**NOTES, Symbol("x-opt-partition-key"): "kéy", Symbol("x-opt-publisher"): "me"}
    sent = message(
        annotations={**notes, Symbol("x-mine"): UInt(3)},
        properties=Properties(message_id="m-1", content_type="text/plain"),
        application={"kind": "temperature", "reading": -5, "ok": True, "value": 20.5},
    )
    rows = both([sent] * 3)
    enqueued = rows[0].pop("enqueuedTime")
    assert enqueued.isoformat() == "2023-11-14T22:13:20.123000+00:00"
    assert rows[0] == {
        "body": b"body",
        "partition": "4",
        "offset": "7000",
        "sequenceNumber": 500,
        "publisher": "me",
        "partitionKey": "kéy",
        "properties": [
            ("kind", "temperature"),
            ("reading", "-5"),
            ("ok", "true"),
            ("value", "20.5"),
        ],
        "systemProperties": [
            ("x-opt-partition-key", "kéy"),
            ("x-opt-publisher", "me"),
            ("x-mine", "3"),
            ("message-id", "m-1"),
            ("content-type", "text/plain"),
        ],
    }


def test_a_row_without_optional_values() -> None:
    [row, _] = both([message(annotations={Symbol("x-opt-sequence-number"): 5}, data=(b"",))] * 2)
    assert row == {
        "body": b"",
        "partition": "4",
        "offset": None,
        "sequenceNumber": 5,
        "enqueuedTime": None,
        "publisher": None,
        "partitionKey": None,
        "properties": [],
        "systemProperties": [],
    }


def test_rows_of_different_layouts_keep_their_order() -> None:
    kinds: list[Message] = [
        message(),
        message(application={"a": 1}),
        message(data=(b"one", b"two")),
        message(data=(), value={"k": [1]}),
        message(data=(), value="text"),
        message(data=(), sequence=([1, 2],)),
        message(data=()),
    ]
    sent = [
        Message(
            annotations={**NOTES, Symbol("x-opt-sequence-number"): number},
            application=kind.application,
            data=kind.data,
            value=kind.value,
            sequence=kind.sequence,
        )
        for number, kind in enumerate(kinds * 5, 500)
    ]
    rows = both([*sent])
    assert [row["sequenceNumber"] for row in rows] == list(range(500, 535))
    bodies = [row["body"] for row in rows[:7]]
    assert bodies == [b"body", b"body", b"onetwo", b"{'k': [1]}", b"text", b"[[1, 2]]", b""]


# --- Annotations of other types ------------------------------------------------------------------


def noted(name: str, value: Any) -> Message:
    return message(annotations={**NOTES, Symbol(name): value})


@pytest.mark.parametrize(
    ("value", "text"),
    [("text", "text"), (Symbol("sym"), "sym"), (None, None), (7, "7"), ([1], "[1]"), (b"", "[]")],
)
@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("x-opt-offset", "offset"),
        ("x-opt-partition-key", "partitionKey"),
        ("x-opt-publisher", "publisher"),
    ],
)
def test_annotations_of_other_types_become_text(
    name: str, column: str, value: Any, text: str | None
) -> None:
    assert [row[column] for row in both([noted(name, value)] * 3)] == [text] * 3
    mixed = both([noted(name, value), noted(name, "other")])
    assert [row[column] for row in mixed] == [text, "other"]


@pytest.mark.parametrize("value", [ULong(1 << 62), UInt(5), 5, -5])
def test_sequence_numbers_of_any_width(value: int) -> None:
    rows = both([noted("x-opt-sequence-number", value)] * 3)
    assert [row["sequenceNumber"] for row in rows] == [value] * 3


@pytest.mark.parametrize("value", [None, "5", True, Timestamp(5), 5.0, ULong(1 << 63), [5]])
def test_an_event_without_a_sequence_number_is_refused(value: Any) -> None:
    sent = encode_message(noted("x-opt-sequence-number", value))
    data = bytearray(b"".join(transfer("fixed", at, sent) for at in range(3))) + bytes(SLACK)
    for singles_max in (GROUPED, SINGLE):
        with pytest.raises(RemoteProtocolError, match=re.escape(f"sequence number {value!r},")):
            batch_of(data, singles_max)


@pytest.mark.parametrize(
    ("value", "ms"), [(5, 5), (Timestamp(-5), -5), (UInt(7), 7), (None, None), ("5", None)]
)
def test_enqueued_times_become_timestamps(value: Any, ms: int | None) -> None:
    sent = noted("x-opt-enqueued-time", value)
    frames = [transfer("fixed", at, encode_message(sent)) for at in range(3)]
    for singles_max in (GROUPED, SINGLE):
        batch = batch_of(bytearray(b"".join(frames)) + bytes(SLACK), singles_max)
        assert batch is not None
        micros = batch["enqueuedTime"].cast(pa.int64()).to_pylist()
        assert micros == [None if ms is None else ms * 1000] * 3
    both([sent, noted("x-opt-enqueued-time", Timestamp(1))])


@pytest.mark.parametrize("ms", [1 << 62, -(1 << 62), -(1 << 63), (1 << 63) - 1])
def test_an_enqueued_time_out_of_range_is_refused(ms: int) -> None:
    for singles_max in (GROUPED, SINGLE):
        data = transfer("fixed", 0, encode_message(noted("x-opt-enqueued-time", Timestamp(ms))))
        with pytest.raises(RemoteProtocolError, match=f"enqueued time of {ms} ms"):
            batch_of(bytearray(data) + bytes(SLACK), singles_max)


def test_an_annotation_and_a_property_of_one_name_are_both_kept() -> None:
    sent = message(
        annotations={**NOTES, Symbol("message-id"): "annotation", Symbol("b"): 1},
        properties=Properties(message_id="property"),
    )
    [row, _] = both([sent, sent])
    assert row["systemProperties"] == [("message-id", "property"), ("b", "1")]


@pytest.mark.parametrize("name", ["x-opt-partition-key", "x-opt-offset", "mine"])
def test_text_that_is_not_utf8_is_refused(name: str) -> None:
    good = encode_message(noted(name, "good"))
    bad = good.replace(b"\xa1\x04good", b"\xa1\x04go\xffd")
    frames = [transfer("fixed", at, payload) for at, payload in enumerate([*[good] * 20, bad])]
    data = bytearray(b"".join(frames)) + bytes(SLACK)
    for singles_max in (GROUPED, SINGLE):
        with pytest.raises(MalformedBytes, match="UTF-8"):
            batch_of(data, singles_max)
    # A column that is not requested is not checked.
    if name == "mine":
        batch = batch_of(data, GROUPED, ("body",))
        assert batch is not None
        assert batch.num_rows == 21


def test_a_property_that_ends_inside_a_character_is_refused() -> None:
    """Each text must be valid by itself, not only their concatenation."""
    whole = encode("é")[2:]
    payload = encode_message(message(application={"a": "xx", "b": "yy"}))
    cut = payload.replace(b"xx", b"x" + whole[:1]).replace(b"yy", whole[1:] + b"y")
    frames = bytearray(transfer("fixed", 0, cut) * 2) + bytes(SLACK)
    for singles_max in (GROUPED, SINGLE):
        with pytest.raises(MalformedBytes):
            batch_of(frames.copy(), singles_max, ("properties",))


# --- Columns -------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [("body",), ("properties", "body"), ALL_COLUMNS[::-1]])
def test_columns_are_chosen(columns: tuple[str, ...]) -> None:
    assert schema_of(columns).names == list(columns)
    assert [list(row) for row in both([message()] * 2, columns)] == [list(columns)] * 2


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (("body", "header"), "'header' is not one of them"),
        ((), "got none"),
        (("body", "body"), "got body, body"),
    ],
)
def test_invalid_columns_are_refused(columns: tuple[str, ...], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        schema_of(columns)


def test_the_schema_is_that_of_spark() -> None:
    arrow = pytest.importorskip("pyspark.sql.pandas.types")
    spark = pytest.importorskip("pyspark.sql.types")
    words = spark.MapType(spark.StringType(), spark.StringType())
    kinds = {
        pa.binary(): spark.BinaryType(),
        pa.string(): spark.StringType(),
        pa.int64(): spark.LongType(),
        TYPES["enqueuedTime"]: spark.TimestampType(),
        TYPES["properties"]: words,
    }
    asked = spark.StructType([spark.StructField(name, kinds[TYPES[name]]) for name in ALL_COLUMNS])
    assert schema_of(ALL_COLUMNS).equals(arrow.to_arrow_schema(asked, timezone="UTC"))


def test_pandas_is_not_imported() -> None:
    """It takes a second, and pyarrow imports it for a list of strings."""
    code = """
import sys
from tests.client.bulk.test_arrow import both, message, noted
from tests.client.bulk.test_arrow import *
frames = [transfer("fixed", at, encode_message(one)) for at, one in enumerate(
    [message(application={"a": 1, "b": "x"})] * 20 + [message(data=(b"1", b"2"))] * 3
    + [noted("x-opt-enqueued-time", None), noted("x-opt-partition-key", 5)])]
for singles_max in (GROUPED, SINGLE):
    assert batch_of(bytearray(b"".join(frames)) + bytes(SLACK), singles_max).num_rows == 25
assert "pandas" not in sys.modules, "pandas"
"""
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_types_of_time_and_body() -> None:
    assert TYPES["enqueuedTime"] == pa.timestamp("us", tz="UTC")
    assert TYPES["body"] == pa.binary()
