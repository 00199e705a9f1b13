"""AMQP values and their bytes, for the tests of the codec.

The hexadecimal is written from the specification (OASIS AMQP 1.0, part 1), not taken from a run.
"""

from __future__ import annotations

import math
import struct
import uuid
from typing import Any

from pumphouse.amqp.codec import decode, skip
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

SOME_UUID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


def form(value: Any) -> Any:
    """A form of a value that is equal only for equal types and bits: True is not 1."""
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
    """Check that bytes decode to a value, also between other bytes and in any kind of buffer."""
    for buffer in (data, bytearray(data), memoryview(data)):
        got, pos = decode(buffer)
        assert (form(got), pos) == (form(value), len(data)), data.hex()[:80]
        assert skip(buffer, 0) == len(data), data.hex()[:80]
    around = b"\x53" + data + b"\xff"
    got, pos = decode(around, 1)
    assert (form(got), pos) == (form(value), len(data) + 1), data.hex()[:80]
    assert skip(around, 1) == len(data) + 1, data.hex()[:80]


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
    (Char("\ufeff"), "73 0000feff"),  # a byte order mark is an ordinary character
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


# Valid, but longer than our encoding.
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
    (Array(0x40, ()), "e0 01 00"),  # an empty array of the Azure SDK
    (Array(0x40, ()), "f0 00000004 00000000"),
    (Described(ULong(0x24), []), "00 80 0000000000000024 c0 01 00"),
]
