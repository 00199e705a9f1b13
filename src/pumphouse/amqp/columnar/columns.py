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

SINGLES_MAX = 4  # up to this many rows are decoded faster one by one
LEARN_MAX = 8  # attempts per read to learn a layout; other rows are decoded one by one
LAYOUTS_MAX = 32  # layouts kept
GUESS_FRAMES = 8  # after this many frames of equal size, guess that more follow
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
        # A heartbeat is shorter than the compared bytes: the bytes after it may be stale.
        transfers &= ends - starts > HEAD.size
        others = []
        for number in [] if all_true(transfers) else np.flatnonzero(~transfers).tolist():
            frame = bytes(view.data[starts[number] : ends[number]])
            transfers[number] = is_transfer(frame)
            if not transfers[number]:
                others.append(frame)
        if others:
            starts, ends = starts[transfers], ends[transfers]
        if len(self):
            starts, ends = np.append(self.starts, starts), np.append(self.ends, ends)
        self.starts, self.ends = starts, ends
        return others

    def keep(self, mask: Mask) -> None:
        """Keep only the transfers where the mask is true."""
        self.starts, self.ends = self.starts[mask], self.ends[mask]

    def drop(self, frames: int) -> int:
        """Remove the first transfers, and shift the positions of the others to the front.

        Returns the number of bytes by which they are shifted.
        """
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
        starts, guess_count = [], SCAN_FRAMES
        while True:
            guessed = np.arange(self.end, min(end, self.end + guess_count * size) - size + 1, size)
            equal = view.sizes(guessed) == size
            count = len(guessed) if all_true(equal) else int(equal.argmin())
            starts.append(guessed[:count])
            self.end += count * size
            if count < SCAN_FRAMES:
                # Sizes vary, so guesses cost more than they save: guess less often.
                self._scan_count = min(2 * self._scan_count, SCAN_FRAMES_MAX)
                return starts
            self._scan_count = SCAN_FRAMES
            if count == guess_count:
                guess_count *= 8
            else:
                other = self.scan_frames(view.data, end, 1)
                starts.append(np.array(other, np.int64))
                guess_count = 2 * count
                if not other:
                    return starts

    def scan_frames(self, data: bytes | bytearray, end: int, count: int) -> list[int]:
        """The starts of the next frames, at most `count`, found one by one in a Python loop."""
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

    def keep(self, mask: Mask) -> Group:
        """The rows where the mask is true."""
        kept = {value_id: values.keep(mask) for value_id, values in self.values.items()}
        return Group(self.rows[mask], kept, self.settled)


