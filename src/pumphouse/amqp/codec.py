"""Encodes AMQP values to bytes, decodes them, and checks bytes without decoding them.

    bytes -> decode -> value        readers: one per constructor byte
    value -> encode -> bytes        writers: one per Python class, and one per constructor byte
    bytes -> check_value -> the position after the value

The functions decode, encode and check_value are in this module. Readers are in readers.py, writers
in writers.py.

Bytes from a peer are never trusted: every defect raises MalformedBytes and no other exception. A
value that cannot be encoded raises LocalProtocolError.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from pumphouse.amqp.constructors import MAX_DEPTH, MAX_KEYS, NAMES, WIDTHS
from pumphouse.amqp.readers import (
    DECODERS,
    NO_LIMIT,
    Buffer,
    Reader,
    check_equal_hashes,
    check_room,
    compound_head,
    ends_early,
    item_constructor,
    left_over,
    new_budget,
    not_a_type,
    not_hashable,
    nothing_at,
    passes_end,
    repeats_key,
    too_deep,
    too_many_items,
    too_many_keys,
    too_many_values,
    without_value,
)
from pumphouse.amqp.writers import ENCODERS, encoder_of
from pumphouse.errors import LocalProtocolError


def decode(
    data: Buffer, pos: int = 0, end: int | None = None, values_max: int = NO_LIMIT
) -> tuple[Any, int]:
    """The value at `pos` and the position after it. Bytes at or after `end` are not read."""
    if end is None or end > len(data):
        end = len(data)
    if not 0 <= pos < end:
        raise nothing_at(pos)
    return DECODERS[data[pos]](data, pos + 1, end, 0, new_budget(values_max))


def skip(data: Buffer, pos: int, end: int | None = None) -> int:
    """The position after the value at `pos`, which is not decoded.

    Lists, maps and arrays are skipped by their size, so their content is not checked.
    """
    if end is None or end > len(data):
        end = len(data)
    remaining = 1  # values to skip; a described value is two: its descriptor and its value
    while remaining:
        if not 0 <= pos < end:
            raise nothing_at(pos)
        code = data[pos]
        pos += 1
        if code == 0x00:
            remaining += 1
            continue
        if code not in NAMES:
            raise not_a_type(code, pos - 1)
        size = WIDTHS[code >> 4]
        stop = pos + size
        if code >= 0xA0 and stop <= end:
            size = int.from_bytes(data[pos:stop], "big")
            stop += size
        if stop > end:
            raise passes_end(code, size, pos, end)
        pos = stop
        remaining -= 1
    return pos


def encode(value: Any) -> bytes:
    """The bytes of one value, in the shortest AMQP form."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append one value to `out`. `out` is unchanged if the value cannot be encoded."""
    start = len(out)
    try:
        (ENCODERS.get(type(value)) or encoder_of(type(value)))(out, value, 0)
    except LocalProtocolError:
        del out[start:]
        raise


# --- Checking ------------------------------------------------------------------------------------

FEW_HASHES = 1024  # up to this number of hashes, a set is faster than an array

# (data, position after the constructor, end, nesting depth, budget) -> the position after the value
# The budget is that of `readers.Reader`.
Checker = Callable[[Buffer, int, int, int, list[int]], int]


def check_value(
    data: Buffer,
    pos: int = 0,
    end: int | None = None,
    depth: int = 0,
    budget: list[int] | None = None,
) -> int:
    """The position after the value at `pos`; MalformedBytes if `decode` would refuse it.

    Decoding needs up to sixty bytes of memory per encoded byte, for example for empty lists.
    Checking needs eight bytes per key of a map. `depth` is the number of
    values that contain this one; `budget` is the budget that they share.
    """
    if end is None or end > len(data):
        end = len(data)
    if not 0 <= pos < end:
        raise nothing_at(pos)
    return CHECKERS[data[pos]](data, pos + 1, end, depth, budget or new_budget())


