"""Received bytes of a blocking connection, and the positions of the frames in them.

Stream -> ReceiveBuffer -> FrameIndex, ColumnReader
          ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from pumphouse.amqp.columnar.buffer_view import SLACK, BufferView
from pumphouse.amqp.columnar.columns import FrameIndex
from pumphouse.amqp.constructors import SIZE
from pumphouse.amqp.frames import HEAD
from pumphouse.errors import RemoteProtocolError

HELD_BYTES_MAX = 128 << 20  # growth limit for a delivery of many frames


class ReceiveBuffer:
    """Received bytes that are not consumed, and the positions of their frames."""

    def __init__(self, frame_bytes_max: int, size: int) -> None:
        self.view = BufferView(bytearray(size + SLACK))
        self.end = 0
        self.index = FrameIndex(frame_bytes_max)

    def __repr__(self) -> str:
        return f"<ReceiveBuffer {self.end} of {self.size} bytes, {len(self.index)} transfers>"

    @property
    def data(self) -> bytearray:
        return self.view.data

    @property
    def size(self) -> int:
        return len(self.data) - SLACK

    def room(self, size: int) -> memoryview:
        """The part of the buffer to receive into: at most `size` bytes, at least one."""
        if self.end == self.size:
            self.grow(2 * self.size)
        return memoryview(self.data)[self.end : min(self.size, self.end + size)]

    def grow(self, size: int) -> None:
        if size > HELD_BYTES_MAX:
            raise RemoteProtocolError(
                f"the hub sent a delivery of more than {HELD_BYTES_MAX // 2} bytes",
                "amqp:link:message-size-exceeded",
            )
        if size > self.size:
            grown = bytearray(size + SLACK)
            grown[: self.end] = self.data[: self.end]
            self.view = BufferView(grown)

    def take_unit(self, is_header: bool) -> bytes | None:
        """Remove and return the next protocol header or frame; None if incomplete."""
        if self.end < HEAD.size:
            return None
        size = HEAD.size if is_header else SIZE.unpack_from(self.data)[0]
        if not HEAD.size <= size <= self.index.max_frame_size:
            size = HEAD.size  # the AMQP connection reports the error
        if size > self.end:
            return None
        unit = bytes(self.data[:size])
        self.remove_front(size)
        return unit

    def drop(self, frames: int = 0) -> None:
        """Remove the first transfers, and all bytes before the next one."""
        self.remove_front(self.index.drop(frames))

    def remove_front(self, count: int) -> None:
        """Remove bytes from the front."""
        remaining = self.end - count
        self.data[:remaining] = self.data[count : self.end]
        self.end = remaining
