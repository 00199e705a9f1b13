"""Decoders: one reader per constructor byte, in the table DECODERS.

A reader is called with the position *after* its constructor, so an array, whose items share one
constructor, calls the same reader for each item. It returns the value and the position after it, or
raises MalformedBytes. Every size and count is checked against the available bytes before it is
used, and no reader accesses bytes at or after `end`.
"""

from __future__ import annotations

from collections.abc import Callable
from reprlib import repr as short
from typing import Any
from uuid import UUID

from pumphouse.amqp.constructors import (
    CONSTANTS,
    DECIMALS,
    MAX_DEPTH,
    MAX_EMPTY_ITEMS,
    NAMES,
    NUMBERS,
    SIZE,
    SIZE_AND_COUNT,
    WIDTHS,
)
from pumphouse.amqp.types import Array, Char, Described, Symbol
from pumphouse.errors import MalformedBytes

Buffer = bytes | bytearray | memoryview

# (data, position, end, nesting depth, remaining MAX_EMPTY_ITEMS). The last is a list of one number,
# shared by all readers of one value.
Reader = Callable[[Buffer, int, int, int, list[int]], tuple[Any, int]]


def nothing_at(pos: int) -> MalformedBytes:
    return MalformedBytes(pos, "expected a value, found the end of the bytes")


def not_a_type(code: int, pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"constructor 0x{code:02x} is not an AMQP type")


def passes_end(code: int, width: int, pos: int, end: int) -> MalformedBytes:
    return MalformedBytes(pos, f"{NAMES[code]} of {width} bytes passes the end at byte {end}")


def _too_deep(pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"values are nested more than {MAX_DEPTH} deep")


def _unknown(code: int) -> Reader:
    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        raise not_a_type(code, pos - 1)

    return read


# --- Scalars -------------------------------------------------------------------------------------


def _constant(value: Any) -> Reader:
    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        return value, pos

    return read


def _small_number(code: int) -> Reader:
    layout, kind = NUMBERS[code]
    # All 256 values, made once: a lookup is cheaper than a construction.
    values = tuple(kind(layout.unpack(bytes((byte,)))[0]) for byte in range(256))

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        if pos >= end:
            raise passes_end(code, 1, pos, end)
        return values[data[pos]], pos + 1

    return read


def _number(code: int) -> Reader:
    layout, kind = NUMBERS[code]
    unpack, width = layout.unpack_from, layout.size

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        stop = pos + width
        if stop > end:
            raise passes_end(code, width, pos, end)
        return kind(unpack(data, pos)[0]), stop

    return read


def _fixed(code: int, build: Callable[[bytes], Any]) -> Reader:
    width = WIDTHS[code >> 4]

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        stop = pos + width
        if stop > end:
            raise passes_end(code, width, pos, end)
        raw = bytes(data[pos:stop])
        try:
            return build(raw), stop
        except ValueError:
            raise MalformedBytes(pos, f"0x{raw.hex()} is not a {NAMES[code]}") from None

    return read


def _boolean(raw: bytes) -> bool:
    return (b"\x00", b"\x01").index(raw) == 1


def _char(raw: bytes) -> Char:
    return Char(raw, "utf-32-be")


def _uuid(raw: bytes) -> UUID:
    return UUID(bytes=raw)


def _binary(code: int) -> Reader:
    content = _content(code)

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        start, stop = content(data, pos, end)
        return bytes(data[start:stop]), stop

    return read


def _text(code: int, kind: type[str], encoding: str) -> Reader:
    content = _content(code)

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        start, stop = content(data, pos, end)
        try:
            return kind(data[start:stop], encoding), stop
        except UnicodeDecodeError as error:
            pos = start + error.start
            problem = f"{NAMES[code]} has a byte 0x{data[pos]:02x} that is not {encoding.upper()}"
            raise MalformedBytes(pos, f"{problem} ({error.reason})") from None

    return read


