"""Encoders: they choose the AMQP form of a Python value and write its bytes.

There are two tables. WRITERS, by constructor byte, append a value *without* its constructor in
exactly that form; an array, whose items share one constructor, calls one of them for each item.
ENCODERS, by Python class, choose the shortest form of a value and append constructor and value.

A value that its type cannot hold raises LocalProtocolError. Values are never wrapped or shortened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from struct import error as StructError
from typing import Any
from uuid import UUID

from pumphouse.amqp.constructors import (
    DECIMALS,
    MAX_DEPTH,
    MAX_EMPTY_ITEMS,
    NAMES,
    NUMBERS,
    SIZE,
    SIZE_AND_COUNT,
    WIDTHS,
)
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
from pumphouse.errors import LocalProtocolError

# (out, value, nesting depth)
Writer = Callable[[bytearray, Any, int], None]

# (constructor, value) -> the bytes of a binary, string or symbol
Content = Callable[[int, Any], bytes]
# (constructor, value, nesting depth) -> the bytes of all items of a compound, and their number
Body = Callable[[int, Any, int], tuple[bytearray, int]]

LARGEST_SIZE = 2**32 - 1


def encoder_of(kind: type) -> Writer:
    """The encoder of the nearest base class, for a subclass such as an enum of Symbols."""
    for ancestor in kind.__mro__:
        if ancestor in ENCODERS:
            return ENCODERS[ancestor]
    raise LocalProtocolError(f"a value of the Python type {kind.__name__} has no AMQP type")


def _cannot_hold(code: int, value: Any) -> LocalProtocolError:
    return LocalProtocolError(f"{NAMES[code]} (0x{code:02x}) cannot hold {_shown(value)}")


def _shown(value: Any) -> str:
    """A number in full; of other values only class and length, because text may be a token."""
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= 128):
        return repr(value)
    length = f" of length {len(value)}" if isinstance(value, Sized) else ""
    return f"this {type(value).__name__}{length}"


def _too_big(code: int, amount: str, limit: int) -> LocalProtocolError:
    message = f"{NAMES[code]} (0x{code:02x}) cannot hold {amount}, {limit} at most"
    return LocalProtocolError(message)


# --- Writers: scalars ----------------------------------------------------------------------------


def _write_constant(code: int, constant: bool | None) -> Writer:
    def write(out: bytearray, value: Any, depth: int) -> None:
        if value is not constant:
            raise _cannot_hold(code, value)

    return write


def _write_zero(code: int) -> Writer:
    def write(out: bytearray, value: Any, depth: int) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or value != 0:
            raise _cannot_hold(code, value)

    return write


def _write_number(code: int) -> Writer:
    pack = NUMBERS[code][0].pack

    def write(out: bytearray, value: Any, depth: int) -> None:
        if isinstance(value, bool):  # a number in Python, but not in AMQP
            raise _cannot_hold(code, value)
        try:
            out += pack(value)
        except (StructError, OverflowError):
            raise _cannot_hold(code, value) from None

    return write


def _write_boolean(out: bytearray, value: Any, depth: int) -> None:
    if not isinstance(value, bool):
        raise _cannot_hold(0x56, value)
    out.append(value)


def _write_char(out: bytearray, value: Any, depth: int) -> None:
    if not isinstance(value, str) or len(value) != 1 or "\ud800" <= value <= "\udfff":
        raise _cannot_hold(0x73, value)
    out += value.encode("utf-32-be")


def _write_uuid(out: bytearray, value: Any, depth: int) -> None:
    if not isinstance(value, UUID):
        raise _cannot_hold(0x98, value)
    out += value.bytes


def _write_decimal(code: int) -> Writer:
    kind, width = DECIMALS[code], WIDTHS[code >> 4]

    def write(out: bytearray, value: Any, depth: int) -> None:
        if not isinstance(value, kind) or len(value.bits) != width:
            raise _cannot_hold(code, value)
        out += value.bits

    return write


def _binary(code: int, value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise _cannot_hold(code, value)
    return bytes(value)


def _text(encoding: str) -> Content:
    def content(code: int, value: Any) -> bytes:
        if not isinstance(value, str):
            raise _cannot_hold(code, value)
        try:
            return value.encode(encoding)
        except UnicodeEncodeError as error:
            # Only the character: the text around it may be a token.
            problem = f"character {error.start} is {value[error.start]!a}"
            message = f"{NAMES[code]} must be {encoding.upper()}, but its {problem}"
            raise LocalProtocolError(message) from None

    return content


def _write_variable(code: int, content: Content) -> Writer:
    width = WIDTHS[code >> 4]
    limit = 0xFF if width == 1 else LARGEST_SIZE

    def write(out: bytearray, value: Any, depth: int) -> None:
        raw = content(code, value)
        if len(raw) > limit:
            raise _too_big(code, f"{len(raw)} bytes", limit)
        out += len(raw).to_bytes(width, "big")
        out += raw

    return write


# --- Writers: compounds --------------------------------------------------------------------------


def _list_body(code: int, value: Any, depth: int) -> tuple[bytearray, int]:
    if not isinstance(value, list | tuple):
        raise _cannot_hold(code, value)
    return _joined(value, depth), len(value)


def _map_body(code: int, value: Any, depth: int) -> tuple[bytearray, int]:
    if not isinstance(value, dict):
        raise _cannot_hold(code, value)
    return _joined((part for pair in value.items() for part in pair), depth), 2 * len(value)


def _array_body(code: int, value: Any, depth: int) -> tuple[bytearray, int]:
    if not isinstance(value, Array):
        raise _cannot_hold(code, value)
    write = WRITERS.get(value.code)
    if write is None:
        raise LocalProtocolError(f"array items cannot have the constructor {value.code!r}")
    if WIDTHS[value.code >> 4] == 0 and len(value.items) > MAX_EMPTY_ITEMS:
        problem = f"array of {len(value.items)} items of {NAMES[value.code]}"
        raise LocalProtocolError(f"{problem}: {MAX_EMPTY_ITEMS} at most")
    body = _joined((), depth)
    if value.descriptor is not None:
        body.append(0x00)
        body += _joined((value.descriptor,), depth)
    body.append(value.code)
    for item in value.items:
        write(body, item, depth + 1)
    return body, len(value.items)


def _joined(values: Iterable[Any], depth: int) -> bytearray:
    """The encoded values of a compound that has `depth` compounds around it."""
    if depth >= MAX_DEPTH:
        raise LocalProtocolError(f"values are nested more than {MAX_DEPTH} deep")
    depth += 1
    body = bytearray()
    known = ENCODERS.get
    for value in values:
        if value is None:  # most fields of most performatives: avoids a call
            body.append(0x40)
            continue
        (known(type(value)) or encoder_of(type(value)))(body, value, depth)
    return body


def _write_compound(code: int, body_of: Body) -> Writer:
    width = WIDTHS[code >> 4]
    limit = 0xFF if width == 1 else LARGEST_SIZE

    def write(out: bytearray, value: Any, depth: int) -> None:
        body, count = body_of(code, value, depth)
        size = len(body) + width  # the size includes the count
        if size > limit:
            raise _too_big(code, f"{size} bytes", limit)
        if count > limit:  # possible with items that take no bytes
            raise _too_big(code, f"{count} items", limit)
        out += size.to_bytes(width, "big")
        out += count.to_bytes(width, "big")
        out += body

    return write


def _write_list0(out: bytearray, value: Any, depth: int) -> None:
    if not isinstance(value, list | tuple) or value:
        raise _cannot_hold(0x45, value)


_utf8, _ascii = _text("utf-8"), _text("ascii")

WRITERS: dict[int, Writer] = {
    0x40: _write_constant(0x40, None),
    0x41: _write_constant(0x41, True),
    0x42: _write_constant(0x42, False),
    0x43: _write_zero(0x43),
    0x44: _write_zero(0x44),
    0x45: _write_list0,
    **{code: _write_number(code) for code in NUMBERS},
    **{code: _write_decimal(code) for code in DECIMALS},
    0x56: _write_boolean,
    0x73: _write_char,
    0x98: _write_uuid,
    **{code: _write_variable(code, _binary) for code in (0xA0, 0xB0)},
    **{code: _write_variable(code, _utf8) for code in (0xA1, 0xB1)},
    **{code: _write_variable(code, _ascii) for code in (0xA3, 0xB3)},
    **{code: _write_compound(code, _list_body) for code in (0xC0, 0xD0)},
    **{code: _write_compound(code, _map_body) for code in (0xC1, 0xD1)},
    **{code: _write_compound(code, _array_body) for code in (0xE0, 0xF0)},
}


# --- Encoders: constructor and value -------------------------------------------------------------


def _encode_none(out: bytearray, value: Any, depth: int) -> None:
    out.append(0x40)


def _encode_bool(out: bytearray, value: Any, depth: int) -> None:
    out.append(0x41 if value else 0x42)


def _encode_as(code: int) -> Writer:
    write = WRITERS[code]

    def encode(out: bytearray, value: Any, depth: int) -> None:
        out.append(code)
        write(out, value, depth)

    return encode


def _encode_unsigned(zero: int, small: int, wide: int) -> Writer:
    encode_wide = _encode_as(wide)

    def encode(out: bytearray, value: Any, depth: int) -> None:
        if 0 < value < 256:
            out.append(small)
            out.append(value)
        elif value == 0:
            out.append(zero)
        else:
            encode_wide(out, value, depth)

    return encode


def _encode_signed(small: int, wide: int) -> Writer:
    encode_wide = _encode_as(wide)

    def encode(out: bytearray, value: Any, depth: int) -> None:
        if -128 <= value < 128:
            out.append(small)
            out.append(value & 0xFF)
        else:
            encode_wide(out, value, depth)

    return encode


# The wide form of every sized constructor is the narrow form with this bit set.
WIDE = 0x10


def _encode_variable(code: int, content: Content) -> Writer:
    def encode(out: bytearray, value: Any, depth: int) -> None:
        raw = content(code, value)
        size = len(raw)
        if size <= 0xFF:
            out.append(code)
            out.append(size)
        elif size <= LARGEST_SIZE:
            out.append(code | WIDE)
            out += SIZE.pack(size)
        else:
            raise _too_big(code | WIDE, f"{size} bytes", LARGEST_SIZE)
        out += raw

    return encode


def _encode_compound(code: int, body_of: Body) -> Writer:
    def encode(out: bytearray, value: Any, depth: int) -> None:
        body, count = body_of(code, value, depth)
        _append_compound(out, code, body, count)

    return encode


def _append_compound(out: bytearray, code: int, body: bytearray, count: int) -> None:
    size = len(body) + 1
    if size <= 0xFF and count <= 0xFF:
        out += bytes((code, size, count))
    elif size + 3 <= LARGEST_SIZE:
        out.append(code | WIDE)
        out += SIZE_AND_COUNT.pack(size + 3, count)
    else:
        raise _too_big(code | WIDE, f"{size + 3} bytes", LARGEST_SIZE)
    out += body


def write_list(out: bytearray, items: bytearray, count: int) -> None:
    """Append a list of encoded items."""
    if count:
        _append_compound(out, 0xC0, items, count)
    else:
        out.append(0x45)


_encode_full_list = _encode_compound(0xC0, _list_body)


def _encode_list(out: bytearray, value: Any, depth: int) -> None:
    if value:
        _encode_full_list(out, value, depth)
    else:
        out.append(0x45)


def _encode_described(out: bytearray, value: Any, depth: int) -> None:
    out.append(0x00)
    out += _joined((value.descriptor, value.value), depth)


ENCODERS: dict[type, Writer] = {
    type(None): _encode_none,
    bool: _encode_bool,
    UByte: _encode_as(0x50),
    UShort: _encode_as(0x60),
    UInt: _encode_unsigned(0x43, 0x52, 0x70),
    ULong: _encode_unsigned(0x44, 0x53, 0x80),
    Byte: _encode_as(0x51),
    Short: _encode_as(0x61),
    Int: _encode_signed(0x54, 0x71),
    int: _encode_signed(0x55, 0x81),
    Float: _encode_as(0x72),
    float: _encode_as(0x82),
    Decimal32: _encode_as(0x74),
    Decimal64: _encode_as(0x84),
    Decimal128: _encode_as(0x94),
    Char: _encode_as(0x73),
    Timestamp: _encode_as(0x83),
    UUID: _encode_as(0x98),
    bytes: _encode_variable(0xA0, _binary),
    bytearray: _encode_variable(0xA0, _binary),
    memoryview: _encode_variable(0xA0, _binary),
    str: _encode_variable(0xA1, _utf8),
    Symbol: _encode_variable(0xA3, _ascii),
    list: _encode_list,
    tuple: _encode_list,
    dict: _encode_compound(0xC1, _map_body),
    Array: _encode_compound(0xE0, _array_body),
    Described: _encode_described,
}
