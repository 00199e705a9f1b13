"""Encodes AMQP values to bytes and decodes them.

    bytes -> decode -> value        readers: one per constructor byte
    value -> encode -> bytes        writers: one per Python class, and one per constructor byte
             ^^^^^^ this module

Bytes from a peer are never trusted: every defect raises MalformedBytes and no other exception. A
value that cannot be encoded raises LocalProtocolError.
"""

from __future__ import annotations

from typing import Any

from pumphouse.amqp.constructors import MAX_EMPTY_ITEMS, NAMES, WIDTHS
from pumphouse.amqp.readers import DECODERS, Buffer, not_a_type, nothing_at, passes_end
from pumphouse.amqp.writers import ENCODERS, encoder_of
from pumphouse.errors import LocalProtocolError


def decode(data: Buffer, pos: int = 0, end: int | None = None) -> tuple[Any, int]:
    """The value at `pos` and the position after it. Bytes at or after `end` are not read."""
    if end is None or end > len(data):
        end = len(data)
    if not 0 <= pos < end:
        raise nothing_at(pos)
    return DECODERS[data[pos]](data, pos + 1, end, 0, [MAX_EMPTY_ITEMS])


def skip(data: Buffer, pos: int, end: int | None = None) -> int:
    """The position after the value at `pos`, which is not built.

    Lists, maps and arrays are skipped by their size, so their content is not checked.
    """
    if end is None or end > len(data):
        end = len(data)
    remaining = 1  # a described value is two values, and each may be described itself
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
