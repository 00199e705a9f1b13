"""Strategies for consecutive transfer frames, usual and unusual ones.

A run has a few shapes (sections, names and types of values) and rows of each, so rows with the same
layout and unique rows are mixed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from pumphouse.amqp.codec import encode
from pumphouse.amqp.columnar.buffer_view import SLACK, BufferView, ValueId
from pumphouse.amqp.columnar.columns import Columns, FrameIndex
from pumphouse.amqp.composites import hyphen, specs
from pumphouse.amqp.frames import EMPTY_FRAME, HEAD, encode_frame
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Properties,
)
from pumphouse.amqp.performatives import Flow, Transfer
from pumphouse.amqp.types import (
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
    array_of,
)

CHANNEL, HANDLE = 3, 7
FRAME_MAX = 1 << 20

# --- Values, encoded -----------------------------------------------------------------------------

INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
NUMBERS = {
    "long": INT64 | st.integers(-200, 200),
    "int": st.integers(-(1 << 31), (1 << 31) - 1).map(Int) | st.integers(-9, 9).map(Int),
    "short": st.integers(-(1 << 15), (1 << 15) - 1).map(Short),
    "byte": st.integers(-128, 127).map(Byte),
    "ubyte": st.integers(0, 255).map(UByte),
    "ushort": st.integers(0, 65535).map(UShort),
    "uint": st.integers(0, (1 << 32) - 1).map(UInt) | st.integers(0, 3).map(UInt),
    "ulong": st.integers(0, (1 << 64) - 1).map(ULong) | st.integers(0, 3).map(ULong),
    "time": INT64.map(Timestamp) | st.integers(0, 1 << 41).map(Timestamp),
}
SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    **NUMBERS,
    "null": st.none(),
    "boolean": st.booleans(),
    "double": st.floats() | st.sampled_from([0.1, -2.5, 1e15, 1e-5, 123456.789]),
    "float": st.floats(width=32).map(Float),
    "text": st.text(max_size=20),
    "long text": st.integers(240, 300).map(lambda size: "é" * size),
    "symbol": st.text(st.characters(max_codepoint=127), max_size=20).map(Symbol),
    "long symbol": st.integers(250, 300).map(lambda size: Symbol("s" * size)),
    "binary": st.binary(max_size=20),
    "uuid": st.uuids(),
    "char": st.characters(exclude_categories=["Cs"]).map(Char),
    "decimal32": st.binary(min_size=4, max_size=4).map(Decimal32),
    "decimal64": st.binary(min_size=8, max_size=8).map(Decimal64),
    "decimal128": st.binary(min_size=16, max_size=16).map(Decimal128),
}
ANY_SIMPLE = st.one_of(*SIMPLE.values())
COMPOUND = (
    st.lists(ANY_SIMPLE, max_size=3)
    | st.dictionaries(st.text(max_size=3), ANY_SIMPLE, max_size=3)
    | st.lists(st.integers(0, 9), max_size=3).map(lambda items: array_of(UInt, items))
    | ANY_SIMPLE.map(lambda value: Described(Symbol("a:b"), value))
)
# Allowed forms that our encoder does not use.
UNUSUAL = st.sampled_from(
    [
        b"\x56\x00",
        b"\x56\x01",
        b"\x70\x00\x00\x00\x05",
        b"\x80" + bytes(7) + b"\x05",
        b"\x81" + bytes(7) + b"\x05",
        b"\x71\xff\xff\xff\xff",
        b"\xb1\x00\x00\x00\x02ab",
        b"\xb0\x00\x00\x00\x00",
        b"\xb3\x00\x00\x00\x01s",
    ]
)


def encoded(kind: str) -> st.SearchStrategy[bytes]:
    match kind:
        case "compound":
            return COMPOUND.map(encode)
        case "unusual":
            return UNUSUAL
        case "any":
            return (ANY_SIMPLE | COMPOUND).map(encode) | UNUSUAL
    return SIMPLE[kind].map(encode)


KINDS = st.sampled_from([*SIMPLE, "compound", "unusual", "any"])

# --- Sections ------------------------------------------------------------------------------------


def section(code: int, value: bytes) -> bytes:
    return b"\x00\x53" + bytes([code]) + value


def compound(small: int, items: list[bytes], wide: bool) -> bytes:
    """A list (0xc0) or map (0xc1) of encoded items."""
    content = b"".join(items)
    if wide or len(content) > 254 or len(items) > 255:
        return bytes([small + 0x10]) + struct.pack(">II", len(content) + 4, len(items)) + content
    return bytes([small, len(content) + 1, len(items)]) + content


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "message_id": st.one_of(st.text(max_size=9), st.uuids(), SIMPLE["ulong"], SIMPLE["binary"]),
    "user_id": SIMPLE["binary"],
    "to": SIMPLE["text"],
    "subject": SIMPLE["text"] | SIMPLE["symbol"],
    "reply_to": SIMPLE["text"],
    "correlation_id": st.text(max_size=9) | st.uuids(),
    "content_type": SIMPLE["symbol"] | st.just("text/plain"),
    "content_encoding": SIMPLE["symbol"],
    "absolute_expiry_time": SIMPLE["time"],
    "creation_time": SIMPLE["time"],
    "group_id": SIMPLE["text"],
    "group_sequence": SIMPLE["uint"],
    "reply_to_group_id": SIMPLE["text"],
}
SIZES = st.sampled_from([0, 1, 12, 13, 100, 254, 255, 256, 257, 1024, 70_000])


@dataclass(frozen=True)
class Shape:
    """The common structure of the messages of one producer."""

    header: bytes = b""
    annotations: dict[Any, str] = field(default_factory=dict)  # names and kinds
    fields: tuple[str, ...] | None = None  # of the properties; None: no such section
    application: dict[Any, str] | None = None
    body: str = "data"
    extra: int = 0  # an extra section: footer or delivery annotations
    wide: bool = False  # maps and lists with four-byte sizes
    turned: bool = False  # sections in another order than specified


SYMBOLS = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=9)
HUB_NOTES = {
    Symbol("x-opt-sequence-number"): "long",
    Symbol("x-opt-offset"): "text",
    Symbol("x-opt-enqueued-time"): "time",
}


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    notes = dict(HUB_NOTES) if draw(st.booleans()) else {}
    if draw(st.booleans()):
        notes[Symbol("x-opt-partition-key")] = draw(st.sampled_from(["text", "long text"]))
    notes |= draw(st.dictionaries(SYMBOLS.map(Symbol), KINDS, max_size=2))
    keys = st.text(max_size=6) | SYMBOLS.map(Symbol) | st.integers(0, 9)
    # One in ten is unusual.
    odd = draw(st.integers(0, 9)) == 0
    return Shape(
        header=draw(st.sampled_from([b"", b"\xc0\x02\x01\x41", b"\xc0\x04\x02\x41\x50\x04"])),
        annotations=notes,
        fields=draw(st.none() | st.lists(st.sampled_from(list(FIELDS)), max_size=4).map(tuple)),
        application=draw(st.none() | st.dictionaries(keys, KINDS, max_size=4)),
        body=draw(st.sampled_from(["two", "value", "sequence", "none"])) if odd else "data",
        extra=draw(st.sampled_from([FOOTER, DELIVERY_ANNOTATIONS])) if odd else 0,
        wide=draw(st.booleans()),
        turned=draw(st.integers(0, 9)) == 0,
    )


@st.composite
def messages(draw: st.DrawFn, shape: Shape) -> bytes:
    """A message of this shape."""

    def entries(kinds: dict[Any, str]) -> bytes:
        items = [part for key, kind in kinds.items() for part in (encode(key), draw(encoded(kind)))]
        return compound(0xC1, items, shape.wide)

    parts = [section(HEADER, shape.header)] if shape.header else []
    if shape.annotations:
        parts.append(section(MESSAGE_ANNOTATIONS, entries(shape.annotations)))
    if shape.fields is not None:
        parts.append(section(PROPERTIES, draw(property_lists(shape))))
    if shape.application is not None:
        parts.append(section(APPLICATION_PROPERTIES, entries(shape.application)))
    if shape.turned:
        parts.reverse()
    parts += draw(bodies(shape.body))
    if shape.extra:
        parts.append(section(shape.extra, compound(0xC1, [encode("k"), encode(1)], shape.wide)))
    if shape.turned:
        parts = parts[1:] + parts[:1]
    return b"".join(parts)


@st.composite
def property_lists(draw: st.DrawFn, shape: Shape) -> bytes:
    chosen = shape.fields or ()
    items = []
    for spec in specs(Properties):
        value = draw(FIELDS[spec.name]) if spec.name in chosen else None
        if spec.name == "content_type" and isinstance(value, str):
            value = Symbol(value)
        items.append(encode(value))
    while items and items[-1] == b"\x40" and not shape.wide:
        items.pop()  # many producers omit trailing nulls
    return compound(0xC0, items, shape.wide) if items else b"\x45"


@st.composite
def bodies(draw: st.DrawFn, kind: str) -> list[bytes]:
    def data() -> bytes:
        return section(DATA, encode(bytes([draw(st.integers(0, 255))]) * draw(SIZES)))

    match kind:
        case "two":
            return [data(), data()]
        case "value":
            return [section(VALUE, draw(encoded("any")))]
        case "sequence":
            return [section(SEQUENCE, encode(draw(st.lists(ANY_SIMPLE, max_size=3))))]
        case "none":
            return []
    return [data()]


# --- Frames --------------------------------------------------------------------------------------


def transfer(style: str, number: int, payload: bytes, **fields: Any) -> bytes:
    """A transfer frame in the style of our hub, or in a more compact one."""
    settled, more = fields.pop("settled", True), fields.pop("more", False)
    if style == "fixed" and not fields:
        flags = bytes([0x41 if settled else 0x42, 0x41 if more else 0x42])
        body = (
            b"\x00\x53\x14\xc0\x16\x0b"
            + struct.pack(">BIBI", 0x70, HANDLE, 0x70, number)
            + b"\xa0\x01\x00\x43"
            + flags
            + b"\x40" * 5
            + payload
        )
        return HEAD.pack(HEAD.size + len(body), 2, 0, CHANNEL) + body
    performative = Transfer(
        handle=fields.pop("handle", HANDLE),
        delivery_id=number,
        delivery_tag=struct.pack(">I", number),
        message_format=0,
        settled=settled,
        more=more,
        **fields,
    )
    return encode_frame(performative, CHANNEL, payload)


def other_frame(kind: str) -> bytes:
    if kind == "flow":
        flow = Flow(next_incoming_id=0, incoming_window=1, next_outgoing_id=0, outgoing_window=1)
        return encode_frame(flow, CHANNEL)
    return EMPTY_FRAME


@dataclass
class Run:
    """Frames as bytes, and their content."""

    payloads: list[bytes] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    others: list[bytes] = field(default_factory=list)
    other_frames: list[bytes] = field(default_factory=list)

    @property
    def data(self) -> bytearray:
        """The frames in a receive buffer."""
        return bytearray(b"".join(self.frames)) + bytes(SLACK)


@st.composite
def runs(draw: st.DrawFn, rows: int = 24) -> Run:
    run = Run()
    kinds = draw(st.lists(shapes(), min_size=1, max_size=3))
    style = draw(st.sampled_from(["fixed", "compact"]))
    settled = draw(st.booleans())
    for number, pick in enumerate(draw(st.lists(st.integers(0, 2), min_size=1, max_size=rows))):
        payload = draw(messages(kinds[pick % len(kinds)]))
        run.payloads.append(payload)
        piece = draw(st.sampled_from([FRAME_MAX, FRAME_MAX, FRAME_MAX, 400]))
        pieces = [payload[at : at + piece] for at in range(0, len(payload), piece)] or [b""]
        for at, part in enumerate(pieces):
            more = at < len(pieces) - 1
            run.frames.append(transfer(style, number, part, settled=settled, more=more))
            event = draw(st.integers(0, 60))
            if event < 2:
                run.others.append(other_frame("flow" if event else "heartbeat"))
                run.frames.append(run.others[-1])
            elif event == 2:
                run.other_frames.append(transfer("compact", number, payload, handle=HANDLE + 1))
                run.frames.append(run.other_frames[-1])
    return run


def indexed(data: bytearray) -> FrameIndex:
    """The index of the frames of a run."""
    index = FrameIndex(FRAME_MAX)
    index.extend(BufferView(data), len(data) - SLACK)
    return index


# --- Results -------------------------------------------------------------------------------------


def values_of(columns: Columns) -> list[dict[ValueId, Any]]:
    """The values of each row as text, because True == 1 == 1.0 in Python."""
    from pumphouse.amqp.codec import decode
    from pumphouse.amqp.constructors import WIDTHS

    values_by_row: dict[int, dict[ValueId, str]] = {}
    for group in columns.groups:
        for at, row in enumerate(group.rows.tolist()):
            values_by_row[row] = {}
            for value_id, values in group.values.items():
                code, start = int(values.codes[at]), int(values.starts[at])
                head = 1 + (WIDTHS[code >> 4] if code >= 0xA0 else 0)
                end = start + int(values.lengths[at])
                value, after = decode(columns.view.data, start - head, end)
                assert after == end
                if value_id.name == "group-sequence":
                    value = int(value)
                if value_id.section != Transfer.CODE:
                    values_by_row[row][value_id] = repr(value)
    for row, message in columns.singles.items():
        values_by_row[row] = {}
        sections = {
            DELIVERY_ANNOTATIONS: message.delivery_annotations,
            MESSAGE_ANNOTATIONS: message.annotations,
            APPLICATION_PROPERTIES: message.application,
            PROPERTIES: {
                hyphen(spec.name): value
                for spec in specs(Properties)
                if message.properties is not None
                and (value := getattr(message.properties, spec.name)) is not None
            },
        }
        for code, entries in sections.items():
            for key, value in entries.items():
                values_by_row[row][ValueId(code, str(key))] = repr(value)
        body: Any = b"".join(message.data)
        if not message.data:
            body = list(message.sequence) or message.value
        values_by_row[row][ValueId(DATA, "body")] = repr(body)
    return [values_by_row[row] for row in sorted(values_by_row)]


SOME_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
