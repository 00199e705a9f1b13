"""Builds Arrow arrays from numpy arrays, byte strings and parts of a receive buffer.

    view, values -> arrays -> columns of a record batch
                    ^^^^^^ this module

Arrays are built from buffers: pyarrow.array and pyarrow.scalar import pandas on first use, which
takes a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.amqp.codec import decode
from pumphouse.amqp.columnar.buffer_view import BufferView, IntArray, Mask, Values, all_true
from pumphouse.amqp.constructors import WIDTHS
from pumphouse.amqp.types import Timestamp
from pumphouse.client.bulk.texts import text_of
from pumphouse.errors import RemoteProtocolError

TIME_US = pa.timestamp("us", tz="UTC")
NUMPY_TYPES: Mapping[pa.DataType, npt.DTypeLike] = {
    pa.int8(): np.int8,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float64(): np.float64,
    TIME_US: np.int64,
}
INT64_MAX = (1 << 63) - 1
NUMPY_BYTES_MAX = 64  # larger values are copied by Arrow
MS_MAX = INT64_MAX // 1000  # of timestamps: as microseconds they must fit 64 bits too
TAKE, UNCHECKED = pc.get_function("array_take"), pc.TakeOptions(boundscheck=False)
TEXTS_MAX, REPEATED_MAX = 1 << 16, 64  # cache sizes
TEXT_BYTES_MAX = 256  # of a cached value; long ones seldom repeat


class ArrayCache:
    """Arrays and texts that repeat from batch to batch."""

    def __init__(self) -> None:
        self._texts: dict[bytes, str] = {}
        self._repeated: dict[tuple[str, ...], pa.Array] = {}
        self._interleaved: tuple[int, int, Any] = (0, 0, None)
        self._evens = numbers(np.arange(0), pa.int32())

    def text(self, raw: bytes) -> str:
        """An encoded value as text."""
        text = self._texts.get(raw)
        if text is None:
            text = text_of(decode(raw)[0])
            if len(raw) <= TEXT_BYTES_MAX:
                if len(self._texts) >= TEXTS_MAX:
                    self._texts.clear()
                self._texts[raw] = text
        return text

    def repeat(self, names: tuple[str, ...], rows: int) -> pa.Array:
        """The same names repeated, as in the keys of a map column."""
        array = self._repeated.get(names)
        if array is None or len(array) < rows * len(names):
            if len(self._repeated) >= REPEATED_MAX:
                self._repeated.clear()
            array = self._repeated[names] = repeated(names, rows)
        return array.slice(0, rows * len(names))

    def evens(self, count: int) -> pa.Array:
        """0, 2, 4, ..."""
        if len(self._evens) < count:
            self._evens = numbers(np.arange(0, 2 * count, 2), pa.int32())
        return self._evens.slice(0, count)

    def interleaved(self, width: int, rows: int) -> pa.Array:
        """The indexes that interleave `width` concatenated columns row by row."""
        if self._interleaved[:2] != (width, rows):
            indexes = np.arange(rows * width).reshape(width, rows).T.ravel()
            self._interleaved = width, rows, numbers(indexes, pa.int32())
        return self._interleaved[2]


# --- Values in a buffer ---------------------------------------------------------------------------


def extents(values: Values) -> tuple[list[int], list[int]]:
    """The start of the constructor and the end of each value."""
    starts = values.starts - HEADS[values.codes]
    return starts.tolist(), (values.starts + values.lengths).tolist()


# Bytes before the content of a value: the constructor, and its size if it has one.
HEADS = np.array([1 + (WIDTHS[code >> 4] if code >= 0xA0 else 0) for code in range(256)], np.int64)


def decoded(view: BufferView, values: Values) -> Iterator[Any]:
    return (decode(view.data, start, end)[0] for start, end in zip(*extents(values), strict=True))


def slice_values(view: BufferView, values: Values, cache: ArrayCache) -> pa.Array:
    """The bytes of each value. The buffer holds them in the order of the rows."""
    rows, size = len(values.starts), int(values.lengths[0])
    # numpy returns the memory of large arrays to the system after each batch; Arrow keeps it for
    # the next one. So numpy copies only small values.
    if 0 < size <= NUMPY_BYTES_MAX and all_true(values.lengths == size):
        offsets = np.arange(0, rows * size + 1, size, dtype=np.int32)
        return binaries(offsets, view.byte_rows(values.starts, size))
    # With all edges as offsets, every second binary is a value and the others are the gaps.
    edges = np.empty(2 * rows, np.int32)
    edges[0::2], edges[1::2] = values.starts, values.starts + values.lengths
    return take(binaries(edges, view.bytes), cache.evens(rows))


def take(array: pa.Array, indexes: pa.Array) -> pa.Array:
    """The items at these indexes, without bounds checks."""
    return TAKE.call([array, indexes], UNCHECKED)


def binaries(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def numbers(array: npt.NDArray[Any], kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """A numpy array as an Arrow array; null where it is not valid."""
    validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    converted = np.ascontiguousarray(array, NUMPY_TYPES[kind])
    return pa.Array.from_buffers(kind, len(converted), [validity, pa.py_buffer(converted)])


def binary_array(items: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Byte strings as an array of binaries or of strings."""
    lengths = [0 if item is None else len(item) for item in items]
    offsets = np.zeros(len(items) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    validity = None
    if None in items:
        validity = pa.py_buffer(
            np.packbits([item is not None for item in items], bitorder="little")
        )
    data = b"".join(item for item in items if item is not None)
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(items), buffers)


