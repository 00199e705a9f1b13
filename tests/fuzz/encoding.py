"""Encoded AMQP values of any structure, also of structures that no codec writes.

A `ValueMaker` writes bytes directly: constructors, sizes and counts are chosen freely. Most values
are valid, and many are chosen to be expensive: thousands of tiny items, keys with equal hashes,
deep nesting, counts without items, long texts.
"""

from __future__ import annotations

import struct
from random import Random

MODULUS = 2**61 - 1  # Python's hash of a number is the number modulo this prime

# Complete values of one to five bytes.
TINY_HEX = """40 41 42 43 44 45 5201 5301 5401 5501 5601 a000 a100 a300 c00100 c10100 e00100
    004040 00534040 600001 7400000000 c0020140 c103024040 e0020040 e0020140"""
TINY = [bytes.fromhex(text) for text in TINY_HEX.split()]
# Pieces from which long texts are repeated: of addresses, selectors, tokens and names.
UNITS = """a a: :// / /Partitions/ /ConsumerGroups/ /Publishers/ %2F % + & = sr=a& . .. é 日 > ' a://a
    amqp.annotation. eh/ConsumerGroups/$Default/Partitions/0"""
TEXT_UNITS = [*UNITS.split(), " ", "\t\n"]
TEXTS = [
    "eh",
    "eh/Partitions/0",
    "eh/Publishers/p",
    "eh/ConsumerGroups/$Default/Partitions/0",
    "$cbs",
    "$management",
    "nowhere",
    "amqp.annotation.x-opt-offset > '-1'",
    "put-token",
    "READ",
    "com.microsoft:eventhub",
    "servicebus.windows.net:sastoken",
]


def narrow_or_wide(narrow: int, content: bytes, count: int | None = None) -> bytes:
    """A sized value: list, map, array, string, ... with the smaller of its two forms."""
    wide = narrow + 0x10
    if count is None:
        if len(content) <= 0xFF:
            return bytes((narrow, len(content))) + content
        return bytes((wide,)) + struct.pack(">I", len(content)) + content
    if len(content) < 0xFF and count <= 0xFF:
        return bytes((narrow, len(content) + 1, count)) + content
    return bytes((wide,)) + struct.pack(">II", len(content) + 4, count & 0xFFFFFFFF) + content


def text(value: str, symbol: bool = False) -> bytes:
    return narrow_or_wide(0xA3 if symbol else 0xA1, value.encode("ascii" if symbol else "utf-8"))


def list_of(items: list[bytes], count: int | None = None) -> bytes:
    return narrow_or_wide(0xC0, b"".join(items), len(items) if count is None else count)


def map_of(items: list[bytes], count: int | None = None) -> bytes:
    return narrow_or_wide(0xC1, b"".join(items), len(items) if count is None else count)


def array_of(code: int, items: list[bytes], count: int | None = None) -> bytes:
    content = bytes((code,)) + b"".join(items)
    return narrow_or_wide(0xE0, content, len(items) if count is None else count)


def described(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes((code,)) + value


class ValueMaker:
    """Makes values of about a given size from one source of chance."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng

    def value(self, size: int, depth: int = 0) -> bytes:
        """Any value of about `size` bytes."""
        if size < 8 or depth > 6:
            return self.rng.choice(TINY)
        if self.rng.random() < 0.3:
            return self.scalar(size)
        make = self.rng.choice((self.compound, self.many, self.keyed, self.deep))
        return make(size, depth)

    def scalar(self, size: int) -> bytes:
        rng = self.rng
        match rng.randrange(6):
            case 0:
                return self.long_text(size)
            case 1:
                return narrow_or_wide(0xA0, rng.randbytes(min(size, 5000)) * (1 + size // 5000))
            case 2:
                return b"\x98" + rng.randbytes(16)
            case 3:
                return bytes((rng.choice((0x80, 0x81, 0x82, 0x83, 0x84)),)) + rng.randbytes(8)
            case 4:
                return text(rng.choice(TEXTS))
        return rng.choice(TINY)

    def long_text(self, size: int) -> bytes:
        unit = self.rng.choice(TEXT_UNITS)
        start, end = self.rng.choice(["", "", *TEXTS]), self.rng.choice(["", "", "x", "/0", "'"])
        return text(start + unit * (size // len(unit)) + end, symbol=False)

    def compound(self, size: int, depth: int) -> bytes:
        """A list, map or described value with a few larger items."""
        rng = self.rng
        parts = rng.randrange(1, 6)
        items = [self.value(size // parts, depth + 1) for _ in range(parts)]
        match rng.randrange(4):
            case 0:
                return list_of(items)
            case 1:
                names = [text(f"key {number}", symbol=True) for number in range(parts)]
                return map_of([half for pair in zip(names, items, strict=True) for half in pair])
            case 2:
                return b"\x00" + rng.choice([b"\x53\x24", b"\xa3\x01a", items[0]]) + items[-1]
        return self.lie(items)

    def lie(self, items: list[bytes]) -> bytes:
        """A compound with a wrong count."""
        count = self.rng.choice((0, 1, len(items) + 1, 255, 65536, 0x7FFFFFFF, 0xFFFFFFFF))
        return self.rng.choice((list_of, map_of))(items, count)

    def many(self, size: int, depth: int) -> bytes:
        """Thousands of tiny items."""
        unit = self.rng.choice(TINY)
        count = size // len(unit)
        match self.rng.randrange(4):
            case 0:
                return map_of([unit] * (count // 2 * 2))
            case 1:
                code = self.rng.choice((0x40, 0x41, 0x45, 0x50, 0x56, 0x70, 0x98, 0xA1, 0xC0))
                item = {0xA1: b"\x00", 0xC0: b"\x01\x00", 0x98: bytes(16), 0x70: bytes(4)}
                empty = b"" if code in (0x40, 0x41, 0x45) else b"\x01"
                return array_of(code, [item.get(code, empty)] * count)
        return list_of([unit] * count)

    def keyed(self, size: int, depth: int) -> bytes:
        """A map with many keys of one type."""
        make = self.rng.choice((self.uuid_key, self.number_key, self.text_key, self.nested_key))
        items: list[bytes] = []
        total = 0
        while total < size:
            key = make(len(items))
            items += [key, b"\x40"]
            total += len(key) + 1
        return map_of(items)

    def uuid_key(self, number: int) -> bytes:
        return b"\x98" + (7 + number * MODULUS).to_bytes(16, "big")

    def number_key(self, number: int) -> bytes:
        return b"\x80" + ((number << 40 | number) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")

    def text_key(self, number: int) -> bytes:
        return text(f"{number:x}", symbol=self.rng.random() < 0.5)

    def nested_key(self, number: int) -> bytes:
        ways = [(7 + way * MODULUS).to_bytes(8, "big") for way in range(8)]
        return array_of(0x80, [ways[number >> 3 * digit & 7] for digit in range(6)])

    def deep(self, size: int, depth: int) -> bytes:
        """Nesting up to the limit and beyond."""
        value = self.value(size // 4, depth + 2)
        for _ in range(self.rng.choice((3, 10, 30, 40, 100))):
            wrap = self.rng.randrange(3)
            value = list_of([value]) if wrap < 2 else b"\x00\x40" + value
            if len(value) > size:
                break
        return value
