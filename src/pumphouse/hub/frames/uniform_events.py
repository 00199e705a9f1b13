"""Parses and builds uniform events as the rows of a matrix.

A batch of a producer often has events of one size with the same sections. They are the rows of a
matrix: the columns of the structure are compared with the first row, which was parsed and checked,
and the frames are written column by column. The result is the same, byte for byte, as if each event
was parsed and built alone. That takes up to five times as long.

    parse_batch -> BatchLayout.find -> UniformBodies -> write_rows -> log
                   ^^^^^^^^^^^^^^^^                     ^^^^^^^^^^ this module
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pumphouse.amqp.messages import DATA, scan
from pumphouse.hub.frames.uniform_bodies import UniformBodies
from pumphouse.hub.limits.sections import (
    BINARIES,
    SECTIONS_MAX,
    SectionShapes,
    binary_start,
)

Matrix = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

USUAL_DATA = (b"\x00\x53\x75\xa0", b"\x00\x53\x75\xb0")


class Structure(NamedTuple):
    """The bytes at the start of a row that must have the structure of the first row."""

    first: Matrix  # these bytes of the first row
    mask: Matrix | None  # the bits that must be equal; None: all

    def first_other(self, rows: Matrix) -> int:
        """The number of the first row with another structure; that of rows if there is none."""
        starts = rows[:, : len(self.first)]
        differing: npt.NDArray[Any]
        if self.mask is None:
            if starts.tobytes() == self.first.tobytes() * len(rows):
                return len(rows)
            differing = starts != self.first
        else:
            differing = (starts ^ self.first) & self.mask
            if not differing.any():
                return len(rows)
        return int(differing.any(axis=1).argmax())


class BatchLayout(NamedTuple):
    """The events of a batch of a producer: those of its next batch may have the same structure."""

    structure: Structure
    body_at: int  # in a row
    stride: int

    def find(self, payload: bytes, start: int) -> UniformBodies:
        """The bodies of the events from `start` on that have the structure; there may be none."""
        count = (len(payload) - start) // self.stride
        count = self.structure.first_other(matrix(payload, start, self.stride, count))
        size = self.stride - self.body_at
        return UniformBodies(payload, start + self.body_at, self.stride, size, count)


def layout_of(
    payload: bytes, start: int, end: int, body_start: int, shapes: SectionShapes
) -> BatchLayout | None:
    """The layout of a valid event, and of those after it that have its structure.

    The data section with the event is at `start` to `end` of the payload. The sections from
    `body_start` are its body. None if its encoding is unusual.
    """
    if payload[start : start + 4] not in USUAL_DATA:
        return None
    structure = structure_of(payload[start:end], body_start - start, shapes)
    if structure is None:
        return None
    return BatchLayout(structure, body_start - start, end - start)


def matrix(payload: bytes, start: int, stride: int, count: int) -> Matrix:
    return np.frombuffer(payload, np.uint8, count * stride, start).reshape(count, stride)


def structure_of(row: bytes, lead: int, shapes: SectionShapes) -> Structure | None:
    """The structure of a row, which has a valid body after `lead` bytes.

    Only the content of values that may be anything differs between rows: of a last data section,
    and of the values that a known shape leaves free. None if data is not last.
    """
    body = row[lead:]
    spans = scan(body, 0, len(body), SECTIONS_MAX)
    data_sections = [span for span in spans if span[0] == DATA]
    if data_sections and data_sections != spans[-1:]:
        return None
    columns, checked = len(row), body
    if data_sections:
        _, section, value, _ = data_sections[0]
        checked = body[:section]
        if body[value] in BINARIES:
            columns = lead + binary_start(body, value)
    mask = mask_of(checked, lead, columns, shapes)
    first = np.frombuffer(row[:columns], np.uint8)
    return Structure(first, None if mask is None else np.frombuffer(mask, np.uint8))


def mask_of(checked: bytes, lead: int, columns: int, shapes: SectionShapes) -> bytes | None:
    """The mask of the columns; `checked` are the sections of a valid body other than data."""
    if not checked:
        return None
    shapes.check(checked)  # learns their shape
    if (shape := shapes.find(checked)) is None:
        return None
    mask = b"\xff" * lead + shape.mask.to_bytes(len(checked), "big")
    return mask.ljust(columns, b"\xff")


# -- frames ---------------------------------------------------------------------------------------


class RowTemplate(NamedTuple):
    """The constant bytes of frames of one size, and where the others are."""

    head: bytes  # with the first row's numbers
    sequence_at: int
    offset_at: int
    width: int  # digits of the offset


def write_rows(
    memory: memoryview,
    template: RowTemplate,
    bodies: UniformBodies,
    first: int,
    count: int,
    sequence: int,
    offset: int,
) -> Numbers:
    """Write the frames of `count` bodies from number `first` on; returns their offsets.

    Their sequence numbers have the same first six bytes.
    """
    head, at = template.head, template.offset_at
    size = len(head) + bodies.size
    rows = np.frombuffer(memory, np.uint8).reshape(count, size)
    rows[:, : len(head)] = np.frombuffer(head, np.uint8)
    low = sequence % SEQUENCES_MAX
    rows[:, template.sequence_at + 6 : template.sequence_at + 8] = LOW_BYTES[low : low + count]
    offsets = np.arange(offset, offset + count * size, size, dtype=np.int64)
    write_digits(rows[:, at : at + template.width], offsets)
    rows[:, len(head) :] = strided(bodies, bodies.start + first * bodies.stride, count)
    return offsets


def new_memory(size: int) -> memoryview:
    """Memory of a size, which is not filled with zeros."""
    return np.empty(size, np.uint8).data


def concatenate(parts: list[Numbers]) -> Numbers:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def strided(bodies: UniformBodies, begin: int, count: int) -> Matrix:
    """The bodies as rows. The last row may end with the payload."""
    shape, strides = (count, bodies.size), (bodies.stride, 1)
    return np.ndarray(shape, np.uint8, bodies.payload, begin, strides)


# The digits of 0 to 9999, as four bytes each: as one number, and as rows.
DIGITS = np.arange(10_000)[:, None] // [1000, 100, 10, 1] % 10 + ord("0")
FOUR_DIGITS = DIGITS.astype(np.uint8).view(np.uint32).reshape(-1)
# The last two bytes of sequence numbers.
SEQUENCES_MAX = 1 << 16
LOW_BYTES = np.arange(SEQUENCES_MAX).astype(">u2").view(np.uint8).reshape(-1, 2)


def write_digits(columns: Matrix, numbers: Numbers) -> None:
    """Write increasing numbers in decimal. All have as many digits as there are columns.

    The columns hold the digits of the first number.
    """
    end = columns.shape[1]
    while end > 0:
        rest = numbers // 10_000
        last = FOUR_DIGITS[numbers - rest * 10_000]
        begin = max(0, end - 4)
        columns[:, begin:end] = last.view(np.uint8).reshape(-1, 4)[:, begin - end :]
        if rest[0] == rest[-1]:
            return  # the other digits are the same in all
        numbers, end = rest, begin
