"""AMQP values and their bytes: both directions, every form, and everything that can be wrong.

The hexadecimal is written from the specification (OASIS AMQP 1.0, part 1), not taken from a run.
"""

from __future__ import annotations

import enum
import importlib
import math
import pickle
import struct
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pumphouse.amqp.codec import decode, encode, encode_into, skip
from pumphouse.amqp.constructors import MAX_DEPTH, MAX_EMPTY_ITEMS, NAMES
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
from pumphouse.errors import LocalProtocolError, MalformedBytes

SOME_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class Level(enum.IntEnum):
    LOW = 300


class Condition(Symbol, enum.Enum):
    STOLEN = "amqp:link:stolen"


def form(value: Any) -> Any:
    """A value as something that is equal only if type and bits are: True is not 1, nor -0.0 0.0."""
    inside: Any = value
    match value:
        case float():
            inside = struct.pack(">d", value)
        case list():
            inside = [form(item) for item in value]
        case dict():
            inside = [(form(key), form(item)) for key, item in value.items()]
        case Described(descriptor, inner):
            inside = (form(descriptor), form(inner))
        case Array(code, items, descriptor):
            inside = (code, [form(item) for item in items], form(descriptor))
    return type(value), inside


def assert_read(data: bytes, value: Any) -> None:
    """These bytes are this value, also in the midst of others and in any kind of buffer."""
    for buffer in (data, bytearray(data), memoryview(data)):
        got, pos = decode(buffer)
        assert (form(got), pos) == (form(value), len(data))
        assert skip(buffer, 0) == len(data)
    around = b"\x53" + data + b"\xff"
    got, pos = decode(around, 1)
    assert (form(got), pos) == (form(value), len(data) + 1)
    assert skip(around, 1) == len(data) + 1


def assert_both_ways(value: Any, hexadecimal: str) -> None:
    data = bytes.fromhex(hexadecimal)
    assert encode(value).hex() == data.hex()
    out = bytearray(b"before")
    encode_into(out, value)
    assert out == b"before" + data
    assert_read(data, value)


SCALARS = [
    (None, "40"),
    (True, "41"),
    (False, "42"),
    (UByte(0), "50 00"),
    (UByte(255), "50 ff"),
    (Byte(-128), "51 80"),
    (Byte(127), "51 7f"),
    (UShort(0), "60 0000"),
    (UShort(65535), "60 ffff"),
    (Short(-32768), "61 8000"),
    (Short(32767), "61 7fff"),
    (UInt(0), "43"),
    (UInt(1), "52 01"),
    (UInt(255), "52 ff"),
    (UInt(256), "70 00000100"),
    (UInt(2**32 - 1), "70 ffffffff"),
    (Int(0), "54 00"),
    (Int(-1), "54 ff"),
    (Int(-128), "54 80"),
    (Int(127), "54 7f"),
    (Int(128), "71 00000080"),
    (Int(-129), "71 ffffff7f"),
    (Int(-(2**31)), "71 80000000"),
    (Int(2**31 - 1), "71 7fffffff"),
    (ULong(0), "44"),
    (ULong(0x14), "53 14"),
    (ULong(255), "53 ff"),
    (ULong(256), "80 0000000000000100"),
    (ULong(2**64 - 1), "80 ffffffffffffffff"),
    (0, "55 00"),
    (-1, "55 ff"),
    (-128, "55 80"),
    (127, "55 7f"),
    (128, "81 0000000000000080"),
    (-129, "81 ffffffffffffff7f"),
    (-(2**63), "81 8000000000000000"),
    (2**63 - 1, "81 7fffffffffffffff"),
    (Float(1.0), "72 3f800000"),
    (Float(-0.0), "72 80000000"),
    (Float(math.inf), "72 7f800000"),
    (0.0, "82 0000000000000000"),
    (-2.5, "82 c004000000000000"),
    (math.nan, "82 7ff8000000000000"),
    (Char("A"), "73 00000041"),
    (Char("\U0001f600"), "73 0001f600"),
    (Char("\ufeff"), "73 0000feff"),  # a byte order mark is a character like any other
    (Timestamp(0), "83 0000000000000000"),
    (Timestamp(-62135596800000), "83 ffffc77cedd32800"),
    (Timestamp(1700000000000), "83 0000018bcfe56800"),
    (Decimal32(bytes.fromhex("32800001")), "74 32800001"),
    (Decimal64(bytes.fromhex("31c0000000000001")), "84 31c0000000000001"),
    (Decimal128(bytes(range(16))), "94 000102030405060708090a0b0c0d0e0f"),
    (SOME_UUID, "98 00112233445566778899aabbccddeeff"),
    (b"", "a0 00"),
    (b"\x00\xff", "a0 02 00ff"),
    (b"x" * 255, "a0 ff" + "78" * 255),
    (b"x" * 256, "b0 00000100" + "78" * 256),
    ("", "a1 00"),
    ("aé€", "a1 06 61c3a9e282ac"),
    ("\ufeff", "a1 03 efbbbf"),
    ("x" * 255, "a1 ff" + "78" * 255),
    ("x" * 256, "b1 00000100" + "78" * 256),
    ("é" * 128, "b1 00000100" + "c3a9" * 128),  # bytes are counted, not characters
    (Symbol(""), "a3 00"),
    (Symbol("amqp:x"), "a3 06 616d71703a78"),
    (Symbol("x" * 255), "a3 ff" + "78" * 255),
    (Symbol("x" * 256), "b3 00000100" + "78" * 256),
]