@dataclass(slots=True)
class Columns:
    """The content of consecutive transfers."""

    view: BufferView  # the buffer that the groups refer to
    frames: int  # frames read; a frame after them starts an incomplete delivery
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
        self.singles_max = singles_max  # up to this many remaining rows are decoded one by one
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
        others = self.read_groups(columns, starts, ends)
        self.read_singles(columns, starts, others)
        for group in columns.groups:
            if not group.settled:
                columns.unsettled += view.integers(group.values[DELIVERY_ID]).tolist()
        columns.unsettled.sort()
        return columns

    # -- groups -----------------------------------------------------------------------------------

    def read_groups(self, columns: Columns, starts: IntArray, ends: IntArray) -> list[int]:
        """Read the frames that have a layout; returns the numbers of the others."""
        remaining, without_layout = np.arange(len(starts)), list[int]()
        match_counts: dict[Layout, int] = {}
        known = iter(self.layouts)
        attempts_left = LEARN_MAX
        while len(remaining) > self.singles_max:
            layout = next(known, None)
            if layout is None:
                if not attempts_left:
                    break
                attempts_left -= 1
                first, rest = int(remaining[0]), remaining[1:]
                layout = self.layout_of(frame_at(columns.view.data, int(starts[first])))
                if layout is None:
                    without_layout.append(first)
                    remaining = rest
                    continue
            count = len(remaining)
            remaining = match_group(layout, columns, remaining, starts, ends)
            match_counts[layout] = count - len(remaining)
        self.remember(match_counts)
        return sorted(without_layout + remaining.tolist())

    def remember(self, match_counts: dict[Layout, int]) -> None:
        """Sort the layouts by their number of matches and drop the least used ones."""
        untried = [layout for layout in self.layouts if layout not in match_counts]
        tried = sorted(match_counts, key=match_counts.__getitem__, reverse=True)
        self.layouts = (tried + untried)[:LAYOUTS_MAX]

    def layout_of(self, frame: bytes) -> Layout | None:
        """The layout of a frame, if it is a complete delivery on this link."""
        try:
            transfer, _ = self.parse(frame)
            return learn_layout(frame) if transfer is not None else None
        except RemoteProtocolError:
            # `read_singles` decodes the frame again and raises the error, unless the frame is a
            # later part of a delivery.
            return None

    # -- single messages --------------------------------------------------------------------------

    def read_singles(self, columns: Columns, starts: IntArray, numbers: list[int]) -> None:
        """Decode frames one by one, and assemble deliveries of several frames."""
        later_parts = np.zeros(len(starts), np.bool_)  # later frames of a delivery
        last_read = -1
        for number in numbers:
            if number <= last_read:
                continue  # part of the previous delivery
            delivery = self.collect(columns.view.data, starts, number)
            if delivery is None:
                columns.frames = number
                break
            last_read = delivery.last
            later_parts[number + 1 : last_read + 1] = True
            columns.other_frames += delivery.other_frames
            if delivery.aborted:
                columns.aborted += 1
            elif delivery.delivery_id is not None:
                columns.singles[number] = decode_message(delivery.payload)
                if not delivery.settled:
                    columns.unsettled.append(delivery.delivery_id)
        if later_parts.any():
            kept = (group.keep(~later_parts[group.rows]) for group in columns.groups)
            columns.groups = [group for group in kept if len(group.rows)]

    def collect(self, data: bytes | bytearray, starts: IntArray, first: int) -> Delivery | None:
        """The delivery that starts with frame `first`; None if it is incomplete."""
        delivery, pieces = Delivery(first), list[bytes]()
        for number in range(first, len(starts)):
            frame = frame_at(data, int(starts[number]))
            transfer, payload_start = self.parse(frame)
            if transfer is None:
                delivery.other_frames.append(frame)
                if not pieces:
                    return delivery
                continue
            delivery.take(transfer, number)
            pieces.append(frame[payload_start:])
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
        transfer, payload_start = decode_performative(frame, body_at(frame), len(frame))
        assert isinstance(transfer, Transfer)  # FrameIndex has checked it
        channel = HEAD.unpack_from(frame)[3]
        is_ours = channel == self.channel and transfer.handle == self.handle
        return transfer if is_ours else None, payload_start


@dataclass(slots=True)
class Delivery:
    """A delivery that is being assembled."""

    last: int  # the number of its last frame
    delivery_id: int | None = None  # None if no frame is on our link
    settled: bool = False
    aborted: bool = False
    payload: bytes = b""
    other_frames: list[bytes] = field(default_factory=list)  # of other links, in between

    def take(self, transfer: Transfer, frame_number: int) -> None:
        delivery_id = transfer.delivery_id
        first = self.delivery_id is None
        if (delivery_id is None and first) or (
            delivery_id is not None and not first and delivery_id != self.delivery_id
        ):
            expected = "a number" if first else self.delivery_id
            raise RemoteProtocolError(
                f"transfer.delivery-id is {delivery_id}, expected {expected}", "amqp:invalid-field"
            )
        if first:
            self.delivery_id = delivery_id
        self.last = frame_number
        self.settled = self.settled or bool(transfer.settled)
        self.aborted = transfer.aborted


def match_group(
    layout: Layout, columns: Columns, remaining: IntArray, starts: IntArray, ends: IntArray
) -> IntArray:
    """Read the frames with this layout; returns the numbers of the others."""
    matcher = layout.match(columns.view, remaining, starts[remaining], ends[remaining])
    if not len(matcher.rows):
        return remaining
    columns.groups.append(Group(matcher.rows, matcher.values, layout.settled))
    if len(matcher.rows) == len(remaining):
        return remaining[:0]
    others = np.ones(len(starts), np.bool_)
    others[matcher.rows] = False
    return remaining[others[remaining]]


def frame_at(data: bytes | bytearray, start: int) -> bytes:
    (size,) = SIZE.unpack_from(data, start)
    return bytes(data[start : start + size])


def body_at(frame: bytes) -> int:
    """The start of the body of a frame."""
    size, doff, kind, _ = HEAD.unpack_from(frame)
    if kind != AMQP_FRAME or not HEAD.size <= doff * 4 <= size:
        raise RemoteProtocolError(
            f"frame of type {kind} and {size} bytes with its body at byte {doff * 4}; expected "
            f"type {AMQP_FRAME} and a body from byte {HEAD.size} to {size}",
            "amqp:connection:framing-error",
        )
    return int(doff * 4)


def is_transfer(frame: bytes) -> bool:
    start = body_at(frame)
    if start == len(frame):
        return False  # a heartbeat
    return isinstance(decode_performative(frame, start, len(frame))[0], Transfer)
