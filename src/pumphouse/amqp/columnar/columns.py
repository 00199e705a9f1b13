"""Reads consecutive received frames into columns, without a Python object per message.

The transfer frames are in one buffer, as received from the socket. Frames with the same layout are
read together (layouts.py) and returned as positions in that buffer; bodies are not copied. A
message without a layout, or in several frames, is assembled and decoded on its own, which is slower
and gives the same result.

    buffer -> FrameIndex -> ColumnReader.read -> Columns: groups of rows, and single messages
              ^^^^^^^^^^ this module ^^^^^^^^

This module does not interpret annotations and does no IO.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pumphouse.amqp.columnar.buffer_view import (
    DELIVERY_ID,
    SLACK,
    BufferView,
    IntArray,
    Mask,
    ValueId,
    Values,
    all_true,
)
from pumphouse.amqp.columnar.layouts import Layout, learn_layout
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.constructors import SIZE
from pumphouse.amqp.frames import AMQP_FRAME, HEAD
from pumphouse.amqp.messages import Message, decode_message
from pumphouse.amqp.performatives import Transfer
from pumphouse.errors import RemoteProtocolError

SINGLES_MAX = 4  # so few rows are decoded faster one by one
LEARN_MAX = 8  # layouts learned per read; more would not help
LAYOUTS_MAX = 32  # layouts kept
GUESS_FRAMES = 8  # this many frames of one size in a row start a guess
SCAN_FRAMES = 64  # scanned one by one before the next guess
SCAN_FRAMES_MAX = 4096  # the same, after wrong guesses
NO_ROWS: IntArray = np.empty(0, np.int64)

# doff 2, type 0, any channel, then the usual descriptor of a transfer and any constructor.
USUAL_HEAD = np.frombuffer(b"\x02\x00\x00\x00\x00\x53\x14\x00", np.uint64)[0]
USUAL_MASK = np.frombuffer(b"\xff\xff\x00\x00\xff\xff\xff\x00", np.uint64)[0]


class FrameIndex:
    """The positions of the frames in a buffer that is being filled.

    Transfers are collected in `starts` and `ends`; `extend` returns all other frames.
    """

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self.starts: IntArray = NO_ROWS  # of complete transfer frames
        self.ends: IntArray = NO_ROWS
        self.end = 0  # of the last complete frame
        self._scan_count = SCAN_FRAMES

    def __len__(self) -> int:
        """The number of transfers."""
        return len(self.starts)

    def __repr__(self) -> str:
        return f"<FrameIndex {len(self)} transfers in {self.end} bytes>"

    def extend(self, view: BufferView, end: int) -> list[bytes]:
        """Index the received bytes up to `end`; returns the frames that are not transfers."""
        starts = self.find_frames(view, end)
        if not len(starts):
            return []
        ends = np.empty_like(starts)
        ends[:-1], ends[-1] = starts[1:], self.end
        self.check(int((ends - starts).max()))
        transfers = view.frame_heads(starts) & USUAL_MASK == USUAL_HEAD
        # A heartbeat is shorter than the compared bytes, which may be old ones after it.
        transfers &= ends - starts > HEAD.size
        others = []
        for at in [] if all_true(transfers) else np.flatnonzero(~transfers).tolist():
            frame = bytes(view.data[starts[at] : ends[at]])
            transfers[at] = is_transfer(frame)
            if not transfers[at]:
                others.append(frame)
        if others:
            starts, ends = starts[transfers], ends[transfers]
        if len(self):
            starts, ends = np.append(self.starts, starts), np.append(self.ends, ends)
        self.starts, self.ends = starts, ends
        return others

    def keep(self, good: Mask) -> None:
        """Keep some of the transfers only."""
        self.starts, self.ends = self.starts[good], self.ends[good]

    def drop(self, frames: int) -> int:
        """Remove the first transfers and rebase the others; returns the bytes removed."""
        until = int(self.starts[frames]) if frames < len(self) else self.end
        self.starts, self.ends = self.starts[frames:] - until, self.ends[frames:] - until
        self.end -= until
        return until

    def find_frames(self, view: BufferView, end: int) -> IntArray:
        """The start of each further complete frame up to `end`."""
        starts = []
        count = GUESS_FRAMES
        while True:
            scanned = self.scan_frames(view.data, end, count)
            starts.append(np.fromiter(scanned, np.int64, len(scanned)))
            if len(scanned) < count:
                return np.concatenate(starts) if len(starts) > 1 else starts[0]
            size = self.end - scanned[-1]
            if size * GUESS_FRAMES == self.end - scanned[-GUESS_FRAMES]:
                starts += self.guess_frames(view, end, size)
            count = self._scan_count

    def guess_frames(self, view: BufferView, end: int, size: int) -> list[IntArray]:
        """Find frames on the assumption that most have the same size."""
        starts, reach = [], SCAN_FRAMES
        while True:
            guessed = np.arange(self.end, min(end, self.end + reach * size) - size + 1, size)
            equal = view.sizes(guessed) == size
            count = len(guessed) if all_true(equal) else int(equal.argmin())
            starts.append(guessed[:count])
            self.end += count * size
            if count < SCAN_FRAMES:
                # Guesses do not pay where sizes vary.
                self._scan_count = min(2 * self._scan_count, SCAN_FRAMES_MAX)
                return starts
            self._scan_count = SCAN_FRAMES
            if count == reach:
                reach *= 8
            else:
                other = self.scan_frames(view.data, end, 1)
                starts.append(np.array(other, np.int64))
                reach = 2 * count
                if not other:
                    return starts

    def scan_frames(self, data: bytes | bytearray, end: int, count: int) -> list[int]:
        """The next frames, at most `count`. This is the only loop over all frames."""
        starts: list[int] = []
        add, unpack = starts.append, SIZE.unpack_from
        pos, last, size = self.end, end - HEAD.size, HEAD.size
        for _ in range(count):
            if pos > last:
                break
            (size,) = unpack(data, pos)
            if size < 8:  # HEAD.size: an invalid size
                break
            add(pos)
            pos += size
        self.check(size)
        self.end = starts.pop() if pos > end else pos
        return starts

    def check(self, size: int) -> None:
        if not HEAD.size <= size <= self.max_frame_size:
            raise RemoteProtocolError(
                f"frame of {size} bytes; from {HEAD.size} to {self.max_frame_size} are allowed",
                "amqp:connection:framing-error",
            )


class Group(NamedTuple):
    """Rows with the same layout."""

    rows: IntArray  # the frame number of each row
    values: dict[ValueId, Values]
    settled: bool = True

    def keep(self, good: Mask) -> Group:
        kept = {value_id: values.keep(good) for value_id, values in self.values.items()}
        return Group(self.rows[good], kept, self.settled)


@dataclass(slots=True)
class Columns:
    """The content of consecutive transfers."""

    view: BufferView  # the buffer that the groups refer to
    frames: int  # frames read; the next one starts an incomplete delivery
    groups: list[Group] = field(default_factory=list)
    singles: dict[int, Message] = field(default_factory=dict)  # by row, ascending
    aborted: int = 0  # deliveries aborted by the sender: not rows, but they used credit
    other_frames: list[bytes] = field(default_factory=list)  # transfers of other links
    unsettled: list[int] = field(default_factory=list)  # ids of deliveries that need a disposition

    def __len__(self) -> int:
        """The number of rows."""
        return sum(len(group.rows) for group in self.groups) + len(self.singles)

    def __repr__(self) -> str:
        return (
            f"<Columns {len(self)} rows | {len(self.groups)} groups, {len(self.singles)} singles>"
        )

    def order(self) -> IntArray | None:
        """The permutation that sorts all groups, followed by the single messages, by arrival.

        None if they are in order already.
        """
        if len(self.groups) + bool(self.singles) < 2:
            return None
        singles = np.fromiter(self.singles, np.int64, len(self.singles))
        rows = np.concatenate([*(group.rows for group in self.groups), singles])
        if all_true(rows[1:] > rows[:-1]):
            return None
        return np.argsort(rows)


class ColumnReader:
    """Reads the transfers of one link and remembers their layouts.

    `channel` and `handle` are those of the peer.
    """

    def __init__(self, channel: int, handle: int, *, singles_max: int = SINGLES_MAX) -> None:
        self.channel = channel
        self.handle = handle
        self.singles_max = singles_max  # rows that are decoded without trying another layout
        self.layouts: list[Layout] = []  # the most used one first

    def __repr__(self) -> str:
        return f"<ColumnReader channel={self.channel} handle={self.handle} {self.layouts}>"

    def read(self, view: BufferView, starts: IntArray, ends: IntArray) -> Columns:
        """Columns of the transfer frames that a FrameIndex has found.

        They refer to the buffer, which must have SLACK bytes after the last frame.
        """
        if len(ends) and ends[-1] + SLACK > len(view.data):
            raise ValueError(f"the buffer must have {SLACK} bytes after its last frame")
        columns = Columns(view, len(starts))
        left = self.read_groups(columns, starts, ends)
        self.read_singles(columns, starts, left)
        for group in columns.groups:
            if not group.settled:
                columns.unsettled += view.integers(group.values[DELIVERY_ID]).tolist()
        columns.unsettled.sort()
        return columns

    # -- groups -----------------------------------------------------------------------------------

    def read_groups(self, columns: Columns, starts: IntArray, ends: IntArray) -> list[int]:
        """Read the frames that have a layout; returns the numbers of the others."""
        left, aside = np.arange(len(starts)), list[int]()
        use: dict[Layout, int] = {}
        known = iter(self.layouts)
        attempts = LEARN_MAX
        while len(left) > self.singles_max:
            layout = next(known, None)
            if layout is None:
                if not attempts:
                    break
                attempts -= 1
                first, left_over = int(left[0]), left[1:]
                layout = self.layout_of(frame_at(columns.view.data, int(starts[first])))
                if layout is None:
                    aside.append(first)
                    left = left_over
                    continue
            before = len(left)
            left = match_group(layout, columns, left, starts, ends)
            use[layout] = before - len(left)
        self.remember(use)
        return sorted(aside + left.tolist())

    def remember(self, use: dict[Layout, int]) -> None:
        """Sort the layouts by use and drop the least used ones."""
        untried = [layout for layout in self.layouts if layout not in use]
        tried = sorted(use, key=use.__getitem__, reverse=True)
        self.layouts = (tried + untried)[:LAYOUTS_MAX]

    def layout_of(self, frame: bytes) -> Layout | None:
        """The layout of a frame, if it is a complete delivery on this link."""
        try:
            transfer, _ = self.parse(frame)
            return learn_layout(frame) if transfer is not None else None
        except RemoteProtocolError:
            return None  # reported later, unless it is a later part of a delivery

    # -- single messages --------------------------------------------------------------------------

    def read_singles(self, columns: Columns, starts: IntArray, left: list[int]) -> None:
        """Decode frames one by one, and assemble deliveries of several frames."""
        parts = np.zeros(len(starts), np.bool_)  # later frames of a delivery
        done = -1
        for at in left:
            if at <= done:
                continue  # part of the previous delivery
            delivery = self.collect(columns.view.data, starts, at)
            if delivery is None:
                columns.frames = at
                break
            done = delivery.last
            parts[at + 1 : done + 1] = True
            columns.other_frames += delivery.other_frames
            if delivery.aborted:
                columns.aborted += 1
            elif delivery.number is not None:
                columns.singles[at] = decode_message(delivery.payload)
                if not delivery.settled:
                    columns.unsettled.append(delivery.number)
        if parts.any():
            kept = (group.keep(~parts[group.rows]) for group in columns.groups)
            columns.groups = [group for group in kept if len(group.rows)]

    def collect(self, data: bytes | bytearray, starts: IntArray, at: int) -> Delivery | None:
        """The delivery that starts with frame `at`; None if it is incomplete."""
        delivery, pieces = Delivery(at), list[bytes]()
        for number in range(at, len(starts)):
            frame = frame_at(data, int(starts[number]))
            transfer, message = self.parse(frame)
            if transfer is None:
                delivery.other_frames.append(frame)
                if not pieces:
                    return delivery
                continue
            delivery.take(transfer, number)
            pieces.append(frame[message:])
            if transfer.aborted or not transfer.more:
                delivery.payload = b"".join(pieces)
                return delivery
        return None

    def ends_delivery(self, frame: bytes) -> bool:
        """Whether a delivery on our link ends with this frame."""
        transfer, _ = self.parse(frame)
        return transfer is not None and (transfer.aborted or not transfer.more)

    def parse(self, frame: bytes) -> tuple[Transfer | None, int]:
        """The transfer in a frame, None if on another link, and the start of its payload."""
        transfer, message = decode_performative(frame, body_at(frame), len(frame))
        assert isinstance(transfer, Transfer)  # FrameIndex has checked it
        channel = HEAD.unpack_from(frame)[3]
        ours = channel == self.channel and transfer.handle == self.handle
        return transfer if ours else None, message


@dataclass(slots=True)
class Delivery:
    """A delivery that is being assembled."""

    last: int  # the number of its last frame
    number: int | None = None  # its id; None if no frame is on our link
    settled: bool = False
    aborted: bool = False
    payload: bytes = b""
    other_frames: list[bytes] = field(default_factory=list)  # of other links, in between

    def take(self, transfer: Transfer, at: int) -> None:
        delivery_id = transfer.delivery_id
        first = self.number is None
        if (delivery_id is None and first) or (
            delivery_id is not None and not first and delivery_id != self.number
        ):
            expected = "a number" if first else self.number
            raise RemoteProtocolError(
                f"transfer.delivery-id is {delivery_id}, expected {expected}", "amqp:invalid-field"
            )
        if first:
            self.number = delivery_id
        self.last = at
        self.settled = self.settled or bool(transfer.settled)
        self.aborted = transfer.aborted


def match_group(
    layout: Layout, columns: Columns, left: IntArray, starts: IntArray, ends: IntArray
) -> IntArray:
    """Read the frames with this layout; returns the numbers of the others."""
    matcher = layout.match(columns.view, left, starts[left], ends[left])
    if not len(matcher.rows):
        return left
    columns.groups.append(Group(matcher.rows, matcher.values, layout.settled))
    if len(matcher.rows) == len(left):
        return left[:0]
    others = np.ones(len(starts), np.bool_)
    others[matcher.rows] = False
    return left[others[left]]


def frame_at(data: bytes | bytearray, start: int) -> bytes:
    (size,) = SIZE.unpack_from(data, start)
    return bytes(data[start : start + size])


def body_at(frame: bytes) -> int:
    """The start of the body of a frame."""
    size, doff, kind, _ = HEAD.unpack_from(frame)
    if kind != AMQP_FRAME or not HEAD.size <= doff * 4 <= size:
        raise RemoteProtocolError(
            f"frame of type {kind} and {size} bytes with its body at byte {doff * 4}",
            "amqp:connection:framing-error",
        )
    return int(doff * 4)


def is_transfer(frame: bytes) -> bool:
    start = body_at(frame)
    if start == len(frame):
        return False  # a heartbeat
    return isinstance(decode_performative(frame, start, len(frame))[0], Transfer)