COMPOUNDS = [
    ([], "45"),
    ([None], "c0 02 01 40"),
    ([[], [True]], "c0 06 02 45 c0020141"),
    ([b"x" * 252], "c0 ff 01 a0fc" + "78" * 252),  # 254 bytes and the count: just a list8
    ([b"x" * 253], "d0 00000103 00000001 a0fd" + "78" * 253),
    ([None] * 254, "c0 ff fe" + "40" * 254),
    ([None] * 255, "d0 00000103 000000ff" + "40" * 255),
    ({}, "c1 01 00"),
    ({Symbol("a"): 1, "b": None}, "c1 0a 04 a30161 5501 a10162 40"),
    ({"k": b"x" * 249}, "c1 ff 02 a1016b a0f9" + "78" * 249),
    ({"k": b"x" * 250}, "d1 00000103 00000002 a1016b a0fa" + "78" * 250),
    (Described(ULong(0x24), []), "00 53 24 45"),
    (Described(Symbol("a"), "b"), "00 a30161 a10162"),
    (Described(Described(ULong(1), ULong(2)), None), "00 00 5301 5302 40"),
    (Described(ULong(1), Described(ULong(2), None)), "00 5301 00 5302 40"),
    (Described(None, [Described(True, False)]), "00 40 c0 04 01 00 41 42"),
]

