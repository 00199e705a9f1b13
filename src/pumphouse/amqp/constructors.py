"""The constructor bytes of AMQP: name, width and Python class of each.

An encoded value is a constructor byte and its content. The upper half of the byte gives the width:

    0x4_ nothing   0x5_ 1 byte   0x6_ 2   0x7_ 4   0x8_ 8   0x9_ 16
    0xa_ a 1-byte size, then that many bytes      0xb_ the same with a 4-byte size
    0xc_ size, count, items: list or map          0xd_ the same with 4-byte numbers
    0xe_ size, count, one constructor, items      0xf_ the same with 4-byte numbers
    0x00 a descriptor (any value), then the value it describes

`readers` and `writers` are both built from these tables, so they always agree.
"""

from __future__ import annotations

from struct import Struct

from pumphouse.amqp.types import (
    Byte,
    Decimal32,
    Decimal64,
    Decimal128,
    Float,
    Int,
    Short,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)

# Nesting depth of compounds. AMQP itself needs about six.
MAX_DEPTH = 32

# Array items without bytes (null, true, list0, ...), over all arrays of one decoded value. The
# size of the input does not limit them, so ten bytes could request gigabytes.
MAX_EMPTY_ITEMS = 65536

# Keys of one map. An event of 1 MiB has room for more only with keys of a few bytes.
MAX_KEYS = 65536

# Keys of one map with the same hash as another one. A dict compares such keys with each other, so
# its cost grows with the square of their number. Hashes of text are random, but a peer can choose
# numbers and UUIDs with equal hashes. Of the usual keys, only -1 and -2 have the same hash.
MAX_EQUAL_HASHES = 16

NAMES = {
    0x40: "null",
    0x41: "true",
    0x42: "false",
    0x43: "uint0",
    0x44: "ulong0",
    0x45: "list0",
    0x50: "ubyte",
    0x51: "byte",
    0x52: "smalluint",
    0x53: "smallulong",
    0x54: "smallint",
    0x55: "smalllong",
    0x56: "boolean",
    0x60: "ushort",
    0x61: "short",
    0x70: "uint",
    0x71: "int",
    0x72: "float",
    0x73: "char",
    0x74: "decimal32",
    0x80: "ulong",
    0x81: "long",
    0x82: "double",
    0x83: "timestamp",
    0x84: "decimal64",
    0x94: "decimal128",
    0x98: "uuid",
    0xA0: "binary",
    0xA1: "string",
    0xA3: "symbol",
    0xB0: "binary",
    0xB1: "string",
    0xB3: "symbol",
    0xC0: "list",
    0xC1: "map",
    0xD0: "list",
    0xD1: "map",
    0xE0: "array",
    0xF0: "array",
}

# Bytes after a constructor, by its upper half; for variable sizes, the bytes of the size.
WIDTHS = {4: 0, 5: 1, 6: 2, 7: 4, 8: 8, 9: 16, 10: 1, 11: 4, 12: 1, 13: 4, 14: 1, 15: 4}

CONSTANTS = {0x40: None, 0x41: True, 0x42: False, 0x43: UInt(0), 0x44: ULong(0)}

NUMBERS: dict[int, tuple[Struct, type]] = {
    0x50: (Struct(">B"), UByte),
    0x51: (Struct(">b"), Byte),
    0x52: (Struct(">B"), UInt),
    0x53: (Struct(">B"), ULong),
    0x54: (Struct(">b"), Int),
    0x55: (Struct(">b"), int),
    0x60: (Struct(">H"), UShort),
    0x61: (Struct(">h"), Short),
    0x70: (Struct(">I"), UInt),
    0x71: (Struct(">i"), Int),
    0x72: (Struct(">f"), Float),
    0x80: (Struct(">Q"), ULong),
    0x81: (Struct(">q"), int),
    0x82: (Struct(">d"), float),
    0x83: (Struct(">q"), Timestamp),
}

DECIMALS: dict[int, type[Decimal32] | type[Decimal64] | type[Decimal128]] = {
    0x74: Decimal32,
    0x84: Decimal64,
    0x94: Decimal128,
}

SIZE = Struct(">I")
SIZE_AND_COUNT = Struct(">II")