def repeated(names: Sequence[str], count: int) -> pa.Array:
    """The same strings repeated."""
    items = [name.encode() for name in names]
    offsets = np.zeros(len(items) * count + 1, np.int32)
    np.cumsum(np.tile([len(item) for item in items], count), out=offsets[1:])
    return binaries(offsets, np.frombuffer(b"".join(items) * count, np.uint8)).view(pa.string())


def string_array(items: Sequence[str | None]) -> pa.Array:
    return binary_array([None if item is None else item.encode() for item in items], pa.string())


def doubles_as_text(values: npt.NDArray[np.float64]) -> pa.Array:
    """Doubles as text; only for 0 and magnitudes from `arrow.PLAIN_MIN` to `PLAIN_MAX`."""
    texts = numbers(values, pa.float64()).cast(pa.string())
    whole = numbers(values == np.floor(values), pa.int8())
    return pc.binary_join_element_wise(
        texts, take(string_array(["", ".0"]), whole), repeated([""], len(values))
    )


def timestamps(ms: IntArray) -> pa.Array:
    """Milliseconds as Arrow timestamps in microseconds."""
    for extreme in (ms.min(initial=0), ms.max(initial=0)):
        if not -MS_MAX < extreme < MS_MAX:
            raise invalid_time(int(extreme))
    return numbers(ms * 1000, TIME_US)


# --- Decoded values -------------------------------------------------------------------------------


def sequence_of(values: Iterable[Any]) -> IntArray:
    """Sequence numbers as an array; raises for a value that is not a 64-bit integer."""
    sequences = list(values)
    for value in sequences:
        if not is_integer(value) or not ~INT64_MAX <= value <= INT64_MAX:
            raise invalid_sequence(value)
    return np.array(sequences, np.int64)


def timestamps_of(values: Iterable[Any]) -> pa.Array:
    ms = [value if is_integer(value) or isinstance(value, Timestamp) else None for value in values]
    for value in ms:
        if value is not None and abs(value) >= MS_MAX:
            raise invalid_time(value)
    valid = np.array([value is not None for value in ms], np.bool_)
    micros = np.array([0 if value is None else value * 1000 for value in ms], np.int64)
    return numbers(micros, TIME_US, None if valid.all() else valid)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def text_or_none(value: Any) -> str | None:
    return None if value is None else text_of(value)


def invalid_sequence(value: Any) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the hub sent an event with sequence number {value!r:.80}, which is not a 64-bit integer"
    )


def invalid_time(ms: int) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"the hub sent an event with an enqueued time of {ms} ms, which is out of range"
    )