def _content(code: int) -> Callable[[Buffer, int, int], tuple[int, int]]:
    """A function that finds the start and end of the content of a sized scalar."""

    def content_8(data: Buffer, pos: int, end: int) -> tuple[int, int]:
        if pos >= end:
            raise passes_end(code, 1, pos, end)
        stop = pos + 1 + data[pos]
        if stop > end:
            raise passes_end(code, data[pos], pos, end)
        return pos + 1, stop

    def content_32(data: Buffer, pos: int, end: int) -> tuple[int, int]:
        start = pos + 4
        if start > end:
            raise passes_end(code, 4, pos, end)
        size = SIZE.unpack_from(data, pos)[0]
        if start + size > end:
            raise passes_end(code, size, pos, end)
        return start, start + size

    return content_8 if WIDTHS[code >> 4] == 1 else content_32


# --- Compounds -----------------------------------------------------------------------------------


def _list0(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
    return [], pos


def _list(code: int) -> Reader:
    """A reader of a list. The items must fill it exactly."""
    opened = _opened(code)
    name = NAMES[code]

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        pos, stop, count = opened(data, pos, end, depth)
        if count > stop - pos:
            problem = f"{name} of {count} items has only {stop - pos} bytes for them"
            raise MalformedBytes(pos, problem)
        depth += 1
        items: list[Any] = []
        append = items.append
        for _ in range(count):
            if pos >= stop:
                raise MalformedBytes(pos, f"{name} ends after {len(items)} of its {count} items")
            code = data[pos]
            pos += 1
            # Most fields of most performatives are null, true or false: no call for those.
            if code in CONSTANTS:
                append(CONSTANTS[code])
            else:
                value, pos = DECODERS[code](data, pos, stop, depth, budget)
                append(value)
        if pos != stop:
            raise _left_over(name, count, pos, stop)
        return items, pos

    return read


def _map(code: int) -> Reader:
    read_items = _list(code)

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        items, stop = read_items(data, pos, end, depth, budget)
        if len(items) % 2:
            raise MalformedBytes(pos, f"map of {len(items)} items has a key without a value")
        values = {}
        pairs = iter(items)
        try:
            for key in pairs:
                # Equal in Python: 1 and UInt(1), or "a" and Symbol("a"), are one key.
                if key in values:
                    raise MalformedBytes(pos, f"map has the key {short(key)} twice")
                values[key] = next(pairs)
        except TypeError:
            raise MalformedBytes(pos, "map has a key that is or holds a list or map") from None
        return values, stop

    return read


def _array(code: int) -> Reader:
    opened = _opened(code)

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        pos, stop, count = opened(data, pos, end, depth)
        depth += 1
        if pos == stop and count == 0:
            # The Azure SDK omits the constructor of an empty array.
            return Array(0x40, ()), pos
        item_code, descriptor, pos = _item_constructor(data, pos, stop, depth, budget)
        _check_room(item_code, count, pos, stop, budget)
        read_item = DECODERS[item_code]
        items = []
        for _ in range(count):
            item, pos = read_item(data, pos, stop, depth, budget)
            items.append(item)
        if pos != stop:
            raise _left_over("array", count, pos, stop)
        return Array(item_code, tuple(items), descriptor), pos

    return read


def _item_constructor(
    data: Buffer, pos: int, stop: int, depth: int, budget: list[int]
) -> tuple[int, Any, int]:
    """The constructor that all items of an array share, and their descriptor if any."""
    descriptor = None
    if pos < stop and data[pos] == 0x00:
        pos += 1
        if pos >= stop:
            raise nothing_at(pos)
        if data[pos] == 0x40:
            raise MalformedBytes(pos, "array items have null as their descriptor")
        descriptor, pos = DECODERS[data[pos]](data, pos + 1, stop, depth, budget)
    if pos >= stop:
        raise MalformedBytes(pos, "array ends before the constructor of its items")
    code = data[pos]
    if code == 0x00:
        # Allowed by the grammar, but unused, and `Array` cannot hold it.
        raise MalformedBytes(pos, "array items have two descriptors")
    if code not in NAMES:
        raise not_a_type(code, pos)
    return code, descriptor, pos + 1


def _check_room(code: int, count: int, pos: int, stop: int, budget: list[int]) -> None:
    width = WIDTHS[code >> 4]
    if count * width > stop - pos:
        problem = f"array of {count} items of {NAMES[code]} has only {stop - pos} bytes for them"
        raise MalformedBytes(pos, problem)
    if width == 0:
        budget[0] -= count
        if budget[0] < 0:
            problem = f"arrays here have more than {MAX_EMPTY_ITEMS} items that take no bytes"
            raise MalformedBytes(pos, f"{problem} (this one {count})")


def _described(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
    if depth >= MAX_DEPTH:
        raise _too_deep(pos)
    depth += 1
    if pos >= end:
        raise nothing_at(pos)
    descriptor, pos = DECODERS[data[pos]](data, pos + 1, end, depth, budget)
    if pos >= end:
        raise nothing_at(pos)
    value, pos = DECODERS[data[pos]](data, pos + 1, end, depth, budget)
    return Described(descriptor, value), pos


def _opened(code: int) -> Callable[[Buffer, int, int, int], tuple[int, int, int]]:
    """A function that reads size and count of a compound: start, end and count of its content."""
    name = NAMES[code]

    def opened_8(data: Buffer, pos: int, end: int, depth: int) -> tuple[int, int, int]:
        if depth >= MAX_DEPTH:
            raise _too_deep(pos)
        if pos + 2 > end:
            raise passes_end(code, 2, pos, end)
        size = data[pos]
        stop = pos + 1 + size
        if stop > end:
            raise passes_end(code, size, pos, end)
        if size < 1:
            raise MalformedBytes(pos, f"{name} of {size} bytes has no room for its own count")
        return pos + 2, stop, data[pos + 1]

    def opened_32(data: Buffer, pos: int, end: int, depth: int) -> tuple[int, int, int]:
        if depth >= MAX_DEPTH:
            raise _too_deep(pos)
        if pos + 8 > end:
            raise passes_end(code, 8, pos, end)
        size, count = SIZE_AND_COUNT.unpack_from(data, pos)
        stop = pos + 4 + size
        if stop > end:
            raise passes_end(code, size, pos, end)
        if size < 4:
            raise MalformedBytes(pos, f"{name} of {size} bytes has no room for its own count")
        return pos + 8, stop, count

    return opened_8 if WIDTHS[code >> 4] == 1 else opened_32


def _left_over(name: str, count: int, pos: int, stop: int) -> MalformedBytes:
    problem = f"{name} has {stop - pos} bytes after the last of its {count} items"
    return MalformedBytes(pos, problem)


DECODERS: list[Reader] = [_unknown(code) for code in range(256)]

for _code, _value in CONSTANTS.items():
    DECODERS[_code] = _constant(_value)
for _code, (_layout, _) in NUMBERS.items():
    DECODERS[_code] = _small_number(_code) if _layout.size == 1 else _number(_code)
for _code, _kind in DECIMALS.items():
    DECODERS[_code] = _fixed(_code, _kind)
DECODERS[0x00] = _described
DECODERS[0x45] = _list0
DECODERS[0x56] = _fixed(0x56, _boolean)
DECODERS[0x73] = _fixed(0x73, _char)
DECODERS[0x98] = _fixed(0x98, _uuid)
for _code in (0xA0, 0xB0):
    DECODERS[_code] = _binary(_code)
    DECODERS[_code + 1] = _text(_code + 1, str, "utf-8")
    DECODERS[_code + 3] = _text(_code + 3, Symbol, "ascii")
for _code in (0xC0, 0xD0):
    DECODERS[_code] = _list(_code)
    DECODERS[_code + 1] = _map(_code + 1)
for _code in (0xE0, 0xF0):
    DECODERS[_code] = _array(_code)
