"""Events and positions as the official SDK wants them.

What we send is made into EventData, property by property, since the SDK would write every int as a
32-bit one and every unsigned number without its sign. What arrives is decoded by rows.py, as with
the native driver, and not by the SDK: that one makes strings and binaries alike into bytes, and
fails on a character or a decimal, so that a reader could never get past such an event.

    Event -> event_data -> EventDataBatch        Position -> start_of -> EventHubConsumer
             ^^^^^^^^^^ this module                          ^^^^^^^^ and this
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

# type -> the SDK's word for it, and how many bits; negative for those with a sign
WHOLE: dict[type, tuple[str, int]] = {
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
AS_THEY_ARE = (type(None), bool, bytes, UUID)

# What the SDK can write as a time: it wants a datetime, and those end with the year 9999.
MS_MIN, MS_MAX = -62135596800000, 253402300799999


def event_data(event: Event, to_partition: bool = False) -> EventData:
    """An event for the SDK. A batch carries the key of its events, unless it has a partition."""
    made = EventData(event.body)
    made.properties = {name: tagged(name, value) for name, value in event.properties.items()}
    if to_partition and event.partition_key is not None:
        annotations = made.raw_amqp_message.annotations
        assert annotations is not None
        annotations[KEY] = event.partition_key
    return made


def tagged(name: str, value: Any) -> Any:
    """A property together with the AMQP type it is to have."""
    kind = type(value)
    if kind in AS_THEY_ARE:
        return value
    if kind in WHOLE:
        return whole(name, value, *WHOLE[kind])
    if isinstance(value, float):
        return {"TYPE": "FLOAT" if kind is Float else "DOUBLE", "VALUE": float(value)}
    if isinstance(value, str) and kind is not Char:
        return {"TYPE": "SYMBOL" if kind is Symbol else "STRING", "VALUE": str(value)}
    raise OptionError(
        f"property {name!r} is of type {kind.__name__}, which azure-eventhub cannot send; "
        "the native driver can, if AMQP has such a type"
    )


def whole(name: str, value: int, word: str, bits: int) -> dict[str, Any]:
    low, high = (0, 2**bits) if bits > 0 else (-(2 ** (-bits - 1)), 2 ** (-bits - 1))
    if not low <= value < high:
        raise OptionError(f"property {name!r} is {int(value)}, which an AMQP {word} cannot hold")
    return {"TYPE": word, "VALUE": int(value)}


def start_of(position: Position) -> tuple[Any, bool]:
    """A position as the SDK takes it: a str is an offset, an int a sequence number."""
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
    raise OptionError(f"{position.kind!r} is no kind of position (got {position})")
