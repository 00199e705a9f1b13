"""Messages: the sections that form the payload of transfers.

A message is a sequence of sections, each a described value: header, annotations, properties, body
and footer. `scan` locates the sections without decoding them, which is enough for a hub to store a
message. `decode_message` and `encode_message` convert whole messages.

A batch (message format 0x80013700) is a message whose data sections each hold one message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from pumphouse.amqp.codec import decode, encode, skip
from pumphouse.amqp.composites import (
    Composite,
    encode_performative,
    specs,
    typed_fields,
    wire,
)
from pumphouse.amqp.constructors import NAMES, WIDTHS
from pumphouse.amqp.readers import NO_LIMIT
from pumphouse.amqp.types import Described, Symbol, Timestamp, UByte, UInt, ULong, show
from pumphouse.amqp.writers import LARGEST_SIZE
from pumphouse.errors import MalformedBytes

HEADER, DELIVERY_ANNOTATIONS, MESSAGE_ANNOTATIONS, PROPERTIES = 0x70, 0x71, 0x72, 0x73
APPLICATION_PROPERTIES, DATA, SEQUENCE, VALUE, FOOTER = 0x74, 0x75, 0x76, 0x77, 0x78

SINGLE_FORMAT = 0
BATCH_FORMAT = 0x80013700

SECTION_NAMES = {
    "amqp:header:list": HEADER,
    "amqp:delivery-annotations:map": DELIVERY_ANNOTATIONS,
    "amqp:message-annotations:map": MESSAGE_ANNOTATIONS,
    "amqp:properties:list": PROPERTIES,
    "amqp:application-properties:map": APPLICATION_PROPERTIES,
    "amqp:data:binary": DATA,
    "amqp:amqp-sequence:list": SEQUENCE,
    "amqp:amqp-value:*": VALUE,
    "amqp:footer:map": FOOTER,
}

Section = tuple[int, int, int, int]  # code, start, start of the value, end


# Width of the size after a constructor; 0 for constructors without a size.
SIZE_BYTES = bytes(WIDTHS[c >> 4] if c in NAMES and c >= 0xA0 else 0 for c in range(256))
SIZE = struct.Struct(">I")


def section_end(data: bytes, value_at: int, end: int) -> int:
    """The end of the value of a section; faster than `skip` for the usual constructors."""
    width = SIZE_BYTES[data[value_at]]
    if width == 1 and value_at + 1 < end:
        after = value_at + 2 + data[value_at + 1]
    elif width == 4 and value_at + 4 < end:
        after = value_at + 5 + SIZE.unpack_from(data, value_at + 1)[0]
    else:
        return skip(data, value_at, end)
    # `skip` raises the error of a value that passes the end.
    return after if after <= end else skip(data, value_at, end)


def scan(data: bytes, pos: int, end: int, sections_max: int = NO_LIMIT) -> list[Section]:
    """The sections between `pos` and `end`; MalformedBytes if other bytes are among them."""
    sections: list[Section] = []
    while pos < end:
        if len(sections) >= sections_max:
            raise MalformedBytes(pos, f"message of more than {sections_max} sections")
        section = section_at(data, pos, end)
        sections.append(section)
        pos = section[3]
    return sections


def section_at(data: bytes, pos: int, end: int) -> Section:
    """The section that starts at `pos`."""
    # Fast path: nearly every producer encodes the descriptor as a smallulong.
    if data[pos : pos + 2] == b"\x00\x53" and pos + 3 < end:
        code, value_at = data[pos + 2], pos + 3
    else:
        code, value_at = section_code(data, pos, end)
    if not HEADER <= code <= FOOTER:
        raise MalformedBytes(pos, f"section 0x{code:02x} is not part of a message")
    return code, pos, value_at, section_end(data, value_at, end)


def section_code(data: bytes, pos: int, end: int) -> tuple[int, int]:
    """The code of a section, for any form of its descriptor, and the start of its value."""
    if data[pos] != 0:
        raise MalformedBytes(pos, f"expected a message section, found byte 0x{data[pos]:02x}")
    descriptor, after = decode(data, pos + 1, end)
    code = SECTION_NAMES.get(descriptor) if isinstance(descriptor, Symbol) else descriptor
    if not isinstance(code, int):
        raise MalformedBytes(pos, f"{show(descriptor)} does not describe a message section")
    if after >= end:
        raise MalformedBytes(pos, f"section 0x{int(code):02x} has no value")
    return int(code), after


@dataclass(frozen=True, slots=True, kw_only=True)
class Header(Composite):
    """The header section: durability, priority and time to live."""

    CODE = HEADER
    NAME = "header"
    durable: bool | None = wire(bool)
    priority: int | None = wire(UByte)
    ttl: int | None = wire(UInt)
    first_acquirer: bool | None = wire(bool)
    delivery_count: int | None = wire(UInt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties(Composite):
    """The properties section: the standard fields of a message."""

    CODE = PROPERTIES
    NAME = "properties"
    message_id: Any = wire(object)
    user_id: bytes | None = wire(bytes)
    to: Any = wire(object)
    subject: str | None = wire(str)
    reply_to: Any = wire(object)
    correlation_id: Any = wire(object)
    content_type: str | None = wire(Symbol)
    content_encoding: str | None = wire(Symbol)
    absolute_expiry_time: Timestamp | None = wire(object)
    creation_time: Timestamp | None = wire(object)
    group_id: str | None = wire(str)
    group_sequence: int | None = wire(UInt)
    reply_to_group_id: str | None = wire(str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message. The body is in `data` (binary sections), `sequence` (lists) or `value`."""

    header: Header | None = None
    delivery_annotations: Mapping[Any, Any] = field(default_factory=dict)
    annotations: Mapping[Any, Any] = field(default_factory=dict)
    properties: Properties | None = None
    application: Mapping[Any, Any] = field(default_factory=dict)
    data: tuple[bytes, ...] = ()
    sequence: tuple[list[Any], ...] = ()
    value: Any = None
    footer: Mapping[Any, Any] = field(default_factory=dict)