ARRAYS = [
    (Array(0xA3, (Symbol("a"), Symbol("bc"))), "e0 07 02 a3 0161 026263"),
    (array_of(Symbol, ["a"]), "e0 07 01 b3 00000001 61"),
    (array_of(str, ["0", "é"]), "e0 0d 02 b1 00000001 30 00000002 c3a9"),
    (array_of(bytes, [b"", b"\x00"]), "e0 0b 02 b0 00000000 00000001 00"),
    (array_of(int, [1, -1]), "e0 12 02 81 0000000000000001 ffffffffffffffff"),
    (array_of(UInt, []), "e0 02 00 70"),
    (Array(0x40, ()), "e0 02 00 40"),
    (Array(0x40, (None, None)), "e0 02 02 40"),
    (Array(0x41, (True,)), "e0 02 01 41"),
    (Array(0x42, (False,)), "e0 02 01 42"),
    (Array(0x43, (UInt(0),)), "e0 02 01 43"),
    (Array(0x44, (ULong(0),) * 255), "e0 02 ff 44"),
    (Array(0x44, (ULong(0),) * 256), "f0 00000005 00000100 44"),
    (Array(0x45, ([], [])), "e0 02 02 45"),
    (Array(0x50, (UByte(1), UByte(2))), "e0 04 02 50 01 02"),
    (Array(0x50, (UByte(1),) * 253), "e0 ff fd 50" + "01" * 253),
    (Array(0x50, (UByte(1),) * 254), "f0 00000103 000000fe 50" + "01" * 254),
    (Array(0x51, (Byte(-1),)), "e0 03 01 51 ff"),
    (Array(0x52, (UInt(0), UInt(255))), "e0 04 02 52 00 ff"),
    (Array(0x53, (ULong(7),)), "e0 03 01 53 07"),
    (Array(0x54, (Int(-2),)), "e0 03 01 54 fe"),
    (Array(0x55, (-128, 127)), "e0 04 02 55 80 7f"),
    (Array(0x56, (True, False)), "e0 04 02 56 01 00"),
    (Array(0x60, (UShort(258),)), "e0 04 01 60 0102"),
    (Array(0x61, (Short(-2),)), "e0 04 01 61 fffe"),
    (Array(0x70, (UInt(1),)), "e0 06 01 70 00000001"),
    (Array(0x71, (Int(-1),)), "e0 06 01 71 ffffffff"),
    (Array(0x72, (Float(1.0),)), "e0 06 01 72 3f800000"),
    (Array(0x73, (Char("A"),)), "e0 06 01 73 00000041"),
    (Array(0x74, (Decimal32(b"abcd"),)), "e0 06 01 74 61626364"),
    (Array(0x80, (ULong(1),)), "e0 0a 01 80 0000000000000001"),
    (Array(0x82, (-2.5,)), "e0 0a 01 82 c004000000000000"),
    (Array(0x83, (Timestamp(1),)), "e0 0a 01 83 0000000000000001"),
    (Array(0x84, (Decimal64(b"abcdefgh"),)), "e0 0a 01 84 6162636465666768"),
    (Array(0x94, (Decimal128(bytes(16)),)), "e0 12 01 94" + "00" * 16),
    (Array(0x98, (SOME_UUID,)), "e0 12 01 98 00112233445566778899aabbccddeeff"),
    (Array(0xA0, (b"x",)), "e0 04 01 a0 01 78"),
    (Array(0xA1, ("é",)), "e0 05 01 a1 02 c3a9"),
    (Array(0xC0, ([], [True])), "e0 07 02 c0 01 00 02 01 41"),
    (Array(0xD0, ([True],)), "e0 0b 01 d0 00000005 00000001 41"),
    (Array(0xC1, ({"a": None},)), "e0 08 01 c1 05 02 a1 01 61 40"),
    (Array(0xD1, ({},)), "e0 0a 01 d1 00000004 00000000"),
    (
        Array(0xE0, (Array(0x50, (UByte(1),)), Array(0x40, (None,)))),
        "e0 09 02 e0 03 01 50 01 02 01 40",
    ),
    (Array(0xF0, (Array(0x40, ()),)), "e0 0b 01 f0 00000005 00000000 40"),
    (Array(0x55, (1, 2), ULong(9)), "e0 07 02 00 5309 55 01 02"),
    (Array(0x55, (1,), Symbol("a")), "e0 07 01 00 a30161 55 01"),
    (Array(0x45, ([], []), False), "e0 04 02 00 42 45"),
    (Array(0xC0, ([ULong(1)],), Described(1, 2)), "e0 0c 01 00 00 5501 5502 c0 03 01 5301"),
]

TABLE = SCALARS + COMPOUNDS + ARRAYS


@pytest.mark.parametrize(("value", "hexadecimal"), TABLE, ids=[row[1][:24] for row in TABLE])
def test_a_value_and_its_bytes(value: Any, hexadecimal: str) -> None:
    assert_both_ways(value, hexadecimal)


# Legal, but longer than what we write.
WIDE_FORMS = [
    (True, "56 01"),
    (False, "56 00"),
    (UInt(0), "52 00"),
    (UInt(0), "70 00000000"),
    (ULong(0), "53 00"),
    (ULong(20), "80 0000000000000014"),
    (Int(-1), "71 ffffffff"),
    (-1, "81 ffffffffffffffff"),
    (b"x", "b0 00000001 78"),
    ("x", "b1 00000001 78"),
    (Symbol("x"), "b3 00000001 78"),
    ([], "c0 01 00"),
    ([], "d0 00000004 00000000"),
    ([None], "d0 00000005 00000001 40"),
    ({}, "d1 00000004 00000000"),
    ({"a": True}, "d1 00000008 00000002 a10161 41"),
    (Array(0x50, (UByte(1),)), "f0 00000006 00000001 50 01"),
    (Array(0x40, ()), "e0 01 00"),  # how Azure's SDK writes an empty array
    (Array(0x40, ()), "f0 00000004 00000000"),
    (Described(ULong(0x24), []), "00 80 0000000000000024 c0 01 00"),
]


@pytest.mark.parametrize(
    ("value", "hexadecimal"), WIDE_FORMS, ids=[row[1][:24] for row in WIDE_FORMS]
)
def test_a_longer_form_is_the_same_value(value: Any, hexadecimal: str) -> None:
    assert_read(bytes.fromhex(hexadecimal), value)


def test_the_tables_show_every_constructor() -> None:
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
def test_values_of_other_classes_become_what_they_resemble(value: Any, same: Any) -> None:
    assert encode(value) == encode(same)


def test_binary_is_copied_out_of_the_buffer() -> None:
    buffer = bytearray(encode([b"abc", b"x" * 300]))
    items, _ = decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert items == [b"abc", b"x" * 300]
    assert {type(item) for item in items} == {bytes}


