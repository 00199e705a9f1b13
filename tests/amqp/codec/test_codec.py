"""The AMQP codec: values and their bytes in both directions.

The hexadecimal is written from the specification (OASIS AMQP 1.0, part 1), not taken from a run.
"""

from __future__ import annotations

import enum
import pickle
import struct
import uuid
from typing import Any

import pytest

from pumphouse.amqp.codec import decode, encode, encode_into
from pumphouse.amqp.constructors import NAMES
from pumphouse.amqp.types import (
    Array,
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
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
from pumphouse.errors import LocalProtocolError
from tests.amqp.codec.codec_tables import ARRAYS, SOME_UUID, TABLE, WIDE_FORMS, assert_read, form


class Level(enum.IntEnum):
    LOW = 300


class Condition(Symbol, enum.Enum):
    STOLEN = "amqp:link:stolen"


def assert_both_directions(value: Any, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert encode(value).hex() == data.hex(), f"{value!r:.80} as {hexadecimal[:40]}"
    out = bytearray(b"before")
    encode_into(out, value)
    assert out == b"before" + data
    assert_read(data, value)


def test_values_have_these_bytes_in_both_directions() -> None:
    for value, hexadecimal in TABLE:
        assert_both_directions(value, hexadecimal)


def test_a_wide_form_decodes_to_the_same_value() -> None:
    for value, hexadecimal in WIDE_FORMS:
        assert_read(bytes.fromhex(hexadecimal), value)


def test_the_tables_cover_every_constructor() -> None:
    rows = [bytes.fromhex(hexadecimal) for _, hexadecimal in TABLE + WIDE_FORMS]
    assert {data[0] for data in rows} == NAMES.keys() | {0x00}
    assert {value.code for value, _ in ARRAYS} == NAMES.keys()


@pytest.mark.parametrize(
    ("value", "same"),
    [
        ((), []),
        ((1, (None,)), [1, [None]]),
        (bytearray(b"x"), b"x"),
        (memoryview(b"xyz")[::2], b"xz"),
        (memoryview(struct.pack("=2H", 1, 1)), struct.pack("=2H", 1, 1)),
        (Level.LOW, 300),
        (Condition.STOLEN, Symbol("amqp:link:stolen")),
        (Array(0x70, (1, UByte(2))), array_of(UInt, [1, 2])),
        (Array(0xB3, ("a",)), array_of(Symbol, ["a"])),
        (Array(0xD0, ((1,),)), array_of(list, [[1]])),
        (Array(0x82, (1,)), array_of(float, [1.0])),
    ],
)
def test_values_of_other_classes_are_converted(value: Any, same: Any) -> None:
    assert encode(value) == encode(same)


def test_binary_is_copied_out_of_the_buffer() -> None:
    buffer = bytearray(encode([b"abc", b"x" * 300]))
    items, _ = decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert items == [b"abc", b"x" * 300]
    assert {type(item) for item in items} == {bytes}


def test_decoded_empty_lists_are_separate_objects() -> None:
    (first, two), _ = decode(encode([[], []]))
    first.append(1)
    assert two == []


# --- The classes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "plain", "shown"),
    [
        (UByte(5), 5, "UByte(5)"),
        (UShort(5), 5, "UShort(5)"),
        (UInt(5), 5, "UInt(5)"),
        (ULong(5), 5, "ULong(5)"),
        (Byte(-5), -5, "Byte(-5)"),
        (Short(-5), -5, "Short(-5)"),
        (Int(-5), -5, "Int(-5)"),
        (Timestamp(5), 5, "Timestamp(5)"),
        (Float(0.5), 0.5, "Float(0.5)"),
        (Symbol("a"), "a", "Symbol('a')"),
        (Char("a"), "a", "Char('a')"),
    ],
)
def test_a_typed_value_equals_its_plain_value_and_shows_its_type(
    value: Any, plain: Any, shown: str
) -> None:
    assert value == plain
    assert hash(value) == hash(plain)
    assert repr(value) == shown
    assert str(value) == f"{value}" == str(plain)
    assert form(pickle.loads(pickle.dumps(value))) == form(value)
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    ("kind", "items", "code"),
    [
        (type(None), [None], 0x40),
        (bool, [True], 0x56),
        (UByte, [1], 0x50),
        (Byte, [-1], 0x51),
        (UShort, [1], 0x60),
        (Short, [-1], 0x61),
        (Int, [-1], 0x71),
        (ULong, [1], 0x80),
        (int, [1], 0x81),
        (float, [0.5], 0x82),
        (bytes, [b"x"], 0xB0),
        (str, ["x"], 0xB1),
        (list, [[1]], 0xD0),
        (Decimal64, [Decimal64(bytes(8))], 0x84),
        (Decimal128, [Decimal128(bytes(16))], 0x94),
        (Symbol, ["a", Symbol("b")], 0xB3),
        (Char, ["a"], 0x73),
        (Timestamp, [1], 0x83),
        (UInt, [1, ULong(2)], 0x70),
        (Float, [0.5], 0x72),
        (uuid.UUID, [SOME_UUID], 0x98),
        (dict, [{}], 0xD1),
        (Array, [Array(0x40, ())], 0xF0),
        (Decimal32, [Decimal32(bytes(4))], 0x74),
    ],
)
def test_array_of_converts_every_item(kind: type, items: list[Any], code: int) -> None:
    array = array_of(kind, items)
    assert array == Array(code, tuple(items))
    assert {type(item) for item in array.items} == {kind}
    assert_read(encode(array), array)


def test_array_of_does_not_convert_other_types() -> None:
    assert array_of(Symbol, [5]).items == (5,)
    with pytest.raises(LocalProtocolError, match=r"^symbol \(0xb3\) cannot hold 5$"):
        encode(array_of(Symbol, [5]))
    with pytest.raises(LocalProtocolError, match=r"^an array cannot contain set: use"):
        array_of(set, [])
