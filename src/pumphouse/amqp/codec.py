"""AMQP values to bytes and back: the two directions, and a way past a value nobody needs.

    bytes -> decode -> value        readers: one per constructor byte
    value -> encode -> bytes        writers: one per Python class, and one per constructor byte
             ^^^^^^ this module

What a peer sent is trusted in nothing and whatever is wrong with it ends in MalformedBytes, never
in another exception. What we are asked to write and cannot ends in LocalProtocolError.
"""

from __future__ import annotations

from typing import Any

from pumphouse.amqp.constructors import MAX_EMPTY_ITEMS, NAMES, WIDTHS
from pumphouse.amqp.readers import DECODERS, Buffer, not_a_type, nothing_at, passes_end
from pumphouse.amqp.writers import ENCODERS, encoder_of
from pumphouse.errors import LocalProtocolError


def decode(data: Buffer, pos: int = 0, end: int | None = None) -> tuple[Any, int]:
    """One value at `pos`, and the position after it. Nothing at or after `end` is looked at."""
    if end is None or end > len(data):
        end = len(data)
    if not 0 <= pos < end:
        raise nothing_at(pos)
    return DECODERS[data[pos]](data, pos + 1, end, 0, [MAX_EMPTY_ITEMS])


def skip(data: Buffer, pos: int, end: int | None = None) -> int:
    """The position after one value, which is not built: lists, maps and arrays are stepped over
    by their size, so what is inside them has not been checked."""
    if end is None or end > len(data):
        end = len(data)
    owed = 1  # a described value is two values, and each of them may be described in turn
    while owed:
        if not 0 <= pos < end:
            raise nothing_at(pos)
        code = data[pos]
        pos += 1
        if code == 0x00:
            owed += 1
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
        owed -= 1
    return pos


def encode(value: Any) -> bytes:
    """The bytes of one value, in the shortest form that AMQP has for it."""
    out = bytearray()
    encode_into(out, value)
    return bytes(out)


def encode_into(out: bytearray, value: Any) -> None:
    """Append one value to `out`; if it cannot be encoded, `out` is left as it was."""
    start = len(out)
    try:
        (ENCODERS.get(type(value)) or encoder_of(type(value)))(out, value, 0)
    except LocalProtocolError:
        del out[start:]
        raise
