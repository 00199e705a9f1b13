"""Takes consecutive transfers that match a template, without decoding each.

The transfers of a link differ only in size, delivery id, tag and payload. One of them is decoded
and becomes a template. The following transfers with the same bytes at the same positions have the
same meaning. Only complete and settled deliveries become templates: nothing but their payload needs
to be handled.

    frame -> make_template -> TransferTemplate        buffer -> take_run -> payloads
             ^^^^^^^^^^^^^ this module                          ^^^^^^^^

    size | doff ... handle 0x70 | delivery id | 0xa0 length | tag | settled ... | payload
         |<------- head ------->|             |<- middle -->|     |<-- tail --->|
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pumphouse.amqp.constructors import SIZE
from pumphouse.amqp.frames import HEAD, Frame
from pumphouse.amqp.performatives import Transfer

HEAD_AT = SIZE.size
UINT, BINARY8 = 0x70, 0xA0
TRANSFER = b"\x00\x53\x14"
FIELDS_AT = {0xC0: 3, 0xD0: 9}  # start of the items within a list, by its constructor
UINT_SIZES = {0x43: 1, 0x52: 2, UINT: 5}  # with the constructor
TEMPLATES_MAX = 1024  # on one connection; a link needs one


class TransferTemplate(NamedTuple):
    """The bytes that the transfers of a link have in common."""

    channel: int
    handle: int
    head: bytes
    middle: bytes
    tail: bytes
    shape: Struct  # of all bytes before the payload: the frame size, head, middle and tail


class TransferTemplates:
    """The templates of one connection, by the first bytes of a frame."""

    def __init__(self) -> None:
        self._by_head: dict[bytes, TransferTemplate] = {}
        self._head_end = 0  # of the newest template; those with another length are not found

    def learn(self, frame: Frame, transfer: Transfer, payload_start: int) -> None:
        """Store the template of a decoded transfer, if it has one."""
        template = make_template(frame, transfer, payload_start)
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
        not is_repeatable(transfer)
        or data[start + HEAD_AT] != 2
        or not data.startswith(TRANSFER, body)
    ):
        return None
    handle_at = body + len(TRANSFER) + FIELDS_AT.get(data[body + len(TRANSFER)], 0)
    id_at = handle_at + UINT_SIZES.get(data[handle_at], 0)
    tag_at = id_at + UINT_SIZES[UINT]
    if data[id_at] != UINT or data[tag_at] != BINARY8:
        return None
    tail_at = tag_at + 2 + data[tag_at + 1]
    head, middle, tail = (
        data[start + HEAD_AT : id_at + 1],
        data[tag_at : tag_at + 2],
        data[tail_at:payload_start],
    )
    shape = Struct(f">I{len(head)}s4x2s{tail_at - tag_at - 2}x{len(tail)}s")
    return TransferTemplate(frame.channel, transfer.handle, head, middle, tail, shape)


def is_repeatable(transfer: Transfer) -> bool:
    """Whether a transfer is a complete and settled delivery."""
    return bool(transfer.settled) and not transfer.more and not transfer.aborted


def take_run(
    data: bytes, pos: int, template: TransferTemplate, frame_bytes_max: int
) -> tuple[list[bytes], int]:
    """The payloads of the matching frames from `pos` on, and the position after them.

    An incomplete frame, or one with an invalid size, ends the run.
    """
    _, _, head, middle, tail, shape = template
    payloads: list[bytes] = []
    add, unpack, message_at = payloads.append, shape.unpack_from, shape.size
    length = len(data)
    last = length - message_at
    while pos <= last:
        size, first, second, third = unpack(data, pos)
        end = pos + size
        if first != head or second != middle or third != tail:
            break
        if end > length or not message_at <= size <= frame_bytes_max:
            break
        add(data[pos + message_at : end])
        pos = end
    return payloads, pos
