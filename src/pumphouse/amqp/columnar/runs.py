"""Transfers that look like one seen before are taken by the run, without decoding each.

The transfers of a link differ in their size, delivery id, tag and payload, and in nothing else. So
one of them is decoded, and what it says is remembered as bytes; those behind it that have the same
bytes in the same places say the same. Only whole deliveries that are settled are learned from:
for these nothing is left to do but to hand over the payload.

    frame -> learn -> Likeness        buffer -> take_run -> payloads
             ^^^^^ this module                  ^^^^^^^^

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
FIELDS_AT = {0xC0: 3, 0xD0: 9}  # behind the constructor of a list: its size, its count
UINT_SIZES = {0x43: 1, 0x52: 2, UINT: 5}
REMEMBERED_MAX = 1024  # links of one connection


class Likeness(NamedTuple):
    """What the transfers of a link have in common."""

    channel: int
    handle: int
    head: bytes
    middle: bytes
    tail: bytes
    shape: Struct  # of all that stands before the payload: the size, and these three


class Likenesses:
    """What has been learned on one connection, found again by the first bytes of a frame."""

    def __init__(self) -> None:
        self._by_head: dict[bytes, Likeness] = {}
        self._head_end = 0  # of the one learned last: links are numbered alike

    def learn(self, frame: Frame, said: Transfer, after: int) -> None:
        found = learn(frame, said, after)
        if found is not None:
            if len(self._by_head) >= REMEMBERED_MAX:
                self._by_head.clear()
            self._by_head[found.head] = found
            self._head_end = HEAD_AT + len(found.head)

    def find(self, data: bytes, pos: int) -> Likeness | None:
        """What the frame at `pos` looks like, if it does."""
        return self._by_head.get(data[pos + HEAD_AT : pos + self._head_end])


def learn(frame: Frame, said: Transfer, after: int) -> Likeness | None:
    """What others of this link will look like; None if it is not written in the usual way."""
    data, body = frame.data, frame.start
    start = body - HEAD.size  # if there is no extended header, which the next line sees to
    if not usable(said) or data[start + HEAD_AT] != 2 or not data.startswith(TRANSFER, body):
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
        data[tail_at:after],
    )
    shape = Struct(f">I{len(head)}s4x2s{tail_at - tag_at - 2}x{len(tail)}s")
    return Likeness(frame.channel, said.handle, head, middle, tail, shape)


def usable(said: Transfer) -> bool:
    return bool(said.settled) and not said.more and not said.aborted


def take_run(
    data: bytes, pos: int, like: Likeness, frame_bytes_max: int
) -> tuple[list[bytes], int]:
    """The payloads of the frames from `pos` on that look alike, and where the first other starts.

    An incomplete frame, or one whose size makes no sense, ends the run: others judge it.
    """
    _, _, head, middle, tail, shape = like
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