def encode_section(code: int, value: Any) -> bytes:
    return encode(Described(ULong(code), value))


# Descriptor of a data section and constructor of its binary: with a size of one byte, and of four.
DATA_NARROW, DATA_WIDE = b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0"


def data_section(body: bytes) -> bytes:
    """A body as a data section. Written directly because a batch has one per event."""
    if type(body) is not bytes or len(body) > LARGEST_SIZE:
        return encode_section(DATA, body)  # slower; raises the error if `body` is invalid
    return data_head(len(body)) + body


@lru_cache(4096)  # events of a stream have few sizes, or small ones
def data_head(size: int) -> bytes:
    """The bytes of a data section that precede a body of this size."""
    if size <= 0xFF:
        return DATA_NARROW + bytes((size,))
    return DATA_WIDE + size.to_bytes(4, "big")


def encode_message(message: Message) -> bytes:
    """A message as bytes, its sections in the order of the specification."""
    parts = [
        *([encode_performative(message.header)] if message.header else ()),
        *map_section(DELIVERY_ANNOTATIONS, message.delivery_annotations),
        *map_section(MESSAGE_ANNOTATIONS, message.annotations),
        *([encode_performative(message.properties)] if message.properties else ()),
        *map_section(APPLICATION_PROPERTIES, message.application),
        *map(data_section, message.data),
        *(encode_section(SEQUENCE, items) for items in message.sequence),
    ]
    if not message.data and not message.sequence:
        parts.append(encode_section(VALUE, message.value))
    return b"".join((*parts, *map_section(FOOTER, message.footer)))


def map_section(code: int, entries: Mapping[Any, Any]) -> tuple[bytes, ...]:
    return (encode_section(code, dict(entries)),) if entries else ()


def decode_message(
    data: bytes, pos: int = 0, end: int | None = None, values_max: int = NO_LIMIT
) -> Message:
    """The message in these bytes; MalformedBytes if a section has more than `values_max` values."""
    stop = len(data) if end is None else end
    single: dict[int, Any] = {}
    bodies: list[bytes] = []
    lists: list[list[Any]] = []
    for code, start, value_at, after in scan(data, pos, stop, values_max):
        value, _ = decode(data, value_at, after, values_max)
        if code == DATA:
            # The official JavaScript client sends an empty body as null.
            bodies.append(b"" if value is None else expect(bytes, value, "data", start))
        elif code == SEQUENCE:
            lists.append(expect(list, value, "amqp-sequence", start))
        else:
            single[code] = value if code == VALUE else checked_section(code, value, start)
    return Message(
        header=single.get(HEADER),
        delivery_annotations=single.get(DELIVERY_ANNOTATIONS, {}),
        annotations=single.get(MESSAGE_ANNOTATIONS, {}),
        properties=single.get(PROPERTIES),
        application=single.get(APPLICATION_PROPERTIES, {}),
        data=tuple(bodies),
        sequence=tuple(lists),
        value=single.get(VALUE),
        footer=single.get(FOOTER, {}),
    )


def checked_section(code: int, value: Any, pos: int) -> Any:
    """The value of a header, properties or map section; MalformedBytes if it is invalid."""
    if code in (HEADER, PROPERTIES):
        cls: type[Header | Properties] = Header if code == HEADER else Properties
        field_specs = specs(cls)
        values = expect(list, value, cls.NAME, pos)
        if len(values) > len(field_specs):
            raise MalformedBytes(
                pos, f"{cls.NAME} has {len(field_specs)} fields, found {len(values)}"
            )
        return cls(**typed_fields(cls.NAME, field_specs, values, pos))
    return expect(dict, value, f"section 0x{code:02x}", pos)


def expect(kind: type, value: Any, name: str, pos: int) -> Any:
    if not isinstance(value, kind):
        raise MalformedBytes(pos, f"{name} must hold {kind.__name__}, found {show(value)}")
    return value


def encode_batch(messages: Iterable[bytes], annotations: Mapping[Any, Any] | None = None) -> bytes:
    """Encoded messages as the payload of one batch."""
    outer = map_section(MESSAGE_ANNOTATIONS, annotations or {})
    return b"".join((*outer, *map(data_section, messages)))