def test_two_decoded_empty_lists_are_two_lists() -> None:
    (one, two), _ = decode(encode([[], []]))
    one.append(1)
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
def test_a_named_value_is_its_plain_self_and_shows_its_name(
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
def test_array_of_makes_every_item_that_kind(kind: type, items: list[Any], code: int) -> None:
    array = array_of(kind, items)
    assert array == Array(code, tuple(items))
    assert {type(item) for item in array.items} == {kind}
    assert_read(encode(array), array)


def test_array_of_does_not_convert_what_is_something_else() -> None:
    assert array_of(Symbol, [5]).items == (5,)
    with pytest.raises(LocalProtocolError, match=r"^symbol \(0xb3\) cannot hold 5$"):
        encode(array_of(Symbol, [5]))
    with pytest.raises(LocalProtocolError, match=r"^set is not an AMQP type"):
        array_of(set, [])


# --- What we refuse to write ---------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


UNWRITABLE = [
    (UByte(256), "ubyte (0x50) cannot hold UByte(256)"),
    (UByte(-1), "ubyte (0x50) cannot hold UByte(-1)"),
    (UShort(65536), "ushort (0x60) cannot hold UShort(65536)"),
    (UShort(-1), "ushort (0x60) cannot hold UShort(-1)"),
    (UInt(2**32), "uint (0x70) cannot hold UInt(4294967296)"),
    (UInt(-3), "uint (0x70) cannot hold UInt(-3)"),
    (ULong(2**64), "ulong (0x80) cannot hold ULong(18446744073709551616)"),
    (ULong(-1), "ulong (0x80) cannot hold ULong(-1)"),
    (Byte(128), "byte (0x51) cannot hold Byte(128)"),
    (Byte(-129), "byte (0x51) cannot hold Byte(-129)"),
    (Short(32768), "short (0x61) cannot hold Short(32768)"),
    (Short(-32769), "short (0x61) cannot hold Short(-32769)"),
    (Int(2**31), "int (0x71) cannot hold Int(2147483648)"),
    (Int(-(2**31) - 1), "int (0x71) cannot hold Int(-2147483649)"),
    (2**63, "long (0x81) cannot hold 9223372036854775808"),
    (-(2**63) - 1, "long (0x81) cannot hold -9223372036854775809"),
    (10**5000, "long (0x81) cannot hold this int"),
    (Timestamp(2**63), "timestamp (0x83) cannot hold Timestamp(9223372036854775808)"),
    (Float(1e39), "float (0x72) cannot hold Float(1e+39)"),
    (Char("ab"), "char (0x73) cannot hold this Char of length 2"),
    (Char(""), "char (0x73) cannot hold this Char of length 0"),
    (Char("\ud800"), "char (0x73) cannot hold this Char of length 1"),
    (Char("\udfff"), "char (0x73) cannot hold this Char of length 1"),
    ("token\udfff", "string must be UTF-8, but its character 5 is '\\udfff'"),
    (Symbol("na\xefve"), "symbol must be ASCII, but its character 2 is '\\xef'"),
    (Decimal32(b"abc"), "decimal32 (0x74) cannot hold this Decimal32"),
    (Decimal128(b"abc"), "decimal128 (0x94) cannot hold this Decimal128"),
    (object(), "a value of the Python type object has no AMQP type"),
    ({1}, "a value of the Python type set has no AMQP type"),
    ([1, {"a": 1j}], "a value of the Python type complex has no AMQP type"),
    (nested(MAX_DEPTH + 1), "values are nested more than 32 deep"),
    (Array(0x99, ()), "array items cannot have the constructor 153"),
    (Array(0x00, ()), "array items cannot have the constructor 0"),
    (Array(0x40, (0,)), "null (0x40) cannot hold 0"),
    (Array(0x41, (1,)), "true (0x41) cannot hold 1"),
    (Array(0x42, (True,)), "false (0x42) cannot hold True"),
    (Array(0x43, (UInt(1),)), "uint0 (0x43) cannot hold UInt(1)"),
    (Array(0x43, (False,)), "uint0 (0x43) cannot hold False"),
    (Array(0x44, (0.0,)), "ulong0 (0x44) cannot hold 0.0"),
    (Array(0x45, ([1],)), "list0 (0x45) cannot hold this list of length 1"),
    (Array(0x45, ("",)), "list0 (0x45) cannot hold this str of length 0"),
    (Array(0x52, (UInt(256),)), "smalluint (0x52) cannot hold UInt(256)"),
    (Array(0x55, (128,)), "smalllong (0x55) cannot hold 128"),
    (Array(0x56, (1,)), "boolean (0x56) cannot hold 1"),
    (Array(0x70, (True,)), "uint (0x70) cannot hold True"),
    (Array(0x70, (1.0,)), "uint (0x70) cannot hold 1.0"),
    (Array(0x70, ("token",)), "uint (0x70) cannot hold this str of length 5"),
    (Array(0x82, (10**400,)), "double (0x82) cannot hold this int"),
    (Array(0x73, (65,)), "char (0x73) cannot hold 65"),
    (Array(0x74, (Decimal64(bytes(8)),)), "decimal32 (0x74) cannot hold this Decimal64"),
    (Array(0x98, (b"x" * 16,)), "uuid (0x98) cannot hold this bytes of length 16"),
    (Array(0xA0, (b"x" * 256,)), "binary (0xa0) cannot hold 256 bytes, 255 at most"),
    (Array(0xA0, ("x",)), "binary (0xa0) cannot hold this str of length 1"),
    (Array(0xA1, ("x" * 256,)), "string (0xa1) cannot hold 256 bytes, 255 at most"),
    (Array(0xB1, (b"x",)), "string (0xb1) cannot hold this bytes of length 1"),
    (Array(0xC0, ([None] * 255,)), "list (0xc0) cannot hold 256 bytes, 255 at most"),
    (Array(0xC0, ({},)), "list (0xc0) cannot hold this dict of length 0"),
    (Array(0xC1, ([],)), "map (0xc1) cannot hold this list of length 0"),
    (Array(0xE0, ([],)), "array (0xe0) cannot hold this list of length 0"),
    (Array(0xE0, (Array(0x40, (None,) * 256),)), "array (0xe0) cannot hold 256 items, 255 at most"),
    (
        Array(0x40, (None,) * (MAX_EMPTY_ITEMS + 1)),
        "array of 65537 items of null: 65536 at most, more no peer should take",
    ),
]


@pytest.mark.parametrize(("value", "message"), UNWRITABLE, ids=[row[1][:40] for row in UNWRITABLE])
def test_what_a_type_cannot_hold_is_refused_and_nothing_is_written(
    value: Any, message: str
) -> None:
    for nesting in (value, [True, value], {"key": value}, Described(ULong(1), value)):
        out = bytearray(b"before")
        with pytest.raises(LocalProtocolError) as caught:
            encode_into(out, nesting)
        assert str(caught.value) == message
        assert out == b"before"


@pytest.mark.parametrize(
    "value",
    [
        Array(0xA0, (b"x" * 255,)),
        Array(0xA1, ("x" * 255,)),
        Array(0xC0, ([None] * 254,)),
        Array(0xE0, (Array(0x40, (None,) * 255),)),
        Array(0x40, (None,) * MAX_EMPTY_ITEMS),
    ],
    ids=["binary", "string", "list", "array", "no bytes"],
)
def test_the_most_that_a_form_holds_is_written(value: Any) -> None:
    assert_read(encode(value), value)


@pytest.mark.parametrize(
    ("value", "found"),
    [(b"x" * 401, "binary (0xb0)"), ("x" * 401, "string (0xb1)"), ([b"x" * 392], "list (0xd0)")],
)
def test_more_than_a_size_can_say_is_refused(
    value: Any, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumphouse.amqp.writers.LARGEST_SIZE", 400)  # four gigabytes are slow
    encode(value[:-1] or [b"x" * 391])
    with pytest.raises(LocalProtocolError) as caught:
        encode(value)
    assert str(caught.value) == f"{found} cannot hold 401 bytes, 400 at most"


@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: {"a": inner},
        lambda inner: Described(1, inner),
        lambda inner: Described(inner, 1),
        lambda inner: Array(0xD0, (inner,)),
        lambda inner: Array(0x50, (), inner),
    ],
    ids=["list", "map", "described", "descriptor", "array", "array descriptor"],
)
def test_the_deepest_value_that_is_written_is_read(wrap: Callable[[Any], Any]) -> None:
    deepest = wrap(nested(MAX_DEPTH - 1))
    assert_read(encode(deepest), deepest)
    with pytest.raises(LocalProtocolError, match="more than 32 deep"):
        encode(wrap(nested(MAX_DEPTH)))


