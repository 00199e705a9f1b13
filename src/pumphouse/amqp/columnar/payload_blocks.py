"""Payloads of equal size at equal distances in received bytes, taken without copying them.

The transfers of a link often have the same size for a while. They are found by comparing the start
of a few frames, and checked all at once. A block is a sequence of payloads like a list of them, but
code that reads many at a time uses its positions.

    buffer -> block_starts -> find_block -> PayloadBlock -> FixedLayout.match -> columns
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from pumphouse.amqp.constructors import SIZE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

ROWS_MIN = 40  # fewer payloads are taken faster one by one
# Frames that are compared before all are: a failed comparison of all costs more than it could save.
PROBES = (ROWS_MIN - 1, 1, 2, 4, 8, 16, 32)


class PayloadBlock(Sequence[bytes]):
    """Payloads of one size in the frames of a buffer."""

    __slots__ = ("data", "rows", "size", "start", "stride")

    def __init__(self, data: bytes, start: int, size: int, stride: int, rows: int) -> None:
        self.data = data
        self.start = start  # of the first payload
        self.size = size  # of a payload
        self.stride = stride  # the size of a frame
        self.rows = rows

    def __repr__(self) -> str:
        return f"<PayloadBlock {self.rows} of {self.size} bytes>"

    def __len__(self) -> int:
        return self.rows

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | Sequence[bytes]:
        rows = range(self.rows)[index]
        if isinstance(rows, int):
            start = self.start + rows * self.stride
            return self.data[start : start + self.size]
        start, stride = self.start + rows.start * self.stride, self.stride * rows.step
        return PayloadBlock(self.data, start, self.size, stride, len(rows))

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.tails(0))

    def tails(self, skipped: int) -> list[bytes]:
        """The payloads without their first bytes."""
        start, size = self.start + skipped, self.size - skipped
        return byte_strings(self.data, start, size, self.stride, self.rows)

    def heads(self, size: int) -> npt.NDArray[np.uint8]:
        """The first bytes of each payload, as a row."""
        rows: npt.NDArray[np.uint8] = matrix(self.data, self.start, size, self.stride, self.rows)
        return rows

    def compacted(self) -> PayloadBlock:
        """The same block in a buffer at most twice its size, so that it keeps no other bytes."""
        bytes_kept = (self.rows - 1) * self.stride + self.size
        if bytes_kept * 2 >= len(self.data):
            return self
        data = self.data[self.start : self.start + bytes_kept]
        return PayloadBlock(data, 0, self.size, self.stride, self.rows)


def sizes_of(payloads: Sequence[bytes]) -> tuple[int, int]:
    """The size of all payloads together, and that of the largest."""
    if isinstance(payloads, PayloadBlock):
        return payloads.rows * payloads.size, payloads.size
    sizes = list(map(len, payloads))
    return sum(sizes), max(sizes, default=0)


def block_starts(data: bytes, pos: int, head_end: int) -> bool:
    """Whether many frames with the size and the first bytes of the one at `pos` seem to follow."""
    start = data[pos : pos + head_end]
    size = int.from_bytes(start[: SIZE.size], "big")
    if size < head_end or pos + ROWS_MIN * size > len(data):
        return False
    return all(data.startswith(start, pos + row * size) for row in PROBES)


def find_block(data: bytes, pos: int, mask: bytes) -> PayloadBlock | None:
    """The frames from `pos` on that have the size of the first and its bytes where the mask is set.

    The mask has as many bytes as a frame before its payload. None if there are too few frames.
    """
    import numpy as np  # takes longer to import than most connections need to open

    (stride,) = SIZE.unpack_from(data, pos)
    payload_at = len(mask)
    if stride < payload_at:
        return None
    rows = matrix(data, pos, payload_at, stride, (len(data) - pos) // stride)
    differing = (rows ^ rows[0]) & np.frombuffer(mask, np.uint8)
    count = int(differing.any(axis=1).argmax()) if differing.any() else len(rows)
    if count < ROWS_MIN:
        return None
    return PayloadBlock(data, pos + payload_at, stride - payload_at, stride, count)


def matrix(data: bytes, start: int, columns: int, stride: int, rows: int) -> Any:
    """Bytes at equal distances as rows."""
    import numpy as np

    return np.ndarray((rows, columns), np.uint8, data, start, (stride, 1))


def byte_strings(data: Any, start: int, size: int, stride: int, rows: int) -> list[bytes]:
    """Bytes at equal distances: the same as slices, in half of the time."""
    import numpy as np

    if not size or not rows:
        return [b""] * rows
    strings: list[bytes] = np.ndarray((rows,), f"V{size}", data, start, (stride,)).tolist()
    return strings
