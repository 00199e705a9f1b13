"""The AMQP codec refuses values that cannot be encoded and bytes that are malformed."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.amqp.codec import decode, encode, encode_into, skip
from pumphouse.amqp.constructors import MAX_DEPTH, MAX_EMPTY_ITEMS
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
)
from pumphouse.errors import LocalProtocolError, MalformedBytes
from tests.amqp.codec.codec_tables import TABLE, WIDE_FORMS, assert_read

# --- Values that cannot be encoded ---------------------------------------------------------------


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
        "array of 65537 items of null: 65536 at most",
    ),
]


@pytest.mark.parametrize(("value", "message"), UNWRITABLE, ids=[row[1][:40] for row in UNWRITABLE])
def test_a_value_that_does_not_fit_is_refused_and_not_written(value: Any, message: str) -> None:
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
def test_the_largest_value_of_a_form_is_written(value: Any) -> None:
    assert_read(encode(value), value)


@pytest.mark.parametrize(
    ("value", "prefix"),
    [(b"x" * 401, "binary (0xb0)"), ("x" * 401, "string (0xb1)"), ([b"x" * 392], "list (0xd0)")],
)
def test_more_than_the_largest_size_is_refused(
    value: Any, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pumphouse.amqp.writers.LARGEST_SIZE", 400)  # instead of four gigabytes
    encode(value[:-1] or [b"x" * 391])
    with pytest.raises(LocalProtocolError) as caught:
        encode(value)
    assert str(caught.value) == f"{prefix} cannot hold 401 bytes, 400 at most"


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
def test_the_deepest_encodable_value_is_decodable(wrap: Callable[[Any], Any]) -> None:
    deepest = wrap(nested(MAX_DEPTH - 1))
    assert_read(encode(deepest), deepest)
    with pytest.raises(LocalProtocolError, match="more than 32 deep"):
        encode(wrap(nested(MAX_DEPTH)))


def test_a_list_that_contains_itself_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(LocalProtocolError, match="more than 32 deep"):
        encode(circle)


# --- Malformed bytes -----------------------------------------------------------------------------

MALFORMED = [
    ("", 0, "expected a value, found the end of the bytes"),
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
    ("e0 02 00 00", 4, "expected a value, found the end of the bytes"),
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
        "more than 65536 array items that take no bytes in one value (this array has 4294967295)",
    ),
    (
        "f0 00000005 00010001 45",
        10,
        "more than 65536 array items that take no bytes in one value (this array has 65537)",
    ),
    ("f0 00000005 ffffffff 50", 10, "array of 4294967295 items of ubyte has only 0 bytes for them"),
    ("00", 1, "expected a value, found the end of the bytes"),
    ("00 53 24", 3, "expected a value, found the end of the bytes"),
    ("00 53 24 5f", 3, "constructor 0x5f is not an AMQP type"),
]


@pytest.mark.parametrize(("hexadecimal", "offset", "problem"), MALFORMED)
def test_malformed_bytes_are_refused_with_their_position(
    hexadecimal: str, offset: int, problem: str
) -> None:
    data = bytes.fromhex(hexadecimal)
    for buffer in (data, bytearray(data), memoryview(data)):
        with pytest.raises(MalformedBytes) as caught:
            decode(buffer)
        assert (caught.value.offset, caught.value.found) == (offset, problem)


SKIPPED_MALFORMED = [
    ("", 0, "expected a value, found the end of the bytes"),
    ("5f", 0, "constructor 0x5f is not an AMQP type"),
    ("70 000000", 1, "uint of 4 bytes passes the end at byte 4"),
    ("a3 03 6162", 1, "symbol of 3 bytes passes the end at byte 4"),
    ("b0 0000", 1, "binary of 4 bytes passes the end at byte 3"),
    ("b0 00000002 78", 1, "binary of 2 bytes passes the end at byte 6"),
    ("c0 05 01 40", 1, "list of 5 bytes passes the end at byte 4"),
    ("00 53 24", 3, "expected a value, found the end of the bytes"),
    ("00" * 100_000, 100_000, "expected a value, found the end of the bytes"),
]


@pytest.mark.parametrize(
    ("hexadecimal", "offset", "problem"), SKIPPED_MALFORMED, ids=range(len(SKIPPED_MALFORMED))
)
def test_skip_checks_the_size_of_a_value(hexadecimal: str, offset: int, problem: str) -> None:
    with pytest.raises(MalformedBytes) as caught:
        skip(bytes.fromhex(hexadecimal), 0)
    assert (caught.value.offset, caught.value.found) == (offset, problem)


def test_skip_does_not_check_the_content() -> None:
    data = bytes.fromhex("c0 04 ff ffffff")
    assert skip(data, 0) == len(data)
    with pytest.raises(MalformedBytes):
        decode(data)


@pytest.mark.parametrize("pos", [-1, 4, 5])
def test_a_position_outside_the_bytes_is_refused(pos: int) -> None:
    for read in (decode, skip):
        with pytest.raises(MalformedBytes, match=f"^at byte {pos}: expected a value"):
            read(b"@@@@", pos)


def test_bytes_truncated_anywhere_are_malformed() -> None:
    """Truncated, or with an `end` before the last byte: no byte at or after `end` is read."""
    for _, hexadecimal in TABLE + WIDE_FORMS:
        data = bytes.fromhex(hexadecimal)
        assert decode(data, 0, len(data) + 1)[1] == len(data)  # an `end` after the data is allowed
        for end in range(len(data)):
            assert_malformed_before(data, end)


def assert_malformed_before(data: bytes, end: int) -> None:
    for read in (decode, skip):
        messages = []
        for argument, limit in ((data[:end], None), (data, end)):
            try:
                read(argument, 0, limit)
            except MalformedBytes as malformed:
                messages.append(str(malformed))
        truncated = f"{read.__name__} of {data.hex()[:80]} truncated to {end} bytes"
        assert len(messages) == 2, f"{truncated} was accepted"
        assert messages[0] == messages[1], truncated


# Built here because `encode` refuses them. Each value is the only item of the outer one.
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


def test_all_kinds_of_nesting_count_together() -> None:
    for data in (
        b"\x00@" * MAX_DEPTH + lists(1),
        b"\xe0\x7f\x01" + b"\x00" * 126,  # descriptors, of the items of an array
    ):
        with pytest.raises(MalformedBytes, match="more than 32 deep"):
            decode(data)


def test_items_without_bytes_are_counted_over_all_arrays() -> None:
    """Each array is within the limit, but a megabyte of them would use sixty gigabytes."""
    full = bytes.fromhex("f0 00000005 00010000 40")
    assert len(decode(full)[0].items) == MAX_EMPTY_ITEMS
    half = bytes.fromhex("f0 00000005 00008000 45")
    two_halves = b"\xc0\x15\x02" + half + half
    assert [len(array.items) for array in decode(two_halves)[0]] == [MAX_EMPTY_ITEMS // 2] * 2
    many = b"\xd0" + struct.pack(">II", 4 + 100_000 * len(full), 100_000) + full * 100_000
    with pytest.raises(MalformedBytes, match="more than 65536 array items that take no bytes"):
        decode(many)