def test_a_list_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(LocalProtocolError, match="more than 32 deep"):
        encode(circle)


# --- What we refuse to read ----------------------------------------------------------------------

MALFORMED = [
    ("", 0, "a value should begin here, but the bytes have ended"),
    ("5f", 0, "constructor 0x5f is not an AMQP type"),
    ("46", 0, "constructor 0x46 is not an AMQP type"),
    ("c0 03 02 40 ff", 4, "constructor 0xff is not an AMQP type"),
    ("52", 1, "smalluint of 1 bytes passes the end at byte 1"),
    ("70 000000", 1, "uint of 4 bytes passes the end at byte 4"),
    ("98 00", 1, "uuid of 16 bytes passes the end at byte 2"),
    ("b1 0000012c" + "78" * 115, 1, "string of 300 bytes passes the end at byte 120"),
    ("a3 03 6162", 1, "symbol of 3 bytes passes the end at byte 4"),
    ("b0 ffffffff", 1, "binary of 4294967295 bytes passes the end at byte 5"),
    ("c0 04 01 a1 02 61 62", 4, "string of 2 bytes passes the end at byte 6"),
    ("56 02", 1, "0x02 is not a boolean"),
    ("73 00110000", 1, "0x00110000 is not a char"),
    ("73 0000d800", 1, "0x0000d800 is not a char"),
    ("73 ffffffff", 1, "0xffffffff is not a char"),
    ("a1 03 6161ff", 4, "string has a byte 0xff that is not UTF-8 (invalid start byte)"),
    ("a1 02 c080", 2, "string has a byte 0xc0 that is not UTF-8 (invalid start byte)"),
    ("a1 03 eda080", 2, "string has a byte 0xed that is not UTF-8 (invalid continuation byte)"),
    ("a1 02 61c3", 3, "string has a byte 0xc3 that is not UTF-8 (unexpected end of data)"),
    ("a3 02 c3a9", 2, "symbol has a byte 0xc3 that is not ASCII (ordinal not in range(128))"),
    ("b1 0000", 1, "string of 4 bytes passes the end at byte 3"),
    ("d0 000000", 1, "list of 8 bytes passes the end at byte 4"),
    ("c0", 1, "list of 2 bytes passes the end at byte 1"),
    ("c0 05 01 40", 1, "list of 5 bytes passes the end at byte 4"),
    ("c0 00 00", 1, "list of 0 bytes has no room for its own count"),
    ("d0 00000003 00000000", 1, "list of 3 bytes has no room for its own count"),
    ("c0 02 02 40", 3, "list of 2 items has only 1 bytes for them"),
    ("d0 00000005 80000000 40", 9, "list of 2147483648 items has only 1 bytes for them"),
    ("c0 03 02 5201", 5, "list ends after 1 of its 2 items"),
    ("c0 03 01 40 40", 4, "list has 1 bytes after the last of its 1 items"),
    ("c0 02 00 40", 3, "list has 1 bytes after the last of its 0 items"),
    ("c1 02 01 40", 1, "map of 1 items has a key without a value"),
    ("c1 04 03 40 41 42", 1, "map of 3 items has a key without a value"),
    ("c1 02 02 40", 3, "map of 2 items has only 1 bytes for them"),
    ("c1 03 02 45 40", 1, "map has a key that is or holds a list or map"),
    ("c1 05 02 c10100 40", 1, "map has a key that is or holds a list or map"),
    ("c1 06 02 e0020145 40", 1, "map has a key that is or holds a list or map"),
    ("c1 05 02 00 41 45 40", 1, "map has a key that is or holds a list or map"),
    ("c1 05 04 41 40 41 40", 1, "map has the key True twice"),
    ("c1 09 04 a10161 40 a30161 40", 1, "map has the key Symbol('a') twice"),
    ("e0 01 01", 3, "array ends before the constructor of its items"),
    ("e0 02 00 00", 4, "a value should begin here, but the bytes have ended"),
    ("e0 03 01 00 41", 5, "array ends before the constructor of its items"),
    ("e0 04 01 00 40 41", 4, "array items have null as their descriptor"),
    ("e0 06 01 00 41 00 41 40", 5, "array items have two descriptors"),
    ("e0 02 00 46", 3, "constructor 0x46 is not an AMQP type"),
    ("e0 02 01 10", 3, "constructor 0x10 is not an AMQP type"),
    ("e0 03 02 50 01", 4, "array of 2 items of ubyte has only 1 bytes for them"),
    ("e0 04 01 50 01 02", 5, "array has 1 bytes after the last of its 1 items"),
    ("e0 04 02 a1 01 61", 6, "string of 1 bytes passes the end at byte 6"),
    (
        "f0 00000005 ffffffff 40",
        10,
        "arrays here have more than 65536 items that take no bytes (this one 4294967295)",
    ),
    (
        "f0 00000005 00010001 45",
        10,
        "arrays here have more than 65536 items that take no bytes (this one 65537)",
    ),
    ("f0 00000005 ffffffff 50", 10, "array of 4294967295 items of ubyte has only 0 bytes for them"),
    ("00", 1, "a value should begin here, but the bytes have ended"),
    ("00 53 24", 3, "a value should begin here, but the bytes have ended"),
    ("00 53 24 5f", 3, "constructor 0x5f is not an AMQP type"),
]


