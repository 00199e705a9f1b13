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
from typing import Any, ClassVar, NamedTuple

from pumphouse.amqp.codec import decode, encode
from pumphouse.amqp.types import Array, Described, Symbol, UByte, UInt, ULong, UShort, array_of
from pumphouse.errors import LocalProtocolError, MalformedBytes, RemoteProtocolError

INT_MAX: dict[type, int] = {
    UByte: 0xFF,
    UShort: 0xFFFF,
    UInt: 0xFFFFFFFF,
    ULong: 0xFFFFFFFFFFFFFFFF,
}
SYMBOLS = "symbols"  # a field with any number of symbols; a tuple in Python
MAP = dict
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


def specs(cls: type[Composite]) -> tuple[FieldSpec, ...]:
    """The fields of a composite in wire order, computed once per class."""
    known = SPECS.get(cls)
    if known is None:
        known = SPECS[cls] = tuple(
            FieldSpec(f.name, f.metadata["kind"], f.metadata["required"])
            for f in fields(cls)  # type: ignore[arg-type]
        )
    return known


def encode_performative(performative: Composite) -> bytes:
    """The frame body of a performative: descriptor and full field list."""
    return encode(to_described(performative))


def to_described(composite: Composite) -> Described:
    """A composite as plain AMQP values, with every field."""
    values = [field_out(composite, spec) for spec in specs(type(composite))]
    return Described(ULong(composite.CODE), values)


def field_out(composite: Composite, spec: FieldSpec) -> Any:
    value = getattr(composite, spec.name)
    if value is None or value == ():
        if spec.required:
            raise LocalProtocolError(f"{composite.NAME}.{hyphen(spec.name)} must be set")
        return None
    return OUT.get(spec.kind, same)(value)


def same(value: Any) -> Any:
    """Convert a nested composite to plain values; return any other value unchanged."""
    if isinstance(value, Composite):
        return to_described(value)
    return value


OUT: dict[Any, Callable[[Any], Any]] = {
    **{kind: kind for kind in INT_MAX},
    Symbol: Symbol,
    SYMBOLS: lambda names: array_of(Symbol, names),
}


def decode_performative(data: bytes, pos: int, end: int) -> tuple[Composite, int]:
    """The performative at `pos`, and the position of the payload after it."""
    value, after = decode(data, pos, end)
    if not isinstance(value, Described):
        raise MalformedBytes(
            pos, f"a frame body must start with a performative, found {show(value)}"
        )
    return from_described(value, pos), after


def from_described(described: Described, pos: int = 0) -> Composite:
    """The composite that the descriptor of plain AMQP values names."""
    cls = find_class(described.descriptor)
    if cls is None:
        raise MalformedBytes(pos, f"descriptor {show(described.descriptor)} is not known")
    values = described.value
    if not isinstance(values, list):
        raise MalformedBytes(pos, f"{cls.NAME} must hold a list, found {show(values)}")
    known = specs(cls)
    if len(values) > len(known):
        raise MalformedBytes(pos, f"{cls.NAME} has {len(known)} fields, found {len(values)}")
    return cls(**fields_in(cls.NAME, known, values, pos))


def fields_in(
    name: str, known: tuple[FieldSpec, ...], values: list[Any], pos: int
) -> dict[str, Any]:
    """The present fields by name, each checked against its type."""
    given: dict[str, Any] = {}
    for spec, value in zip(known, values, strict=False):
        if value is not None:
            try:
                given[spec.name] = field_in(spec.kind, value, pos)
            except (TypeError, RemoteProtocolError) as wrong:
                why = wrong.found if isinstance(wrong, MalformedBytes) else str(wrong)
                raise MalformedBytes(pos, f"{name}.{hyphen(spec.name)}: {why}") from None
    for spec in known:
        if spec.required and spec.name not in given:
            raise MalformedBytes(pos, f"{name}.{hyphen(spec.name)} is mandatory, found null")
    return given


def field_in(kind: Any, value: Any, pos: int) -> Any:
    """A received value converted to its type; TypeError names the unexpected value."""
    highest = INT_MAX.get(kind)
    if highest is not None:
        # Any integer width is accepted if the value fits: peers use different widths.
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
            raise TypeError(f"expected {kind.__name__.lower()}, found {show(value)}")
        return int(value)
    if kind is ANY:
        return composite_in(value, pos)
    if kind is SYMBOLS:
        return symbols_in(value)
    if isinstance(kind, type) and issubclass(kind, Composite):
        return composite_of(kind, value, pos)
    if kind is Symbol:
        return symbol_in(value)
    if not isinstance(value, kind):
        raise TypeError(f"expected {kind.__name__}, found {show(value)}")
    return value


def symbol_in(value: Any) -> str:
    """A symbol. An ASCII string is accepted too, because some peers send strings."""
    if not isinstance(value, str) or not value.isascii():
        raise TypeError(f"expected symbol, found {show(value)}")
    return value


def composite_in(value: Any, pos: int) -> Any:
    """A nested composite if its descriptor is known, otherwise the value unchanged."""
    if isinstance(value, Described) and find_class(value.descriptor) is not None:
        return from_described(value, pos)
    return value


def composite_of(kind: type[Composite], value: Any, pos: int) -> Composite:
    composite = composite_in(value, pos)
    if not isinstance(composite, kind):
        raise TypeError(f"expected {kind.NAME}, found {show(value)}")
    return composite


def symbols_in(value: Any) -> tuple[str, ...]:
    items = value.items if isinstance(value, Array) else (value,)
    return tuple(symbol_in(item) for item in items)


def find_class(descriptor: Any) -> type[Composite] | None:
    """The class of a descriptor; None if the descriptor is unknown."""
    if isinstance(descriptor, int | str) and not isinstance(descriptor, bool):
        return BY_DESCRIPTOR.get(descriptor)
    return None


def show(value: Any) -> str:
    """A value for an error message: its type and the first characters of its repr."""
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def hyphen(name: str) -> str:
    return name.replace("_", "-")
