"""The AMQP codec with any values and any bytes, and beside the codec of the Azure SDK."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.codec import decode, encode, skip
from pumphouse.amqp.constructors import NAMES
from pumphouse.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    array_of,
)
from pumphouse.errors import MalformedBytes
from tests.amqp.codec.codec_tables import assert_read

# --- Properties ----------------------------------------------------------------------------------

# No deadline per example, because the machine may be slow; pytest limits the whole test.
PATIENT = settings(deadline=None)


def ranged(kind: Callable[[int], Any], low: int, high: int) -> st.SearchStrategy[Any]:
    return st.builds(kind, st.integers(low, high))


def texts(kind: Callable[[str], Any], characters: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    # Long texts by repetition: drawing 256 characters is slow.
    return st.builds(
        lambda text, times: kind(text * times), st.text(characters, max_size=9), st.integers(1, 40)
    )


ASCII = st.characters(codec="ascii")
CHARACTERS = st.characters(exclude_categories=["Cs"])
LISTS = st.lists(st.none() | st.integers(-300, 300), max_size=4)
MAPS = st.dictionaries(st.text(max_size=3), st.booleans(), max_size=3)
INNER_ARRAYS = st.builds(
    array_of, st.just(UInt), st.lists(st.integers(0, 2**32 - 1), max_size=4)
) | st.builds(array_of, st.just(bool), st.lists(st.booleans(), max_size=4))

# Values of an array by constructor; narrow ones hold less than their type.
ITEMS: dict[int, st.SearchStrategy[Any]] = {
    0x40: st.none(),
    0x41: st.just(True),
    0x42: st.just(False),
    0x43: st.just(UInt(0)),
    0x44: st.just(ULong(0)),
    0x45: st.builds(list[Any]),
    0x50: ranged(UByte, 0, 255),
    0x51: ranged(Byte, -128, 127),
    0x52: ranged(UInt, 0, 255),
    0x53: ranged(ULong, 0, 255),
    0x54: ranged(Int, -128, 127),
    0x55: st.integers(-128, 127),
    0x56: st.booleans(),
    0x60: ranged(UShort, 0, 2**16 - 1),
    0x61: ranged(Short, -(2**15), 2**15 - 1),
    0x70: ranged(UInt, 0, 2**32 - 1),
    0x71: ranged(Int, -(2**31), 2**31 - 1),
    0x72: st.builds(Float, st.floats(width=32, allow_nan=False)),
    0x73: st.builds(Char, CHARACTERS),
    0x74: st.builds(Decimal32, st.binary(min_size=4, max_size=4)),
    0x80: ranged(ULong, 0, 2**64 - 1),
    0x81: st.integers(-(2**63), 2**63 - 1),
    0x82: st.floats(),
    0x83: ranged(Timestamp, -(2**63), 2**63 - 1),
    0x84: st.builds(Decimal64, st.binary(min_size=8, max_size=8)),
    0x94: st.builds(Decimal128, st.binary(min_size=16, max_size=16)),
    0x98: st.uuids(),
    0xA0: st.binary(max_size=255),
    0xA1: st.text(CHARACTERS, max_size=60),
    0xA3: st.builds(Symbol, st.text(ASCII, max_size=60)),
    0xB0: st.binary(max_size=300),
    0xB1: texts(str, CHARACTERS),
    0xB3: texts(Symbol, ASCII),
    0xC0: LISTS,
    0xC1: MAPS,
    0xD0: LISTS,
    0xD1: MAPS,
    0xE0: INNER_ARRAYS,
    0xF0: INNER_ARRAYS,
}
SCALAR_VALUES = st.one_of([ITEMS[code] for code in ITEMS if code != 0x45 and code < 0xC0])


@st.composite
def array_values(draw: st.DrawFn) -> Array:
    code = draw(st.sampled_from(list(ITEMS)))
    descriptor = draw(st.none() | SCALAR_VALUES | st.builds(Described, LISTS, LISTS))
    return Array(code, tuple(draw(st.lists(ITEMS[code], max_size=6))), descriptor)


VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALAR_VALUES | array_values(),
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(SCALAR_VALUES, inner, max_size=5)
        | st.builds(Described, inner, inner)
    ),
    max_leaves=12,
)


@PATIENT
@given(VALUES)
def test_any_value_round_trips(value: Any) -> None:
    assert_read(encode(value), value)


@PATIENT
@given(VALUES, st.data())
def test_any_truncated_value_is_malformed(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    end = data.draw(st.integers(0, len(encoded) - 1))
    for read in (decode, skip):
        with pytest.raises(MalformedBytes):
            read(encoded, 0, end)


def assert_read_or_refused(data: bytes) -> None:
    """Check that bytes are refused with MalformedBytes, or decode to a value that round-trips."""
    stop = offset_or_stop(lambda: skip(data, 0))
    assert 0 <= stop <= len(data)
    try:
        value, pos = decode(data)
    except MalformedBytes:
        assert 0 <= offset_or_stop(lambda: decode(data)[1]) <= len(data)
    else:
        assert stop == pos
        assert_read(encode(value), value)


def offset_or_stop(read: Callable[[], int]) -> int:
    try:
        return read()
    except MalformedBytes as error:
        return error.offset


@PATIENT
@given(st.binary(max_size=64))
def test_any_bytes_are_a_value_or_malformed(data: bytes) -> None:
    assert_read_or_refused(data)


# Constructors and small sizes: more of these are almost valid than of random bytes.
@PATIENT
@given(st.lists(st.sampled_from([*range(9), *NAMES]), max_size=24))
def test_any_constructors_are_a_value_or_malformed(codes: list[int]) -> None:
    assert_read_or_refused(bytes(codes))


@PATIENT
@given(VALUES, st.data())
def test_any_value_with_a_few_bytes_changed_is_a_value_or_malformed(
    value: Any, data: st.DataObject
) -> None:
    encoded = bytearray(encode(value))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(encoded)))
        stop = min(start + data.draw(st.integers(0, 2)), len(encoded))
        encoded[start:stop] = data.draw(st.binary(max_size=2))
    assert_read_or_refused(bytes(encoded))


# --- The codec of the Azure SDK ------------------------------------------------------------------

SDK_TYPES = {
    type(None): "NULL",
    bool: "BOOL",
    UByte: "UBYTE",
    Byte: "BYTE",
    UShort: "USHORT",
    Short: "SHORT",
    UInt: "UINT",
    Int: "INT",
    ULong: "ULONG",
    int: "LONG",
    Float: "FLOAT",
    float: "DOUBLE",
    Timestamp: "TIMESTAMP",
    uuid.UUID: "UUID",
    bytes: "BINARY",
    str: "STRING",
    Symbol: "SYMBOL",
    list: "LIST",
    dict: "MAP",
    Array: "ARRAY",
    Described: "DESCRIBED",
}


def as_sdk_reads(value: Any) -> Any:
    """A value as the SDK decodes it: strings and symbols are bytes, most descriptors are lost."""
    match value:
        case str():
            return value.encode()
        case list():
            return [as_sdk_reads(item) for item in value]
        case dict():
            return {as_sdk_reads(key): as_sdk_reads(item) for key, item in value.items()}
        case Array():
            return [as_sdk_reads(item) for item in value.items]
        case Described():
            return as_sdk_reads(value.value)
    return value


def as_sdk_writes(value: Any) -> dict[str, Any]:
    inside: Any = value
    match value:
        case list():
            inside = [as_sdk_writes(item) for item in value]
        case dict():
            inside = [(as_sdk_writes(key), as_sdk_writes(item)) for key, item in value.items()]
        case Array():
            inside = [as_sdk_writes(item) for item in value.items]
        case Described():
            inside = (as_sdk_writes(value.descriptor), as_sdk_writes(value.value))
    return {"TYPE": SDK_TYPES[type(value)], "VALUE": inside}


# Without char and decimals, which the SDK cannot decode correctly.
SDK_CODES = [*range(0x40, 0x45), *range(0x50, 0x57), 0x60, 0x61, 0x70, 0x71, 0x72, 0x80, 0x81]
SDK_CODES += [0x83, 0x98, 0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3]
SDK_SCALARS = st.one_of([ITEMS[code] for code in SDK_CODES]) | st.floats(allow_nan=False)
# The SDK encodes empty arrays and arrays of booleans incorrectly.
SDK_ARRAYS = st.sampled_from([Symbol, str, UShort, int]).flatmap(
    lambda kind: st.builds(
        array_of, st.just(kind), st.lists(st.sampled_from(["7", "8"]).map(kind), min_size=1)
    )
)
SDK_VALUES: st.SearchStrategy[Any] = st.recursive(
    SDK_SCALARS | SDK_ARRAYS,
    lambda inner: (
        st.lists(inner, max_size=12)
        | st.dictionaries(ITEMS[0xB3], inner, max_size=5)
        | st.builds(Described, ranged(ULong, 40, 300), inner)
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def sdk() -> Any:
    pytest.importorskip("azure.eventhub")
    return importlib.import_module("azure.eventhub._pyamqp")


@PATIENT
@given(value=SDK_VALUES)
def test_the_azure_codec_decodes_our_bytes(sdk: Any, value: Any) -> None:
    data = memoryview(encode(value))
    rest, got = sdk._decode._DECODE_BY_CONSTRUCTOR[data[0]](data[1:])
    assert got == as_sdk_reads(value)
    assert len(rest) == 0


@PATIENT
@given(value=SDK_VALUES)
def test_we_decode_the_bytes_of_the_azure_codec(sdk: Any, value: Any) -> None:
    out = bytearray()
    sdk._encode.encode_value(out, as_sdk_writes(value))
    assert_read(bytes(out), value)