@pytest.mark.parametrize(("hexadecimal", "offset", "found"), MALFORMED)
def test_malformed_bytes_are_named_with_their_place(
    hexadecimal: str, offset: int, found: str
) -> None:
    data = bytes.fromhex(hexadecimal)
    for buffer in (data, bytearray(data), memoryview(data)):
        with pytest.raises(MalformedBytes) as caught:
            decode(buffer)
        assert (caught.value.offset, caught.value.found) == (offset, found)


SKIPPED_MALFORMED = [
    ("", 0, "a value should begin here, but the bytes have ended"),
    ("5f", 0, "constructor 0x5f is not an AMQP type"),
    ("70 000000", 1, "uint of 4 bytes passes the end at byte 4"),
    ("a3 03 6162", 1, "symbol of 3 bytes passes the end at byte 4"),
    ("b0 0000", 1, "binary of 4 bytes passes the end at byte 3"),
    ("b0 00000002 78", 1, "binary of 2 bytes passes the end at byte 6"),
    ("c0 05 01 40", 1, "list of 5 bytes passes the end at byte 4"),
    ("00 53 24", 3, "a value should begin here, but the bytes have ended"),
    ("00" * 100_000, 100_000, "a value should begin here, but the bytes have ended"),
]


@pytest.mark.parametrize(
    ("hexadecimal", "offset", "found"), SKIPPED_MALFORMED, ids=range(len(SKIPPED_MALFORMED))
)
def test_skip_checks_what_it_steps_over(hexadecimal: str, offset: int, found: str) -> None:
    with pytest.raises(MalformedBytes) as caught:
        skip(bytes.fromhex(hexadecimal), 0)
    assert (caught.value.offset, caught.value.found) == (offset, found)