def _scalar(read: Reader) -> Checker:
    def check(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> int:
        return read(data, pos, end, depth, budget)[1]

    return check


def _list(code: int) -> Checker:
    read_head, name = compound_head(code), NAMES[code]

    def check(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> int:
        pos, stop, count = read_head(data, pos, end, depth)
        budget[1] -= count
        if count > stop - pos or budget[1] < 0:
            raise too_many_items(name, count, pos, stop)
        for number in range(count):
            if pos >= stop:
                raise ends_early(name, number, count, pos)
            pos = CHECKERS[data[pos]](data, pos + 1, stop, depth + 1, budget)
        if pos != stop:
            raise left_over(name, count, pos, stop)
        return pos

    return check


def _map(code: int) -> Checker:
    read_head, name = compound_head(code), NAMES[code]

    def check(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> int:
        start, stop, count = read_head(data, pos, end, depth)
        budget[1] -= count
        if count > stop - start or budget[1] < 0:
            raise too_many_items(name, count, start, stop)
        if count % 2:
            raise without_value(count, pos)
        if count > 2 * MAX_KEYS:
            raise too_many_keys(count // 2, pos)
        # Only the hashes of the keys are kept: most decoded keys take more memory than their
        # encoded bytes.
        hashes = array("q")
        after = start
        for number in range(count):
            if after >= stop:
                raise ends_early(name, number, count, after)
            if number % 2:
                after = CHECKERS[data[after]](data, after + 1, stop, depth + 1, budget)
            else:
                key, after = DECODERS[data[after]](data, after + 1, stop, depth + 1, budget)
                hashes.append(hash_of(key, pos))
        if after != stop:
            raise left_over(name, count, after, stop)
        if repeated := repeated_hashes(hashes):
            check_equal_hashes(len(repeated), pos)
            check_unique(data, start, stop, {*repeated}, pos)
        return after

    return check


def hash_of(key: Any, pos: int) -> int:
    try:
        return hash(key)
    except TypeError:
        raise not_hashable(pos) from None


def repeated_hashes(hashes: array[int]) -> list[int]:
    """The hashes that occur more than once: a hash that occurs n times is returned n - 1 times."""
    if len(hashes) <= FEW_HASHES and len(set(hashes)) == len(hashes):
        return []
    import numpy as np  # here, because most programs with this module do not need it

    ordered = np.sort(np.frombuffer(hashes, np.int64))
    repeated: list[int] = ordered[1:][ordered[1:] == ordered[:-1]].tolist()
    return repeated


def check_unique(data: Buffer, start: int, stop: int, hashes: set[int], pos: int) -> None:
    """Raise if a key occurs twice in a map. Only keys with one of `hashes` are compared.

    The map must be valid in all other respects. `pos` is its position, for the error.
    """
    known = set()
    while start < stop:
        key, value = decode(data, start, stop)
        if hash(key) in hashes:
            if key in known:
                raise repeats_key(key, pos)
            known.add(key)
        start = skip(data, value, stop)


def _array(code: int) -> Checker:
    read_head = compound_head(code)

    def check(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> int:
        pos, stop, count = read_head(data, pos, end, depth)
        depth += 1
        if pos == stop and count == 0:
            return pos
        item_code, _, pos = item_constructor(data, pos, stop, depth, budget)
        check_room(item_code, count, pos, stop, budget)
        check_item = CHECKERS[item_code]
        for _ in range(count):
            pos = check_item(data, pos, stop, depth, budget)
        if pos != stop:
            raise left_over("array", count, pos, stop)
        return pos

    return check


def _described(data: Buffer, pos: int, end: int, depth: int, budget: list[int]) -> int:
    if depth >= MAX_DEPTH:
        raise too_deep(pos)
    budget[1] -= 2
    if budget[1] < 0:
        raise too_many_values(pos)
    for _ in ("descriptor", "value"):
        if pos >= end:
            raise nothing_at(pos)
        pos = CHECKERS[data[pos]](data, pos + 1, end, depth + 1, budget)
    return pos


CHECKERS: list[Checker] = [_scalar(read) for read in DECODERS]
CHECKERS[0x00] = _described
for _code in (0xC0, 0xD0):
    CHECKERS[_code] = _list(_code)
    CHECKERS[_code + 1] = _map(_code + 1)
for _code in (0xE0, 0xF0):
    CHECKERS[_code] = _array(_code)
