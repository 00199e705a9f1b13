"""Takes consecutive transfers that match a template, without decoding each.

The transfers of a link differ only in size, delivery id, tag and payload. One of them is decoded
and becomes a template. The following transfers with the same bytes at the same positions have the
same meaning. Only complete deliveries become templates. Of settled ones only the payload matters;
the others must have consecutive delivery ids, so that one number describes them.

    frame -> make_template -> TransferTemplate        buffer -> take_run -> payloads, or a block
             ^^^^^^^^^^^^^ this module                   take_numbered -> payloads, first id

    size | doff ... handle 0x70 | delivery id | 0xa0 length | tag | settled ... | payload
         |<------- head ------->|             |<- middle -->|     |<-- tail --->|
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from pumphouse.amqp.columnar.payload_blocks import ROWS_MIN, PayloadBlock, block_starts, find_block
from pumphouse.amqp.constructors import SIZE
from pumphouse.amqp.frames import HEAD, Frame
from pumphouse.amqp.performatives import Transfer

HEAD_AT = SIZE.size
UINT, BINARY8 = 0x70, 0xA0
TRANSFER = b"\x00\x53\x14"
FIELDS_AT = {0xC0: 3, 0xD0: 9}  # start of the items within a list, by its constructor
UINT_SIZES = {0x43: 1, 0x52: 2, UINT: 5}  # with the constructor
ID_CODES = {0x52: "B", UINT: "I"}  # of struct, by the constructor of a delivery id
TEMPLATES_MAX = 1024  # on one connection; a link needs one
TEMPLATE_BYTES_MAX = 256  # of a performative; official clients need 40


class TransferTemplate(NamedTuple):
    """The bytes that the transfers of a link have in common."""

    channel: int
    handle: int
    head: bytes
    middle: bytes
    tail: bytes
    shape: Struct  # of all bytes before the payload: the frame size, head, middle and tail
    numbered: Struct  # the same, with the delivery id after the head
    settled: bool
    mask: bytes  # of the bytes before the payload: set where they are the same


class TransferTemplates:
    """The templates of one connection, by the first bytes of a frame."""

    def __init__(self, numbered: bool = False) -> None:
        self._numbered = numbered  # whether links take numbered runs, or runs of settled deliveries
        self._by_head: dict[bytes, TransferTemplate] = {}
        self._head_end = 0  # of the newest template; those with another length are not found

    def learn(self, frame: Frame, transfer: Transfer, payload_start: int) -> None:
        """Store the template of a decoded transfer, if it has one."""
        usable = not transfer.message_format if self._numbered else transfer.settled
        template = make_template(frame, transfer, payload_start) if usable else None
        if template is not None:
            if len(self._by_head) >= TEMPLATES_MAX:
                self._by_head.clear()
            self._by_head[template.head] = template
            self._head_end = HEAD_AT + len(template.head)

    def find(self, data: bytes, pos: int) -> TransferTemplate | None:
        """The template that may match the frame at `pos`."""
        return self._by_head.get(data[pos + HEAD_AT : pos + self._head_end])


def make_template(frame: Frame, transfer: Transfer, payload_start: int) -> TransferTemplate | None:
    """The template of a transfer; None if it is not encoded in the usual way."""
    data, body = frame.data, frame.start
    # The start of the frame, if it has no extended header: its data offset must be 2.
    start = body - HEAD.size
    if (
        transfer.more
        or transfer.aborted
        or transfer.delivery_id is None
        or transfer.delivery_tag is None
        or payload_start - body > TEMPLATE_BYTES_MAX
        or data[start + HEAD_AT] != 2
        or not data.startswith(TRANSFER, body)
    ):
        return None
    handle_at = body + len(TRANSFER) + FIELDS_AT.get(data[body + len(TRANSFER)], 0)
    id_at = handle_at + UINT_SIZES.get(data[handle_at], 0)
    id_code = ID_CODES.get(data[id_at])
    tag_at = id_at + UINT_SIZES.get(data[id_at], 0)
    if id_code is None or data[tag_at] != BINARY8:
        return None
    tail_at = tag_at + 2 + data[tag_at + 1]
    head, middle, tail = (
        data[start + HEAD_AT : id_at + 1],
        data[tag_at : tag_at + 2],
        data[tail_at:payload_start],
    )
    first, rest = f">I{len(head)}s", f"2s{tail_at - tag_at - 2}x{len(tail)}s"
    return TransferTemplate(
        frame.channel,
        transfer.handle,
        head,
        middle,
        tail,
        Struct(f"{first}{tag_at - id_at - 1}x{rest}"),
        Struct(f"{first}{id_code}{rest}"),
        bool(transfer.settled),
        mask_of(id_at + 1 - start, tag_at - start, tail_at - start, payload_start - start),
    )


def mask_of(id_start: int, id_end: int, tag_end: int, payload_start: int) -> bytes:
    """The bytes of a frame before its payload: zero for the delivery id and the content of the tag.

    The constructor and the length of the tag are set.
    """
    mask = bytearray(b"\xff" * payload_start)
    mask[id_start:id_end] = bytes(id_end - id_start)
    mask[id_end + 2 : tag_end] = bytes(tag_end - id_end - 2)
    return bytes(mask)


def take_block(
    data: bytes, pos: int, template: TransferTemplate, frame_bytes_max: int
) -> PayloadBlock | None:
    """The payloads of the frames from `pos` on that match and have the same size, if many."""
    size, first, second, third = template.shape.unpack_from(data, pos)
    if (first, second, third) != (template.head, template.middle, template.tail):
        return None
    return find_block(data, pos, template.mask) if size <= frame_bytes_max else None


def take_run(
    data: bytes, pos: int, template: TransferTemplate, frame_bytes_max: int
) -> tuple[Sequence[bytes], int]:
    """The payloads of the matching frames from `pos` on, and the position after them.

    Frames of equal size are a run of their own, if they are many: a PayloadBlock. An incomplete
    frame, or one with an invalid size, ends the run.
    """
    head_end, length = HEAD_AT + len(template.head), len(data)
    block_room = length  # where a block may end; no block is tried again after a refused one
    if block_starts(data, pos, head_end):
        block = take_block(data, pos, template, frame_bytes_max)
        if block is not None:
            return block.compacted(), pos + block.rows * block.stride
        block_room = 0
    head, middle, tail, shape = template.head, template.middle, template.tail, template.shape
    payloads: list[bytes] = []
    add, unpack, message_at = payloads.append, shape.unpack_from, shape.size
    last, previous_size = length - message_at, 0
    while pos <= last:
        size, first, second, third = unpack(data, pos)
        end = pos + size
        if first != head or second != middle or third != tail:
            break
        if end > length or not message_at <= size <= frame_bytes_max:
            break
        may_start = size == previous_size and pos + ROWS_MIN * size <= block_room
        if may_start and block_starts(data, pos, head_end):
            break
        previous_size = size
        add(data[pos + message_at : end])
        pos = end
    return payloads, pos


class NumberedRun(NamedTuple):
    """Deliveries with consecutive ids, and the position after them."""

    first_id: int
    payloads: list[bytes]
    end: int


def take_numbered(
    data: bytes, pos: int, template: TransferTemplate, frame_bytes_max: int, count_max: int
) -> NumberedRun:
    """The matching frames from `pos` on whose delivery ids are consecutive, up to a number.

    An incomplete frame, or one with an invalid size, ends the run.
    """
    head, middle, tail, shape = template.head, template.middle, template.tail, template.numbered
    payloads: list[bytes] = []
    add, unpack, message_at = payloads.append, shape.unpack_from, shape.size
    length, first_id, next_id = len(data), 0, -1
    last = length - message_at
    while pos <= last and len(payloads) < count_max:
        size, first, delivery_id, second, third = unpack(data, pos)
        end = pos + size
        if first != head or second != middle or third != tail:
            break
        if end > length or not message_at <= size <= frame_bytes_max:
            break
        if delivery_id != next_id:
            if payloads:
                break
            first_id = delivery_id
        add(data[pos + message_at : end])
        next_id = delivery_id + 1
        pos = end
    return NumberedRun(first_id, payloads, pos)
