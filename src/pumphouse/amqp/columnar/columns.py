"""A run of received frames -> columns, without a Python object per message.

The frames of transfers stand in one buffer as they came off the socket. Those that are laid out
alike are read together (layouts.py), and what they hold is told as places in that buffer: no byte
of a body is touched. A message that no layout fits, or that came in several frames, is put together
and decoded alone; that is slower, and says the same.

    buffer -> FrameIndex -> ColumnReader.read -> Columns: groups of rows alike, and single messages
              ^^^^^^^^^^ this module ^^^^^^^^

Nothing here knows what an annotation means, and nothing does IO.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pumphouse.amqp.columnar.cells import (
    DELIVERY_ID,
    SLACK,
    Cells,
    Mask,
    Place,
    Places,
    Values,
    every,
)
from pumphouse.amqp.columnar.layouts import Layout, learn
from pumphouse.amqp.composites import decode_performative
from pumphouse.amqp.constructors import SIZE
from pumphouse.amqp.frames import AMQP_FRAME, HEAD
from pumphouse.amqp.messages import Message, decode_message
from pumphouse.amqp.performatives import Transfer
from pumphouse.errors import RemoteProtocolError

ALONE_MAX = 4  # so few rows are decoded before numpy would have got going
LESSONS_MAX = 8  # layouts learned from one run: if these do not fit, none will
LAYOUTS_MAX = 32  # layouts remembered
GUESS_FRAMES = 8  # so many frames of one size in a row, and we guess that more of them follow
LOOP_FRAMES = 64  # looked at one by one before we try to guess again
LOOP_FRAMES_MAX = 4096  # the same, where guesses have been wrong
NOWHERE: Places = np.empty(0, np.int64)

# doff 2, type 0, any channel, then the usual spelling of a transfer with any constructor.
USUAL_HEAD = np.frombuffer(b"\x02\x00\x00\x00\x00\x53\x14\x00", np.uint64)[0]
USUAL_MASK = np.frombuffer(b"\xff\xff\x00\x00\xff\xff\xff\x00", np.uint64)[0]


class FrameIndex:
    """Where the frames are in a buffer that is being filled.

    Transfers are collected in `starts` and `ends`; whatever else there is comes out of `extend`.
    """

    def __init__(self, max_frame_size: int) -> None:
        self.max_frame_size = max_frame_size
        self.starts: Places = NOWHERE  # of whole transfer frames
        self.ends: Places = NOWHERE
        self.end = 0  # of the last whole frame
        self._loop_frames = LOOP_FRAMES

    def __len__(self) -> int:
        """The number of transfers."""
        return len(self.starts)

    def __repr__(self) -> str:
        return f"<FrameIndex {len(self)} transfers in {self.end} bytes>"

    def extend(self, cells: Cells, end: int) -> list[bytes]:
        """Look at what has come in up to `end`; the frames that are no transfers."""
        starts = self.walk(cells, end)
        if not len(starts):
            return []
        ends = np.empty_like(starts)
        ends[:-1], ends[-1] = starts[1:], self.end
        self.check(int((ends - starts).max()))
        transfers = cells.heads(starts) & USUAL_MASK == USUAL_HEAD
        # A heartbeat ends before what was looked at: behind it may lie what was there before.
        transfers &= ends - starts > HEAD.size
        others = []
        for at in [] if every(transfers) else np.flatnonzero(~transfers).tolist():
            frame = bytes(cells.data[starts[at] : ends[at]])
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
        """Go on with some of the transfers only."""
        self.starts, self.ends = self.starts[good], self.ends[good]

    def drop(self, frames: int) -> int:
        """Forget the first transfers, and count from behind them on: how many bytes that is."""
        until = int(self.starts[frames]) if frames < len(self) else self.end
        self.starts, self.ends = self.starts[frames:] - until, self.ends[frames:] - until
        self.end -= until
        return until

    def walk(self, cells: Cells, end: int) -> Places:
        """Where each further whole frame up to `end` starts."""
        found = []
        count = GUESS_FRAMES
        while True:
            walked = self.loop(cells.data, end, count)
            found.append(np.fromiter(walked, np.int64, len(walked)))
            if len(walked) < count:
                return np.concatenate(found) if len(found) > 1 else found[0]
            size = self.end - walked[-1]
            if size * GUESS_FRAMES == self.end - walked[-GUESS_FRAMES]:
                found += self.leaps(cells, end, size)
            count = self._loop_frames

    def leaps(self, cells: Cells, end: int, size: int) -> list[Places]:
        """Guess that the next frames all have this size, but for one here and there."""
        found, reach = [], LOOP_FRAMES
        while True:
            places = np.arange(self.end, min(end, self.end + reach * size) - size + 1, size)
            alike = cells.sizes(places) == size
            count = len(places) if every(alike) else int(alike.argmin())
            found.append(places[:count])
            self.end += count * size
            if count < LOOP_FRAMES:
                # Where sizes change all the time, guesses are not worth their cost.
                self._loop_frames = min(2 * self._loop_frames, LOOP_FRAMES_MAX)
                return found
            self._loop_frames = LOOP_FRAMES
            if count == reach:
                reach *= 8
            else:
                other = self.loop(cells.data, end, 1)
                found.append(np.array(other, np.int64))
                reach = 2 * count
                if not other:
                    return found

    def loop(self, data: bytes | bytearray, end: int, count: int) -> list[int]:
        """The next frames, one by one: at most `count`. This is the only loop over all frames."""
        found: list[int] = []
        add, unpack = found.append, SIZE.unpack_from
        pos, last, size = self.end, end - HEAD.size, HEAD.size
        for _ in range(count):
            if pos > last:
                break
            (size,) = unpack(data, pos)
            if size < 8:  # HEAD.size: it would lead nowhere
                break
            add(pos)
            pos += size
        self.check(size)
        self.end = found.pop() if pos > end else pos
        return found

    def check(self, size: int) -> None:
        if not HEAD.size <= size <= self.max_frame_size:
            raise RemoteProtocolError(
                f"frame of {size} bytes; from {HEAD.size} to {self.max_frame_size} are allowed",
                "amqp:connection:framing-error",
            )


class Group(NamedTuple):
    """Rows that are laid out alike."""

    rows: Places  # the number of each among the frames that were given
    values: dict[Place, Values]
    settled: bool = True

    def keep(self, good: Mask) -> Group:
        kept = {place: values.keep(good) for place, values in self.values.items()}
        return Group(self.rows[good], kept, self.settled)


@dataclass(slots=True)
class Columns:
    """What a run of transfers holds."""

    cells: Cells  # the buffer that the groups tell places in
    frames: int  # how many of those given were read; behind them is the first part of a delivery
    groups: list[Group] = field(default_factory=list)
    alone: dict[int, Message] = field(default_factory=dict)  # by row, in order
    aborted: int = 0  # deliveries that the sender gave up: they are no rows, but used up credit
    strangers: list[bytes] = field(default_factory=list)  # transfers on other links
    unsettled: list[int] = field(default_factory=list)  # ids of deliveries that ask for an outcome

    def __len__(self) -> int:
        """The number of rows."""
        return sum(len(group.rows) for group in self.groups) + len(self.alone)

    def __repr__(self) -> str:
        return f"<Columns {len(self)} rows | {len(self.groups)} groups, {len(self.alone)} alone>"

    def order(self) -> Places | None:
        """How to sort the rows of all groups and those alone, put one behind the other, into the
        order of their arrival; None if that is how they are."""
        if len(self.groups) + bool(self.alone) < 2:
            return None
        alone = np.fromiter(self.alone, np.int64, len(self.alone))
        rows = np.concatenate([*(group.rows for group in self.groups), alone])
        if every(rows[1:] > rows[:-1]):
            return None
        return np.argsort(rows)


class ColumnReader:
    """Reads the transfers that arrive on one link, and remembers how they are laid out.

    `channel` and `handle` are the peer's: those that stand in its frames.
    """

    def __init__(self, channel: int, handle: int, *, alone_max: int = ALONE_MAX) -> None:
        self.channel = channel
        self.handle = handle
        self.alone_max = alone_max  # so many rows may be left without trying (another) layout
        self.layouts: list[Layout] = []  # the one that was of most use comes first

    def __repr__(self) -> str:
        return f"<ColumnReader channel={self.channel} handle={self.handle} {self.layouts}>"

    def read(self, cells: Cells, starts: Places, ends: Places) -> Columns:
        """Columns out of transfer frames, of which a FrameIndex says where they are.

        They point into the buffer, which must go on for SLACK bytes after the last frame.
        """
        if len(ends) and ends[-1] + SLACK > len(cells.data):
            raise ValueError(f"the buffer must have {SLACK} bytes behind its last frame")
        columns = Columns(cells, len(starts))
        left = self.read_alike(columns, starts, ends)
        self.read_alone(columns, starts, left)
        for group in columns.groups:
            if not group.settled:
                columns.unsettled += cells.integers(group.values[DELIVERY_ID]).tolist()
        columns.unsettled.sort()
        return columns

    # -- many at a time ---------------------------------------------------------------------------

    def read_alike(self, columns: Columns, starts: Places, ends: Places) -> list[int]:
        """Read the frames that have a layout; the numbers of those that have none."""
        left, aside = np.arange(len(starts)), list[int]()
        use: dict[Layout, int] = {}
        known = iter(self.layouts)
        lessons = LESSONS_MAX
        while len(left) > self.alone_max:
            layout = next(known, None)
            if layout is None:
                if not lessons:
                    break
                lessons -= 1
                first, left_over = int(left[0]), left[1:]
                layout = self.study(frame_at(columns.cells.data, int(starts[first])))
                if layout is None:
                    aside.append(first)
                    left = left_over
                    continue
            before = len(left)
            left = take_alike(layout, columns, left, starts, ends)
            use[layout] = before - len(left)
        self.remember(use)
        return sorted(aside + left.tolist())

    def remember(self, use: dict[Layout, int]) -> None:
        """Sort the layouts by their use; those of least use may be forgotten."""
        untried = [layout for layout in self.layouts if layout not in use]
        tried = sorted(use, key=use.__getitem__, reverse=True)
        self.layouts = (tried + untried)[:LAYOUTS_MAX]

    def study(self, frame: bytes) -> Layout | None:
        """The layout of a frame, if it is a delivery of ours and can be read so."""
        try:
            transfer, _ = self.parse(frame)
            return learn(frame) if transfer is not None else None
        except RemoteProtocolError:
            return None  # a later part of a delivery, perhaps; if it is worse, that will be seen

    # -- one at a time ----------------------------------------------------------------------------

    def read_alone(self, columns: Columns, starts: Places, left: list[int]) -> None:
        """Read frames one by one, and put deliveries together that came in several."""
        parts = np.zeros(len(starts), np.bool_)  # frames that are no row, whatever they look like
        done = -1
        for at in left:
            if at <= done:
                continue  # a part of the delivery before
            delivery = self.collect(columns.cells.data, starts, at)
            if delivery is None:
                columns.frames = at
                break
            done = delivery.last
            parts[at + 1 : done + 1] = True
            columns.strangers += delivery.strangers
            if delivery.aborted:
                columns.aborted += 1
            elif delivery.number is not None:
                columns.alone[at] = decode_message(delivery.payload)
                if not delivery.settled:
                    columns.unsettled.append(delivery.number)
        if parts.any():
            kept = (group.keep(~parts[group.rows]) for group in columns.groups)
            columns.groups = [group for group in kept if len(group.rows)]

    def collect(self, data: bytes | bytearray, starts: Places, at: int) -> Delivery | None:
        """The delivery that starts with frame `at`; None if not all of it is there."""
        delivery, pieces = Delivery(at), list[bytes]()
        for number in range(at, len(starts)):
            frame = frame_at(data, int(starts[number]))
            transfer, message = self.parse(frame)
            if transfer is None:
                delivery.strangers.append(frame)
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
        """The transfer in a frame and where its payload starts; no transfer if it is not ours."""
        transfer, message = decode_performative(frame, body_at(frame), len(frame))
        assert isinstance(transfer, Transfer)  # FrameIndex has looked
        channel = HEAD.unpack_from(frame)[3]
        ours = channel == self.channel and transfer.handle == self.handle
        return transfer if ours else None, message


@dataclass(slots=True)
class Delivery:
    """A delivery being put together."""

    last: int  # the number of its last frame
    number: int | None = None  # its id; None if nothing of it is ours
    settled: bool = False
    aborted: bool = False
    payload: bytes = b""
    strangers: list[bytes] = field(default_factory=list)  # frames of other links in between

    def take(self, transfer: Transfer, at: int) -> None:
        found = transfer.delivery_id
        first = self.number is None
        if (found is None and first) or (found is not None and not first and found != self.number):
            raise RemoteProtocolError(
                f"transfer.delivery-id is {found}, expected {'a number' if first else self.number}",
                "amqp:invalid-field",
            )
        if first:
            self.number = found
        self.last = at
        self.settled = self.settled or bool(transfer.settled)
        self.aborted = transfer.aborted


def take_alike(
    layout: Layout, columns: Columns, left: Places, starts: Places, ends: Places
) -> Places:
    """Read the frames that have this layout; the numbers of the others."""
    walk = layout.match(columns.cells, left, starts[left], ends[left])
    if not len(walk.rows):
        return left
    columns.groups.append(Group(walk.rows, walk.found, layout.settled))
    if len(walk.rows) == len(left):
        return left[:0]
    others = np.ones(len(starts), np.bool_)
    others[walk.rows] = False
    return left[others[left]]


def frame_at(data: bytes | bytearray, start: int) -> bytes:
    (size,) = SIZE.unpack_from(data, start)
    return bytes(data[start : start + size])


def body_at(frame: bytes) -> int:
    """Where the body of a frame starts."""
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
