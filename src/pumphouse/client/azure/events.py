"""Converts events and positions for the official SDK.

Sent events become EventData, property by property, because the SDK would write every int with 32
bits and every unsigned number as a signed one. Received events are decoded by event_decoding.py, as
with the native driver: the SDK turns strings and binaries alike into bytes and fails on characters
and decimals, so a reader could never get past such an event.

    Event -> event_data -> EventDataBatch        Position -> sdk_position -> EventHubConsumer
             ^^^^^^^^^^ this module                          ^^^^^^^^^^^^ and this
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from azure.eventhub import EventData

from pumphouse.amqp.types import (
    Byte,
    Char,
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
from pumphouse.errors import OptionError
from pumphouse.events import Event, Position, to_datetime

KEY = b"x-opt-partition-key"

# type -> name in the SDK, and number of bits; negative for signed types
INTEGERS: dict[type, tuple[str, int]] = {
    UByte: ("UBYTE", 8),
    UShort: ("USHORT", 16),
    UInt: ("UINT", 32),
    ULong: ("ULONG", 64),
    Byte: ("BYTE", -8),
    Short: ("SHORT", -16),
    Int: ("INT", -32),
    Timestamp: ("TIMESTAMP", -64),
    int: ("LONG", -64),
}
UNTYPED = (type(None), bool, bytes, UUID)  # the SDK encodes these correctly

# The SDK needs a datetime, which covers the years 1 to 9999 only.
MS_MIN, MS_MAX = -62135596800000, 253402300799999


def event_data(event: Event, to_partition: bool = False) -> EventData:
    """An event for the SDK. With `to_partition` it carries its key; otherwise its batch does."""
    data = EventData(event.body)
    data.properties = {name: typed_value(name, value) for name, value in event.properties.items()}
    if to_partition and event.partition_key is not None:
        annotations = data.raw_amqp_message.annotations
        assert annotations is not None
        annotations[KEY] = event.partition_key
    return data


def typed_value(name: str, value: Any) -> Any:
    """A property with its AMQP type."""
    kind = type(value)
    if kind in UNTYPED:
        return value
    if kind in INTEGERS:
        return typed_integer(name, value, *INTEGERS[kind])
    if isinstance(value, float):
        return {"TYPE": "FLOAT" if kind is Float else "DOUBLE", "VALUE": float(value)}
    if isinstance(value, str) and kind is not Char:
        return {"TYPE": "SYMBOL" if kind is Symbol else "STRING", "VALUE": str(value)}
    raise OptionError(
        f"property {name!r} is of type {kind.__name__}, which azure-eventhub cannot send; "
        "the native driver can, if AMQP has this type"
    )


def typed_integer(name: str, value: int, type_name: str, bits: int) -> dict[str, Any]:
    low, high = (0, 2**bits) if bits > 0 else (-(2 ** (-bits - 1)), 2 ** (-bits - 1))
    if not low <= value < high:
        raise OptionError(f"property {name!r} is {int(value)}, out of range of AMQP {type_name}")
    return {"TYPE": type_name, "VALUE": int(value)}


def sdk_position(position: Position) -> tuple[Any, bool]:
    """A position for the SDK: a str is an offset, an int a sequence number."""
    match position.kind:
        case "earliest":
            return "-1", False
        case "latest":
            return "@latest", False
        case "offset":
            return position.value, position.inclusive
        case "sequence":
            return int(position.value), position.inclusive
        case "time":
            ms = min(max(int(position.value), MS_MIN), MS_MAX)
            return to_datetime(ms), position.inclusive
    raise OptionError(
        f"invalid kind of position {position.kind!r} (got {position}): "
        "use earliest, latest, offset, sequence or time"
    )
