"""AMQP types as Python values that keep their AMQP type.

Python has one int where AMQP has nine. A plain value has the closest AMQP type, and the classes
here name the others:

    None  bool  int = long  float = double  str = string  bytes = binary
    uuid.UUID  list, tuple = list  dict = map

They compare and hash as int or str, so `UInt(5) == 5`; only their encoding differs. `codec` checks
on encoding whether a value fits its type.

    value <-> bytes (codec) <-> performatives and messages
    ^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from pumphouse.amqp import decimals as bid
from pumphouse.errors import LocalProtocolError


class _Integer(int):
    """Shows its type in `repr`, and only the number in `str`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({int.__repr__(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


class UByte(_Integer):
    """0 to 255."""

    __slots__ = ()


class UShort(_Integer):
    """0 to 65535."""

    __slots__ = ()


class UInt(_Integer):
    """0 to 2**32 - 1."""

    __slots__ = ()


class ULong(_Integer):
    """0 to 2**64 - 1."""

    __slots__ = ()


class Byte(_Integer):
    """-128 to 127."""

    __slots__ = ()


class Short(_Integer):
    """-32768 to 32767."""

    __slots__ = ()


class Int(_Integer):
    """-2**31 to 2**31 - 1. (A plain Python int is an AMQP long.)"""

    __slots__ = ()


class Timestamp(_Integer):
    """Milliseconds since 1970-01-01 UTC, negative before; 64 bits."""

    __slots__ = ()


class Float(float):
    """A 32-bit float: encoding rounds to the nearest one. (A plain float is a double.)"""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Float({float.__repr__(self)})"

    def __str__(self) -> str:
        return float.__repr__(self)


class Symbol(str):
    """An ASCII name from a known vocabulary, such as `amqp:link:stolen`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Symbol({str.__repr__(self)})"


class Char(str):
    """One Unicode character."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"Char({str.__repr__(self)})"


@dataclass(frozen=True, slots=True)
class Described:
    """A value with a descriptor of its meaning, e.g. ULong(0x24) for `accepted`."""

    descriptor: Any
    value: Any


@dataclass(frozen=True, slots=True)
class Array:
    """Values of one type that share one constructor byte, `code`."""

    code: int
    items: tuple[Any, ...]
    descriptor: Any = None  # when set, every item is described by it; items hold the bare values


@dataclass(frozen=True, slots=True)
class Decimal32:
    """Seven decimal digits. `bits` holds the four encoded bytes, so nothing is lost."""

    bits: bytes

    def to_decimal(self) -> Decimal:
        return bid.unpack(bid.DECIMAL32, self.bits)

    @classmethod
    def from_decimal(cls, value: Decimal) -> Decimal32:
        return cls(bid.pack(bid.DECIMAL32, value))


@dataclass(frozen=True, slots=True)
class Decimal64:
    """Sixteen decimal digits, in eight bytes."""

    bits: bytes

    def to_decimal(self) -> Decimal:
        return bid.unpack(bid.DECIMAL64, self.bits)

    @classmethod
    def from_decimal(cls, value: Decimal) -> Decimal64:
        return cls(bid.pack(bid.DECIMAL64, value))


@dataclass(frozen=True, slots=True)
class Decimal128:
    """Thirty-four decimal digits, in sixteen bytes."""

    bits: bytes

    def to_decimal(self) -> Decimal:
        return bid.unpack(bid.DECIMAL128, self.bits)

    @classmethod
    def from_decimal(cls, value: Decimal) -> Decimal128:
        return cls(bid.pack(bid.DECIMAL128, value))


# The widest constructor of each class: items of any size share it.
_WIDE_CODES: dict[type, int] = {
    type(None): 0x40,
    bool: 0x56,
    UByte: 0x50,
    UShort: 0x60,
    UInt: 0x70,
    ULong: 0x80,
    Byte: 0x51,
    Short: 0x61,
    Int: 0x71,
    int: 0x81,
    Float: 0x72,
    float: 0x82,
    Char: 0x73,
    Timestamp: 0x83,
    Decimal32: 0x74,
    Decimal64: 0x84,
    Decimal128: 0x94,
    UUID: 0x98,
    bytes: 0xB0,
    str: 0xB1,
    Symbol: 0xB3,
    list: 0xD0,
    dict: 0xD1,
    Array: 0xF0,
}
_NAMED = (_Integer, Float, Symbol, Char)


def array_of(kind: type, items: Iterable[Any]) -> Array:
    """An array whose constructor holds every value of `kind`: `array_of(Symbol, ["a", "b"])`.

    Plain ints, floats and strs become `kind`. Values that do not fit are refused on encoding.
    """
    code = _WIDE_CODES.get(kind)
    if code is None:
        raise LocalProtocolError(f"{kind.__name__} is not an AMQP type: no array of it can be made")
    if issubclass(kind, _NAMED):
        plain = next(base for base in (int, float, str) if issubclass(kind, base))
        items = (kind(item) if isinstance(item, plain) else item for item in items)
    return Array(code, tuple(items))
