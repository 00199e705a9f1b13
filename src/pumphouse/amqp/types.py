"""AMQP types as Python values that keep their AMQP type.

Python has one int; AMQP has eight integer types, and a timestamp. A plain Python value has the AMQP
type in this table, and the classes in this module stand for the other types:

    None  bool  int = long  float = double  str = string  bytes = binary
    uuid.UUID  list, tuple = list  dict = map

Instances of these classes compare and hash as int, float or str, so `UInt(5) == 5`; only their
encoding differs. `codec` checks on encoding whether a value fits its type.

    value <-> bytes (codec) <-> performatives and messages
    ^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from reprlib import Repr
from typing import Any
from uuid import UUID

from pumphouse.amqp import decimals
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
        return decimals.unpack(decimals.DECIMAL32, self.bits)

    @classmethod
    def from_decimal(cls, value: Decimal) -> Decimal32:
        return cls(decimals.pack(decimals.DECIMAL32, value))


@dataclass(frozen=True, slots=True)
class Decimal64:
    """Sixteen decimal digits, in eight bytes."""

    bits: bytes

    def to_decimal(self) -> Decimal:
        return decimals.unpack(decimals.DECIMAL64, self.bits)

    @classmethod
    def from_decimal(cls, value: Decimal) -> Decimal64:
        return cls(decimals.pack(decimals.DECIMAL64, value))


@dataclass(frozen=True, slots=True)
class Decimal128:
    """Thirty-four decimal digits, in sixteen bytes."""

    bits: bytes

    def to_decimal(self) -> Decimal:
        return decimals.unpack(decimals.DECIMAL128, self.bits)

    @classmethod
    def from_decimal(cls, value: Decimal) -> Decimal128:
        return cls(decimals.pack(decimals.DECIMAL128, value))


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
_CONVERTIBLE = (_Integer, Float, Symbol, Char)  # made from a plain int, float or str


def array_of(kind: type, items: Iterable[Any]) -> Array:
    """An array whose constructor can hold every value of `kind`: `array_of(Symbol, ["a", "b"])`.

    Plain ints, floats and strs become `kind`. Values that do not fit are refused on encoding.
    """
    code = _WIDE_CODES.get(kind)
    if code is None:
        raise LocalProtocolError(
            f"an array cannot contain {kind.__name__}: use a type such as int, str, bytes or Symbol"
        )
    if issubclass(kind, _CONVERTIBLE):
        plain = next(base for base in (int, float, str) if issubclass(kind, base))
        items = (kind(item) if isinstance(item, plain) else item for item in items)
    return Array(code, tuple(items))


# --- Values of a peer in error texts --------------------------------------------------------------

CHARS_MAX = 60
ITEMS_MAX = 4  # of a list, map or array
LEVELS_MAX = 3  # of nesting


class _ShortRepr(Repr):
    """Python's `reprlib` for the types of AMQP: its cost does not grow with the value.

    For a value of type T, `reprlib` calls the method `repr_T`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = LEVELS_MAX, CHARS_MAX, CHARS_MAX
        self.maxlist = self.maxtuple = self.maxdict = ITEMS_MAX

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[:CHARS_MAX])

    def repr_Symbol(self, value: Symbol, level: int) -> str:
        return f"Symbol({self.repr_str(str(value), level)})"

    def repr_Char(self, value: Char, level: int) -> str:
        return repr(value)

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        # The inherited method sorts all keys.
        if level <= 0:
            return "{...}"
        items = [
            f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}"
            for key, item in islice(value.items(), ITEMS_MAX)
        ]
        return "{" + ", ".join(items + ["..."] * (len(value) > ITEMS_MAX)) + "}"

    def repr_Described(self, value: Described, level: int) -> str:
        if level <= 0:
            return "Described(...)"
        parts = self.repr1(value.descriptor, level - 1), self.repr1(value.value, level - 1)
        return f"Described(descriptor={parts[0]}, value={parts[1]})"

    def repr_Array(self, value: Array, level: int) -> str:
        if level <= 0:
            return "Array(...)"
        return f"Array(code={value.code}, items={self.repr1(value.items, level - 1)})"


_SHORT = _ShortRepr()


def short(value: Any) -> str:
    """The first characters of the repr of a value."""
    text = _SHORT.repr(value)
    return text if len(text) <= CHARS_MAX else text[: CHARS_MAX - 3] + "..."


def show(value: Any) -> str:
    """A value for an error message: its type and the first characters of its repr."""
    return f"{type(value).__name__} {short(value)}"
