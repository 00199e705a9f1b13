"""The field codec of all composite types: performatives, sources, errors, message properties.

A composite is a descriptor and a list of fields. A dataclass declares the AMQP type of each field
once (`wire(UInt)`), and both directions follow from it. Every field is always written, trailing
nulls included, because the official Python client indexes fields by position and fails on a
shortened list.

    bytes <-> codec <-> plain values <-> composites: performatives, messages
                        ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from itertools import zip_longest
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

from pumphouse.amqp.codec import decode
from pumphouse.amqp.types import (
    Array,
    Described,
    Symbol,
    UByte,
    UInt,
    ULong,
    UShort,
    array_of,
    show,
)
from pumphouse.amqp.writers import ENCODERS, Writer, encoder_of, write_list
from pumphouse.errors import LocalProtocolError, MalformedBytes, RemoteProtocolError

INT_MAX: dict[type, int] = {
    UByte: 0xFF,
    UShort: 0xFFFF,
    UInt: 0xFFFFFFFF,
    ULong: 0xFFFFFFFFFFFFFFFF,
}
SYMBOLS = "symbols"  # a field with any number of symbols; a tuple in Python
MAP = dict  # its keys are symbols
TAG_MAP = "tag map"  # its keys are delivery tags, which are binary
# AMQP values in one performative, nested ones included. Official clients need about a hundred.
VALUES_MAX = 4096
ANY = object


def wire(kind: Any, *, default: Any = None, required: bool = False) -> Any:
    """A dataclass field with its AMQP type. Null on the wire is `default` in Python."""
    metadata = {"kind": kind, "required": required}
    if required:
        return field(metadata=metadata)
    return field(default=() if kind is SYMBOLS else default, metadata=metadata)


class FieldSpec(NamedTuple):
    """One field of a composite: its name, its AMQP type, and whether it is mandatory."""

    name: str
    kind: Any
    required: bool


class Composite:
    """A descriptor and a list of fields. Subclasses register by code and by name."""

    __slots__ = ()
    CODE: ClassVar[int]
    NAME: ClassVar[str]

    def __init_subclass__(cls) -> None:
        BY_DESCRIPTOR[cls.CODE] = BY_DESCRIPTOR[f"amqp:{cls.NAME}:list"] = cls


# A descriptor is a number or a name; the table has both.
BY_DESCRIPTOR: dict[Any, type[Composite]] = {}
SPECS: dict[type[Composite], tuple[FieldSpec, ...]] = {}
# For each class, a function that returns the values of all fields in wire order.
VALUES_OF: dict[type[Composite], Callable[[Composite], tuple[Any, ...]]] = {}


def specs(cls: type[Composite]) -> tuple[FieldSpec, ...]:
    """The fields of a composite in wire order, computed once per class."""
    known = SPECS.get(cls)
    if known is None:
        known = SPECS[cls] = tuple(
            FieldSpec(f.name, f.metadata["kind"], f.metadata["required"])
            for f in fields(cls)  # type: ignore[arg-type]
        )
        VALUES_OF[cls] = values_of(known)
    return known


def values_of(field_specs: tuple[FieldSpec, ...]) -> Callable[[Composite], tuple[Any, ...]]:
    names = [spec.name for spec in field_specs]
    if len(names) > 1:
        return attrgetter(*names)  # much faster than a call for each field
    return lambda composite: tuple(getattr(composite, name) for name in names)


def encode_performative(performative: Composite) -> bytes:
    """The frame body of a performative: descriptor and full field list."""
    out = bytearray()
    write_composite(out, performative, 0)
    return bytes(out)


def write_composite(out: bytearray, composite: Composite, depth: int) -> None:
    """Append the bytes of `to_described(composite)`, without making its plain values."""
    body = bytearray()
    cls = type(composite)
    field_specs = specs(cls)
    for (name, kind, required), value in zip(field_specs, VALUES_OF[cls](composite), strict=True):
        if value is None or value == ():
            if required:
                raise not_set_error(composite, name)
            body.append(0x40)
        else:
            # A described list is two levels deep.
            FIELD_WRITERS.get(kind, write_any)(body, value, depth + 2)
    out += b"\x00\x53"
    out.append(composite.CODE)
    write_list(out, body, len(field_specs))


def write_any(out: bytearray, value: Any, depth: int) -> None:
    if isinstance(value, Composite):
        write_composite(out, value, depth)
    else:
        (ENCODERS.get(type(value)) or encoder_of(type(value)))(out, value, depth)


def write_symbols(out: bytearray, names: Any, depth: int) -> None:
    ENCODERS[Array](out, array_of(Symbol, names), depth)


FIELD_WRITERS: dict[Any, Writer] = {
    **{kind: ENCODERS[kind] for kind in (*INT_MAX, Symbol)},
    SYMBOLS: write_symbols,
}


def not_set_error(composite: Composite, name: str) -> LocalProtocolError:
    return LocalProtocolError(f"{composite.NAME}.{hyphen(name)} must be set")


def to_described(composite: Composite) -> Described:
    """A composite as plain AMQP values, with every field."""
    values = [field_to_plain(composite, spec) for spec in specs(type(composite))]
    return Described(ULong(composite.CODE), values)


def field_to_plain(composite: Composite, spec: FieldSpec) -> Any:
    value = getattr(composite, spec.name)
    if value is None or value == ():
        if spec.required:
            raise not_set_error(composite, spec.name)
        return None
    return TO_WIRE.get(spec.kind, plain_value)(value)


def plain_value(value: Any) -> Any:
    """Convert a nested composite to plain values; return any other value unchanged."""
    if isinstance(value, Composite):
        return to_described(value)
    return value


TO_WIRE: dict[Any, Callable[[Any], Any]] = {
    **{kind: kind for kind in INT_MAX},
    Symbol: Symbol,
    SYMBOLS: lambda names: array_of(Symbol, names),
}


def decode_performative(data: bytes, pos: int, end: int) -> tuple[Composite, int]:
    """The performative at `pos`, and the position of the payload after it."""
    value, after = decode(data, pos, end, VALUES_MAX)
    if not isinstance(value, Described):
        raise MalformedBytes(
            pos, f"a frame body must start with a performative, found {show(value)}"
        )
    return from_described(value, pos), after


def from_described(described: Described, pos: int = 0) -> Composite:
    """The composite of a described list; the descriptor selects its class."""
    cls = find_class(described.descriptor)
    if cls is None:
        raise MalformedBytes(pos, f"descriptor {show(described.descriptor)} is not known")
    values = described.value
    if not isinstance(values, list):
        raise MalformedBytes(pos, f"{cls.NAME} must hold a list, found {show(values)}")
    field_specs = specs(cls)
    if len(values) > len(field_specs):
        raise MalformedBytes(pos, f"{cls.NAME} has {len(field_specs)} fields, found {len(values)}")
    return cls(**typed_fields(cls.NAME, field_specs, values, pos))


def typed_fields(
    name: str, field_specs: tuple[FieldSpec, ...], values: list[Any], pos: int
) -> dict[str, Any]:
    """The present fields by name, each checked against its type."""
    present: dict[str, Any] = {}
    for (field_name, kind, required), value in zip_longest(field_specs, values):
        if value is not None:
            try:
                present[field_name] = typed_field(kind, value, pos)
            except (TypeError, RemoteProtocolError) as wrong:
                problem = wrong.found if isinstance(wrong, MalformedBytes) else str(wrong)
                raise MalformedBytes(pos, f"{name}.{hyphen(field_name)}: {problem}") from None
        elif required:
            problem = f"{name}.{hyphen(field_name)} is mandatory, found null"
            raise MalformedBytes(pos, problem)
    return present


def typed_field(kind: Any, value: Any, pos: int) -> Any:
    """A received value converted to its type; TypeError names the unexpected value."""
    highest = INT_MAX.get(kind)
    if highest is not None:
        # Any integer width is accepted if the value fits: peers use different widths.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
            raise TypeError(f"expected {kind.__name__.lower()}, found {show(value)}")
        return int(value)
    if kind is str or kind is bool or kind is bytes:
        if not isinstance(value, kind):
            raise TypeError(f"expected {kind.__name__}, found {show(value)}")
        return value
    if kind is ANY:
        return decode_nested(value, pos)
    if kind is SYMBOLS:
        return checked_symbols(value)
    if kind is Symbol:
        return checked_symbol(value)
    if kind in KEY_TYPES:
        return checked_map(value, KEY_TYPES[kind])
    return checked_composite(kind, value, pos)


def checked_symbol(value: Any) -> str:
    """A symbol. An ASCII string is accepted too, because some peers send strings."""
    if not isinstance(value, str) or not value.isascii():
        raise TypeError(f"expected symbol, found {show(value)}")
    return value


# Keys of another type violate the specification, and a peer could choose them with equal hashes.
KEY_TYPES: dict[Any, type] = {MAP: str, TAG_MAP: bytes}


def checked_map(value: Any, key_type: type) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"expected map, found {show(value)}")
    for key in value:
        if not isinstance(key, key_type):
            raise TypeError(f"expected {key_type.__name__} as the key of a map, found {show(key)}")
    return value


def decode_nested(value: Any, pos: int) -> Any:
    """A nested composite if its descriptor is known, otherwise the value unchanged."""
    if isinstance(value, Described) and find_class(value.descriptor) is not None:
        return from_described(value, pos)
    return value


def checked_composite(kind: type[Composite], value: Any, pos: int) -> Composite:
    composite = decode_nested(value, pos)
    if not isinstance(composite, kind):
        raise TypeError(f"expected {kind.NAME}, found {show(value)}")
    return composite


def checked_symbols(value: Any) -> tuple[str, ...]:
    items = value.items if isinstance(value, Array) else (value,)
    return tuple(checked_symbol(item) for item in items)


def find_class(descriptor: Any) -> type[Composite] | None:
    """The class of a descriptor; None if the descriptor is unknown."""
    if isinstance(descriptor, (int, str)) and not isinstance(descriptor, bool):
        return BY_DESCRIPTOR.get(descriptor)
    return None


def hyphen(name: str) -> str:
    return name.replace("_", "-")
