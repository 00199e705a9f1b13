"""Checks the sections of an event that the hub stores without decoding them.

A reader decodes every section. One that it cannot decode, or only at a high cost, would stop all
readers of the partition at this event. So the hub refuses the event: malformed values, deep
nesting, counts without items, maps with too many keys or with keys of another type.

    producer -> annotations.parse_payload -> check_section, SectionShapes.check -> log
                                             ^^^^^^^^^^^^^ this module

Most events of a producer have the same structure. One of them is checked value by value and becomes
a shape; the others are compared with it.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from pumphouse.amqp.codec import CHECKERS, check_value, decode, skip
from pumphouse.amqp.constructors import NAMES, NUMBERS, WIDTHS
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    DATA,
    FOOTER,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Section,
    checked_section,
    scan,
)
from pumphouse.amqp.readers import DECODERS, check_keys, new_budget, nothing_at
from pumphouse.amqp.types import short
from pumphouse.errors import MalformedBytes
from pumphouse.hub.limits.lengths import check_length

# Keys of annotations, application properties and footers. Official clients write a few dozen.
KEYS_MAX = 1024
FIELD_VALUES_MAX = 4096  # values in a header or properties section; they have 5 and 13 fields
SECTIONS_MAX = 4096  # of one event; an official client writes a list of bodies as many sections

SHAPE_BYTES_MAX = 512  # comparing longer sections costs as much as checking them
SHAPES_MAX, SAME_SIZE_MAX = 256, 16  # shapes of one producer, and those of them with the same size
UNKNOWN_MAX = 4096  # after this many sections without a known shape, learning starts again

NULL = 0x40
BINARIES, MAPS, SIZED_LISTS = (0xA0, 0xB0), (0xC1, 0xD1), (0xC0, 0xD0)
LISTS = (0x45, *SIZED_LISTS)
NARROW = (0xC0, 0xC1)  # with sizes of one byte
TEXTS = frozenset((0xA1, 0xA3, 0xB1, 0xB3))  # strings and symbols
INTEGERS = frozenset(code for code, (layout, _) in NUMBERS.items() if layout.format[1] not in "fd")
ZEROS = frozenset((0x43, 0x44))
NAME_CODES = TEXTS | INTEGERS - {0x83} | ZEROS  # of a key of annotations; a timestamp is not one

Entry = tuple[str | int, int, int, int]  # name, start, start of the value, end


def check_section(code: int, data: bytes, value: int, end: int) -> None:
    """MalformedBytes if a reader could not decode a section, whose value starts at `value`."""
    if code in (HEADER, PROPERTIES):
        checked_section(code, decode(data, value, end, FIELD_VALUES_MAX)[0], value)
    elif code == APPLICATION_PROPERTIES:
        map_entries(data[value:end], TEXTS)
    elif code == FOOTER:
        map_entries(data[value:end])
    elif code == DATA:
        if data[value] != NULL:  # the official JavaScript client sends an empty body in this way
            binary_start(data, value)
    elif code == SEQUENCE and data[value] not in LISTS:
        actual = f"found constructor 0x{data[value]:02x}"
        raise MalformedBytes(value, f"a sequence section must hold a list, {actual}")
    else:
        check_value(data, value, end)


def binary_start(data: bytes, value: int) -> int:
    """The start of a binary value's bytes, given the position of its constructor."""
    code = data[value]
    if code not in BINARIES:
        actual = f"found constructor 0x{code:02x}"
        raise MalformedBytes(value, f"a data section must hold binary, {actual}")
    return value + 2 if code == 0xA0 else value + 5