def test_skip_does_not_look_inside() -> None:
    data = bytes.fromhex("c0 04 ff ffffff")
    assert skip(data, 0) == len(data)
    with pytest.raises(MalformedBytes):
        decode(data)


@pytest.mark.parametrize("pos", [-1, 4, 5])
def test_a_position_outside_the_bytes_is_refused(pos: int) -> None:
    for read in (decode, skip):
        with pytest.raises(MalformedBytes, match=f"^at byte {pos}: a value should begin here"):
            read(b"@@@@", pos)


@pytest.mark.parametrize(
    ("value", "hexadecimal"), TABLE + WIDE_FORMS, ids=[row[1][:24] for row in TABLE + WIDE_FORMS]
)
def test_bytes_cut_anywhere_are_malformed(value: Any, hexadecimal: str) -> None:
    """Cut short, or with an `end` that hides the rest: `end` is never passed."""
    data = bytes.fromhex(hexadecimal)
    assert decode(data, 0, len(data) + 1)[1] == len(data)  # an end past the end is the end
    for end in range(len(data)):
        for read in (decode, skip):
            with pytest.raises(MalformedBytes) as cut:
                read(data[:end], 0)
            with pytest.raises(MalformedBytes) as hidden:
                read(data, 0, end)
            assert str(cut.value) == str(hidden.value)


# Written here, since `encode` refuses them. Each value is the only item of the one around it.
def lists(depth: int) -> bytes:
    data = b"@"
    for _ in range(depth):
        data = b"\xd0" + struct.pack(">II", len(data) + 4, 1) + data
    return data


def small_lists(depth: int) -> bytes:
    data = b"@"
    for _ in range(depth):
        data = b"\xc0" + bytes((len(data) + 1, 1)) + data
    return data


def arrays(depth: int) -> bytes:
    data = b"@"
    for level in range(depth):
        data = b"\xf0" + struct.pack(">II", len(data) + 4, 1 if level else 0) + data
    return data


def values(depth: int) -> bytes:
    return b"\x00@" * depth + b"@"


def descriptors(depth: int) -> bytes:
    return b"\x00" * depth + b"@" * (depth + 1)


