"""Decoders: one reader per constructor byte, in the table DECODERS.

A reader is called with the position *after* its constructor, so an array, whose items share one
constructor, calls the same reader for each item. It returns the value and the position after it, or
raises MalformedBytes. Every size and count is checked against the available bytes before it is
used, and no reader accesses bytes at or after `end`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from pumphouse.amqp.constructors import (
    CONSTANTS,
    DECIMALS,
    MAX_DEPTH,
    MAX_EMPTY_ITEMS,
    MAX_EQUAL_HASHES,
    MAX_KEYS,
    NAMES,
    NUMBERS,
    SIZE,
    SIZE_AND_COUNT,
    WIDTHS,
)
from pumphouse.amqp.types import Array, Char, Described, Symbol, short
from pumphouse.errors import MalformedBytes

Buffer = bytes | bytearray | memoryview

# (data, position, end, nesting depth, budget). All readers of one value share the budget, a list of
# two numbers: the value may contain this many more array items without bytes, and this many more
# values of any kind.
Reader = Callable[[Buffer, int, int, int, list[int]], tuple[Any, int]]

NO_LIMIT = 1 << 62  # of values: only the size of the input bounds them


def new_budget(values_max: int = NO_LIMIT) -> list[int]:
    return [min(MAX_EMPTY_ITEMS, values_max), values_max]


def nothing_at(pos: int) -> MalformedBytes:
    return MalformedBytes(pos, "expected a value, found the end of the bytes")


def not_a_type(code: int, pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"constructor 0x{code:02x} is not an AMQP type")


def passes_end(code: int, width: int, pos: int, end: int) -> MalformedBytes:
    return MalformedBytes(pos, f"{NAMES[code]} of {width} bytes passes the end at byte {end}")


def too_deep(pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"values are nested more than {MAX_DEPTH} deep")


def too_many_values(pos: int) -> MalformedBytes:
    return MalformedBytes(pos, "more values than are allowed here")


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
    read_head = compound_head(code)
    name = NAMES[code]

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        pos, stop, count = read_head(data, pos, end, depth)
        budget[1] -= count
        if count > stop - pos or budget[1] < 0:
            raise too_many_items(name, count, pos, stop)
        depth += 1
        items: list[Any] = []
        append = items.append
        for _ in range(count):
            if pos >= stop:
                raise ends_early(name, len(items), count, pos)
            code = data[pos]
            pos += 1
            # Most fields of most performatives are null, true or false: no call for those.
            if code in CONSTANTS:
                append(CONSTANTS[code])
            else:
                value, pos = DECODERS[code](data, pos, stop, depth, budget)
                append(value)
        if pos != stop:
            raise left_over(name, count, pos, stop)
        return items, pos

    return read


def too_many_items(name: str, count: int, pos: int, stop: int) -> MalformedBytes:
    """The error for items that do not fit into the bytes, or else into the budget."""
    if count > stop - pos:
        problem = f"{name} of {count} items has only {stop - pos} bytes for them"
        return MalformedBytes(pos, problem)
    return too_many_values(pos)


def _map(code: int) -> Reader:
    read_items = _list(code)

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        items, stop = read_items(data, pos, end, depth, budget)
        if len(items) % 2:
            raise without_value(len(items), pos)
        if len(items) > 2 * MAX_EQUAL_HASHES:
            check_keys(items[::2], pos)
        values = {}
        pairs = iter(items)
        try:
            for key in pairs:
                # 1 and UInt(1), or "a" and Symbol("a"), are equal in Python, so they are one key.
                if key in values:
                    raise repeats_key(key, pos)
                values[key] = next(pairs)
        except TypeError:
            raise not_hashable(pos) from None
        return values, stop

    return read


def check_keys(keys: list[Any], pos: int) -> None:
    """Raise if a dict of these keys cannot be built, or not in linear time."""
    if len(keys) > MAX_KEYS:
        raise too_many_keys(len(keys), pos)
    try:
        check_equal_hashes(len(keys) - len(set(map(hash, keys))), pos)
    except TypeError:
        raise not_hashable(pos) from None


def too_many_keys(count: int, pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"map has {count} keys, at most {MAX_KEYS} are allowed")


def check_equal_hashes(count: int, pos: int) -> None:
    if count > MAX_EQUAL_HASHES:
        problem = f"map has {count} keys that repeat another one or have the same hash"
        raise MalformedBytes(pos, f"{problem}, at most {MAX_EQUAL_HASHES} are allowed")


def _array(code: int) -> Reader:
    read_head = compound_head(code)

    def read(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
        pos, stop, count = read_head(data, pos, end, depth)
        depth += 1
        if pos == stop and count == 0:
            # The Azure SDK omits the constructor of an empty array.
            return Array(0x40, ()), pos
        item_code, descriptor, pos = item_constructor(data, pos, stop, depth, budget)
        check_room(item_code, count, pos, stop, budget)
        read_item = DECODERS[item_code]
        items = []
        for _ in range(count):
            item, pos = read_item(data, pos, stop, depth, budget)
            items.append(item)
        if pos != stop:
            raise left_over("array", count, pos, stop)
        return Array(item_code, tuple(items), descriptor), pos

    return read


def item_constructor(
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


def check_room(code: int, count: int, pos: int, stop: int, budget: list[int]) -> None:
    """Raise if `count` array items do not fit into the bytes or into the budget."""
    width = WIDTHS[code >> 4]
    if count * width > stop - pos:
        problem = f"array of {count} items of {NAMES[code]} has only {stop - pos} bytes for them"
        raise MalformedBytes(pos, problem)
    if width == 0:
        budget[0] -= count
        if budget[0] < 0:
            problem = f"more than {MAX_EMPTY_ITEMS} array items that take no bytes"
            raise MalformedBytes(pos, f"{problem} in one value (this array has {count})")
    budget[1] -= count
    if budget[1] < 0:
        raise too_many_values(pos)


def _described(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> tuple[Any, int]:
    if depth >= MAX_DEPTH:
        raise too_deep(pos)
    depth += 1
    budget[1] -= 2
    if pos >= end:
        raise nothing_at(pos)
    if budget[1] < 0:
        raise too_many_values(pos)
    descriptor, pos = DECODERS[data[pos]](data, pos + 1, end, depth, budget)
    if pos >= end:
        raise nothing_at(pos)
    value, pos = DECODERS[data[pos]](data, pos + 1, end, depth, budget)
    return Described(descriptor, value), pos


def compound_head(code: int) -> Callable[[Buffer, int, int, int], tuple[int, int, int]]:
    """A function that reads the head of a compound into start, end and count of its items."""
    name = NAMES[code]

    def head_8(data: Buffer, pos: int, end: int, depth: int) -> tuple[int, int, int]:
        if depth >= MAX_DEPTH:
            raise too_deep(pos)
        if pos + 2 > end:
            raise passes_end(code, 2, pos, end)
        size = data[pos]
        stop = pos + 1 + size
        if stop > end:
            raise passes_end(code, size, pos, end)
        if size < 1:
            raise MalformedBytes(pos, f"{name} of {size} bytes has no room for its own count")
        return pos + 2, stop, data[pos + 1]

    def head_32(data: Buffer, pos: int, end: int, depth: int) -> tuple[int, int, int]:
        if depth >= MAX_DEPTH:
            raise too_deep(pos)
        if pos + 8 > end:
            raise passes_end(code, 8, pos, end)
        size, count = SIZE_AND_COUNT.unpack_from(data, pos)
        stop = pos + 4 + size
        if stop > end:
            raise passes_end(code, size, pos, end)
        if size < 4:
            raise MalformedBytes(pos, f"{name} of {size} bytes has no room for its own count")
        return pos + 8, stop, count

    return head_8 if WIDTHS[code >> 4] == 1 else head_32


def ends_early(name: str, present: int, count: int, pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"{name} ends after {present} of its {count} items")


def without_value(count: int, pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"map of {count} items has a key without a value")


def not_hashable(pos: int) -> MalformedBytes:
    return MalformedBytes(pos, "map has a key that is or holds a list or map")


def repeats_key(key: Any, pos: int) -> MalformedBytes:
    return MalformedBytes(pos, f"map has the key {short(key)} twice")


def left_over(name: str, count: int, pos: int, stop: int) -> MalformedBytes:
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