def map_entries(
    section: bytes, key_codes: frozenset[int] = NAME_CODES, keys_max: int = KEYS_MAX
) -> list[Entry]:
    """The entries of an encoded map; MalformedBytes if a key or value is invalid."""
    count, pos = map_head(section)
    if count > 2 * keys_max:
        raise MalformedBytes(0, f"map has {count // 2} keys, at most {keys_max} are allowed")
    stop = len(section)
    entries: list[Entry] = []
    names: set[str | int] = set()
    budget = new_budget()  # of all values together
    for _ in range(count // 2):
        name, value = decode_name(section, pos, key_codes)
        if name in names:
            raise MalformedBytes(pos, f"map has the key {short(name)} twice")
        names.add(name)
        if value >= stop:
            raise nothing_at(value)
        end = CHECKERS[section[value]](section, value + 1, stop, 1, budget)
        entries.append((name, pos, value, end))
        pos = end
    if count % 2 or pos != stop:
        problem = f"map of {count} keys and values does not match its {stop} bytes"
        raise MalformedBytes(pos, problem)
    check_keys([*names], 0)
    return entries


def map_head(section: bytes) -> tuple[int, int]:
    """The number of keys and values of an encoded map, and the start of the first."""
    if section[:1] == b"\xc1" and len(section) >= 3:
        return section[2], 3
    if section[:1] == b"\xd1" and len(section) >= 9:
        return int.from_bytes(section[5:9], "big"), 9
    raise MalformedBytes(0, f"expected a map, found bytes {section[:8]!r}")


def decode_name(section: bytes, pos: int, key_codes: frozenset[int]) -> tuple[str | int, int]:
    """The key at `pos`, and the position after it."""
    if pos >= len(section):
        raise nothing_at(pos)
    if section[pos] not in key_codes:
        kind = NAMES.get(section[pos], f"constructor 0x{section[pos]:02x}")
        raise MalformedBytes(pos, f"map has a key of type {kind}")
    name, after = DECODERS[section[pos]](section, pos + 1, len(section), 1, [])
    if isinstance(name, str):
        check_length("name of a property", name)
    return name, after


# --- Shapes --------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """The bits that sections of the same structure share: all but the content of values."""

    mask: int
    bits: int

    def fits_all(self, events: list[bytes]) -> bool:
        """Whether the sections of all events, each of the same size, have this shape."""
        size, count = len(events[0]), len(events)
        masks, bits = (number.to_bytes(size, "big") * count for number in self)
        return as_number(b"".join(events)) & as_number(masks) == as_number(bits)


def as_number(data: bytes | bytearray) -> int:
    return int.from_bytes(data, "big")


class SectionShapes:
    """Checks the sections of one producer, fast if they have a known structure."""

    __slots__ = ("_by_size", "_count", "_unknown", "known_batch")

    def __init__(self) -> None:
        # The prefix and the BatchLayout of the producer's last uniform batch; for annotations.py.
        self.known_batch: tuple[Any, Any] | None = None
        self._by_size: dict[int, list[Shape]] = {}
        self._count = 0
        self._unknown = 0  # sections without a known shape since the last start

    def check(self, sections: bytes) -> None:
        """MalformedBytes if a reader could not decode one of these adjacent sections.

        Each must start with 00 53 and its code.
        """
        if not sections or self.find(sections) is not None:
            return
        spans = scan(sections, 0, len(sections), SECTIONS_MAX)
        for code, _, value, end in spans:
            check_section(code, sections, value, end)
        self.learn(sections, spans)

    def find(self, sections: bytes) -> Shape | None:
        """The known shape of these sections."""
        shapes = self._by_size.get(len(sections))
        if not shapes:
            return None
        number = as_number(sections)
        for shape in shapes:
            if number & shape.mask == shape.bits:
                return shape
        return None

    def check_all(self, events: list[bytes]) -> None:
        """MalformedBytes if a reader could not decode the sections of one of these events.

        All events must have sections of the same total size; such events usually share one shape.
        """
        shape = self.find(events[0]) if events else None
        if shape is None or not shape.fits_all(events):
            for sections in events:
                self.check(sections)

    def learn(self, sections: bytes, spans: list[Section]) -> None:
        """Remember the shape of sections that have passed the check."""
        self._unknown += 1
        if self._unknown > UNKNOWN_MAX:
            self._by_size.clear()
            self._count = self._unknown = 0
        shapes = self._by_size.setdefault(len(sections), [])
        full = self._count >= SHAPES_MAX or len(shapes) >= SAME_SIZE_MAX
        if len(sections) <= SHAPE_BYTES_MAX and not full:
            shapes.append(shape_of(sections, spans))
            self._count += 1


def shape_of(sections: bytes, spans: list[Section]) -> Shape:
    """The shape of valid sections."""
    mask = bytearray(b"\xff" * len(sections))
    for code, _, value, end in spans:
        constructor = sections[value]
        if constructor in MAPS or constructor in SIZED_LISTS:
            pos, number = value + 1 + 2 * WIDTHS[constructor >> 4], 0
            while pos < end:
                after = skip(sections, pos)
                if number % 2 or constructor in SIZED_LISTS:  # keys are the same in all events
                    free_content(mask, sections, pos, after, code)
                pos, number = after, number + 1
    number = as_number(mask)
    return Shape(number, as_number(sections) & number)


# Values that are valid with any content. Numbers in a header or properties have ranges, so only
# times, UUIDs and binaries are free there.
FREE_ANYWHERE = frozenset((0x83, 0x98, *BINARIES))
FREE_IN_MAPS = FREE_ANYWHERE | NUMBERS.keys() | {0x74, 0x84, 0x94}


def free_content(mask: bytearray, section: bytes, pos: int, end: int, code: int) -> None:
    """Clear the mask where other sections of this shape may have another value."""
    constructor = section[pos]
    start = pos + 1 + (WIDTHS[constructor >> 4] if constructor >= 0xA0 else 0)
    if constructor in TEXTS and section[start:end].isascii():
        mask[start:end] = b"\x80" * (end - start)  # ASCII is valid UTF-8; other text is checked
    elif constructor in (FREE_ANYWHERE if code in (HEADER, PROPERTIES) else FREE_IN_MAPS):
        mask[start:end] = bytes(end - start)


# --- Similar events ------------------------------------------------------------------------------

# The usual start of a section: 00, 53, its code, the constructor of its value. Then the size of the
# value, in one byte or in four.
SECTION_HEAD = struct.Struct(">II")
DATA_SMALL, DATA_WIDE = 0x005375A0, 0x005375B0
# Sections besides data, with the width of their size.
CHECKED_WIDTHS = {
    0x00530000 | code << 8 | constructor: 1 if constructor < 0xB0 or constructor in NARROW else 4
    for code in (PROPERTIES, APPLICATION_PROPERTIES, SEQUENCE, VALUE, FOOTER)
    for constructor in (*BINARIES, *TEXTS, *SIZED_LISTS, *MAPS)
}
SIMILAR_MAX = 4096  # events of one call, which takes a few milliseconds


def take_similar(
    payload: bytes, pos: int, lead: bytes, bodies: list[bytes], shapes: SectionShapes
) -> int:
    """Collect the bodies of the following events that start with the bytes `lead`.

    `lead` is the start of the first event, up to its body; in most batches all events share it. For
    speed the loop knows only the usual encodings, with the data section as the last one, if any. It
    stops at the first other event, and returns its position.
    """
    end, lead_size, unpack = len(payload), len(lead), SECTION_HEAD.unpack_from
    last = end - SECTION_HEAD.size
    block: list[bytes] = []  # for each of the last events, its sections other than data
    block_size = 0  # the size of each item of `block`
    same = b""  # the sections other than data, while they are equal in all events
    for _ in range(SIMILAR_MAX):
        if pos > last:
            break
        section_head, size = unpack(payload, pos)
        if section_head == DATA_WIDE:
            start = pos + 8
            after = start + size
        elif section_head == DATA_SMALL:
            start = pos + 5
            after = start + (size >> 24)
        else:
            break
        if after > end or (lead and not payload.startswith(lead, start)):
            break
        body_start = at = start + lead_size
        if same:
            if payload.startswith(same, at):
                at += len(same)
            else:
                same = b""
        data_start = after
        while at < after and at <= last:
            section_head, size = unpack(payload, at)
            if section_head == DATA_WIDE:
                data_start = at
                at += 8 + size
                break
            if section_head == DATA_SMALL:
                data_start = at
                at += 5 + (size >> 24)
                break
            width = CHECKED_WIDTHS.get(section_head)
            if width == 1:
                at += 5 + (size >> 24)
            elif width == 4:
                at += 8 + size
            else:
                break
        if at != after:
            break
        if data_start - body_start != len(same):
            if data_start - body_start != block_size:
                shapes.check_all(block)
                # Only the first event: if the second one differs, the others will too.
                same = payload[body_start:data_start] if not block_size else b""
                block, block_size = [], data_start - body_start
            block.append(payload[body_start:data_start])
        bodies.append(payload[body_start:after])
        pos = after
    shapes.check_all(block)
    return pos