@pytest.mark.parametrize(
    ("nest", "deep"),
    [
        (lists, 1000),
        (small_lists, 80),  # more would not fit their one-byte sizes
        (arrays, 1000),
        (values, 100_000),
        (descriptors, 100_000),
    ],
)
def test_nesting_has_a_limit(nest: Callable[[int], bytes], deep: int) -> None:
    assert decode(nest(MAX_DEPTH))[1] == len(nest(MAX_DEPTH))
    for depth in (MAX_DEPTH + 1, deep):
        with pytest.raises(MalformedBytes, match="more than 32 deep"):
            decode(nest(depth))


def test_kinds_of_nesting_count_together() -> None:
    for data in (
        b"\x00@" * MAX_DEPTH + lists(1),
        b"\xe0\x7f\x01" + b"\x00" * 126,  # descriptors, of the items of an array
    ):
        with pytest.raises(MalformedBytes, match="more than 32 deep"):
            decode(data)


def test_items_without_bytes_are_counted_over_all_arrays() -> None:
    """Each array is within the limit; a megabyte of them would fill sixty gigabytes."""
    full = bytes.fromhex("f0 00000005 00010000 40")
    assert len(decode(full)[0].items) == MAX_EMPTY_ITEMS
    half = bytes.fromhex("f0 00000005 00008000 45")
    two_halves = b"\xc0\x15\x02" + half + half
    assert [len(array.items) for array in decode(two_halves)[0]] == [MAX_EMPTY_ITEMS // 2] * 2
    many = b"\xd0" + struct.pack(">II", 4 + 100_000 * len(full), 100_000) + full * 100_000
    with pytest.raises(MalformedBytes, match="more than 65536 items that take no bytes"):
        decode(many)


def test_a_large_map_with_one_key_twice_fails_fast() -> None:
    keys = b"".join(b"\x70" + struct.pack(">I", key) + b"@" for key in [*range(100_000), 0])
    with pytest.raises(MalformedBytes, match=r"the key UInt\(0\) twice"):
        decode(b"\xd1" + struct.pack(">II", len(keys) + 4, 200_002) + keys)


# --- Properties ----------------------------------------------------------------------------------

# A slow moment of the machine is no failure; pytest has a time limit for what hangs.
PATIENT = settings(deadline=None)


def ranged(kind: Callable[[int], Any], low: int, high: int) -> st.SearchStrategy[Any]:
    return st.builds(kind, st.integers(low, high))


def texts(kind: Callable[[str], Any], characters: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    # Long ones by repetition: generating 256 characters one by one is slow.
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

# What an array can hold, by constructor; the narrow ones hold less than their type.
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
def test_any_value_comes_back_as_it_was(value: Any) -> None:
    assert_read(encode(value), value)


@PATIENT
@given(VALUES, st.data())
def test_any_value_cut_short_is_malformed(value: Any, data: st.DataObject) -> None:
    encoded = encode(value)
    end = data.draw(st.integers(0, len(encoded) - 1))
    for read in (decode, skip):
        with pytest.raises(MalformedBytes):
            read(encoded, 0, end)


def assert_read_or_refused(data: bytes) -> None:
    """No other exception than MalformedBytes; and what was read can be written and read again."""
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


# Constructors and small sizes: more of these are nearly right than of random bytes.
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


# --- Beside Azure's own codec --------------------------------------------------------------------

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
    """The SDK knows numbers, but keeps strings and symbols as bytes and drops most descriptors."""
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


# Not char nor the smaller decimals, which the SDK cannot read, nor decimal128, which it misreads.
SDK_CODES = [*range(0x40, 0x45), *range(0x50, 0x57), 0x60, 0x61, 0x70, 0x71, 0x72, 0x80, 0x81]
SDK_CODES += [0x83, 0x98, 0xA0, 0xA1, 0xA3, 0xB0, 0xB1, 0xB3]
SDK_SCALARS = st.one_of([ITEMS[code] for code in SDK_CODES]) | st.floats(allow_nan=False)
# Of an empty array and of one of booleans it makes bytes that are no array.
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
def test_azures_codec_reads_what_we_write(sdk: Any, value: Any) -> None:
    data = memoryview(encode(value))
    rest, got = sdk._decode._DECODE_BY_CONSTRUCTOR[data[0]](data[1:])
    assert got == as_sdk_reads(value)
    assert len(rest) == 0


@PATIENT
@given(value=SDK_VALUES)
def test_we_read_what_azures_codec_writes(sdk: Any, value: Any) -> None:
    out = bytearray()
    sdk._encode.encode_value(out, as_sdk_writes(value))
    assert_read(bytes(out), value)
