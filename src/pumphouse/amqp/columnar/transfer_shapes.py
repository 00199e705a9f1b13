"""Decodes transfers that differ from an earlier one only in delivery id and tag.

A producer sends a delivery in a few frames, each with a transfer: all but the last have `more` set.
The transfers of the next delivery have the same bytes except for id and tag. A transfer that was
decoded becomes a shape, and the others are compared with it.

    ... handle 0x70 | delivery id | 0xa0 length | tag | message format, settled, more ... | payload
    |<--- head ---->|             |<- middle -->|     |<------------- tail -------------->|

    Connection.decode -> TransferShapes.decode -> find; otherwise decode_performative, learn
                         ^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from struct import Struct
from typing import Any, NamedTuple

from pumphouse.amqp.columnar.repeated_transfers import (
    BINARY8,
    FIELDS_AT,
    ID_CODES,
    TRANSFER,
    UINT_SIZES,
)
from pumphouse.amqp.composites import Composite, decode_performative
from pumphouse.amqp.performatives import Transfer

SHAPES_MAX = 8  # on one connection; a link needs three
SHAPE_BYTES_MAX = 256  # of a performative; official clients need 40
# If more than SHAPES_MAX are in use, learning each time would cost more than it saves.
LEARN_EVERY = 64


class TransferShape(NamedTuple):
    """The bytes that transfers have in common, and the fields that these bytes encode."""

    head: bytes
    middle: bytes
    tail: bytes
    layout: Struct  # head, delivery id, middle, tag, tail
    fields: dict[str, Any]


class TransferShapes:
    """The shapes of one connection."""

    def __init__(self) -> None:
        self._shapes: list[TransferShape] = []
        self._missed = 0  # transfers without a shape while there was no room for theirs

    def decode(self, data: bytes, pos: int, end: int) -> tuple[Composite, int]:
        """The performative at `pos`, and the position after it."""
        if data.startswith(TRANSFER, pos) and (shaped := self.find(data, pos, end)):
            return shaped
        performative, after = decode_performative(data, pos, end)
        if isinstance(performative, Transfer):
            self.learn(data, pos, after, performative)
        return performative, after

    def find(self, data: bytes, pos: int, end: int) -> tuple[Transfer, int] | None:
        """The transfer at `pos` and the position after it, if it has a known shape."""
        for shape in self._shapes:
            after = pos + shape.layout.size
            if after > end:
                continue
            head, delivery_id, middle, tag, tail = shape.layout.unpack_from(data, pos)
            if head == shape.head and middle == shape.middle and tail == shape.tail:
                return Transfer(delivery_id=delivery_id, delivery_tag=tag, **shape.fields), after
        return None

    def learn(self, data: bytes, pos: int, after: int, transfer: Transfer) -> None:
        """Store the shape of a decoded transfer, if it has one."""
        if len(self._shapes) == SHAPES_MAX:
            self._missed += 1
            if self._missed % LEARN_EVERY:
                return
        shape = make_shape(data[pos:after], transfer)
        if shape is not None:
            self._shapes = [shape, *self._shapes][:SHAPES_MAX]


def make_shape(body: bytes, transfer: Transfer) -> TransferShape | None:
    """The shape of an encoded transfer; None if it is not encoded in the usual way."""
    unusual = transfer.delivery_id is None or transfer.delivery_tag is None
    if unusual or transfer.state is not None or len(body) > SHAPE_BYTES_MAX:
        return None
    if not body.startswith(TRANSFER):
        return None
    handle_at = len(TRANSFER) + FIELDS_AT.get(body[len(TRANSFER)], 0)
    id_at = handle_at + UINT_SIZES.get(body[handle_at], 0)
    id_code = ID_CODES.get(body[id_at])
    tag_at = id_at + UINT_SIZES.get(body[id_at], 0)
    if id_code is None or body[tag_at] != BINARY8:
        return None
    tail_at = tag_at + 2 + body[tag_at + 1]
    head, middle, tail = body[: id_at + 1], body[tag_at : tag_at + 2], body[tail_at:]
    layout = Struct(f">{len(head)}s{id_code}2s{body[tag_at + 1]}s{len(tail)}s")
    return TransferShape(head, middle, tail, layout, fields_of(transfer))


def fields_of(transfer: Transfer) -> dict[str, Any]:
    """The fields of a transfer that its shape has."""
    return {
        "handle": transfer.handle,
        "message_format": transfer.message_format,
        "settled": transfer.settled,
        "more": transfer.more,
        "rcv_settle_mode": transfer.rcv_settle_mode,
        "resume": transfer.resume,
        "aborted": transfer.aborted,
        "batchable": transfer.batchable,
    }
