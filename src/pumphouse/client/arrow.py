"""Columns of events as Arrow record batches.

Names and types are those of Azure's Spark connector. Rows that are laid out alike become arrays
without a Python object per row: text and bodies are copied by Arrow out of the receive buffer,
numbers by numpy. Messages that were decoded alone are written down one by one, by the same rules.

    amqp.Columns -> Batches.rows -> Rows.batch -> pyarrow.RecordBatch
                    ^^^^^^^ this module ^^^^^^

It needs pyarrow, which the extra `spark` installs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pumphouse.amqp.cells import (
    BINARIES,
    BODY,
    INTEGERS,
    STRINGS,
    SYMBOLS,
    Cells,
    Mask,
    Place,
    Places,
    Values,
    every,
)
from pumphouse.amqp.codec import decode
from pumphouse.amqp.columns import NOWHERE, Columns, Group
from pumphouse.amqp.composites import hyphen, specs
from pumphouse.amqp.constructors import WIDTHS
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Message,
    Properties,
)
from pumphouse.amqp.types import Timestamp
from pumphouse.client.batches import ENQUEUED, KEY, OFFSET, SEQUENCE, body_of
from pumphouse.client.texts import text_of
from pumphouse.errors import OptionError, RemoteProtocolError

PUBLISHER = "x-opt-publisher"
IN_COLUMNS = (SEQUENCE, OFFSET, ENQUEUED)  # annotations that are columns and nothing else

TEXT_MAP = pa.map_(pa.string(), pa.string())
TYPES: Mapping[str, pa.DataType] = {
    "body": pa.binary(),
    "partition": pa.string(),
    "offset": pa.string(),
    "sequenceNumber": pa.int64(),
    "enqueuedTime": pa.timestamp("us", tz="UTC"),
    "publisher": pa.string(),
    "partitionKey": pa.string(),
    "properties": TEXT_MAP,
    "systemProperties": TEXT_MAP,
}
ALL_COLUMNS = tuple(TYPES)
NUMPY_TYPES: Mapping[pa.DataType, npt.DTypeLike] = {
    pa.int8(): np.int8,
    pa.int32(): np.int32,
    pa.int64(): np.int64,
    pa.float64(): np.float64,
    TYPES["enqueuedTime"]: np.int64,
}

# Constructors.
TEXTS = STRINGS | SYMBOLS
TIME, DOUBLE = 0x83, 0x82
BOOLEANS = frozenset((0x41, 0x42))
NUMBERS = INTEGERS - {TIME}  # a time is no number to people
# Between these, Arrow writes a double as Python does, but for the ".0" of a whole number.
PLAIN_MIN, PLAIN_MAX = 1e-4, 1e10
INT64_MAX = (1 << 63) - 1
NUMPY_BYTES_MAX = 64
MS_MAX = INT64_MAX // 1000  # of times: as microseconds they must fit 64 bits too
TAKE, UNCHECKED = pc.get_function("array_take"), pc.TakeOptions(boundscheck=False)
LAST = np.array([-1])
TEXTS_MAX, REPEATED_MAX = 1 << 16, 64  # what is remembered


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of some columns, in the order given."""
    names = tuple(columns)
    unknown = [name for name in names if name not in TYPES]
    if unknown or not names or len(set(names)) < len(names):
        wrong = (
            f"{unknown[0]!r} is none of them" if unknown else f"got {', '.join(names) or 'none'}"
        )
        raise OptionError(f"columns must be some of {', '.join(TYPES)}, each once; {wrong}")
    return pa.schema([(name, TYPES[name]) for name in names])


class Batches:
    """Makes record batches of the events of one partition."""

    def __init__(self, partition: str, columns: Iterable[str] = ALL_COLUMNS) -> None:
        self.partition = partition
        self.schema = schema_of(columns)
        self.memo = Memo()

    def rows(self, columns: Columns) -> Rows:
        """The rows of a run. They stay in its buffer until a batch is made of them."""
        alike = [Alike(columns.cells, group, self.memo) for group in columns.groups]
        alone = [Alone(list(columns.alone.values()))] if columns.alone else []
        return Rows(self, alike, alone, columns.order())

    def arrays(self, part: Alike | Alone, names: Iterable[str]) -> dict[str, pa.Array]:
        """Some columns of a part."""
        makers: dict[str, Callable[[], pa.Array]] = {
            "body": part.body,
            "partition": lambda: self.memo.repeat((self.partition,), len(part)),
            "offset": lambda: part.text(OFFSET),
            "sequenceNumber": lambda: numbers(part.sequence, pa.int64()),
            "enqueuedTime": part.enqueued,
            "publisher": lambda: part.text(PUBLISHER),
            "partitionKey": lambda: part.text(KEY),
            "properties": part.properties,
            "systemProperties": part.system,
        }
        return {name: makers[name]() for name in names}


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a run, in parts: each kind of those alike, then those alone."""

    batches: Batches
    alike: list[Alike]
    alone: list[Alone]  # one or none
    order: Places | None  # that the parts, one behind the other, must be brought into

    @property
    def parts(self) -> list[Alike | Alone]:
        return [*self.alike, *self.alone]

    def sequence(self) -> Places:
        """The sequence number of each row."""
        found = np.concatenate([NOWHERE, *(part.sequence for part in self.parts)])
        return found if self.order is None else found[self.order]

    def newest_ms(self) -> int | None:
        """When the newest row was enqueued, if it says so."""
        return max((ms for part in self.parts if (ms := part.last_ms()) is not None), default=None)

    def batch(self) -> pa.RecordBatch:
        """The rows as a record batch."""
        schema = self.batches.schema
        # Bodies last: they would drive out of the cache what the other columns are made of.
        names = sorted(schema.names, key="body".__eq__)
        apart = names[-1] == "body" and not self.alone
        parts = [self.batches.arrays(part, names[:-1] if apart else names) for part in self.parts]
        arrays = {name: self.joined([part[name] for part in parts]) for name in parts[0]}
        if apart:
            arrays["body"] = self.bodies()
        return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def joined(self, columns: list[pa.Array]) -> pa.Array:
        """The same column of all parts, as one."""
        whole = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
        return whole if self.order is None else take(whole, numbers(self.order, pa.int64()))

    def bodies(self) -> pa.Array:
        """The bodies of rows that are all still in the buffer: sorted first, then copied once."""
        if len(self.alike) == 1:
            return self.alike[0].body()
        found = [part.group.values[BODY] for part in self.alike]
        values = Values(
            np.concatenate([one.codes for one in found]),
            np.concatenate([one.starts for one in found]),
            np.concatenate([one.lengths for one in found]),
            BINARIES,
        )
        values = values if self.order is None else values.keep(self.order)
        return cut_out(self.alike[0].cells, values, self.batches.memo)


class Memo:
    """What is the same from batch to batch."""

    def __init__(self) -> None:
        self._texts: dict[bytes, str] = {}
        self._repeated: dict[tuple[str, ...], pa.Array] = {}
        self._woven: tuple[int, int, Any] = (0, 0, None)
        self._evens = numbers(np.arange(0), pa.int32())

    def text(self, raw: bytes) -> str:
        """An encoded value as text."""
        text = self._texts.get(raw)
        if text is None:
            if len(self._texts) >= TEXTS_MAX:
                self._texts.clear()
            text = self._texts[raw] = text_of(decode(raw)[0])
        return text

    def repeat(self, names: tuple[str, ...], rows: int) -> pa.Array:
        """The same names over and over, as in the keys of a map column."""
        found = self._repeated.get(names)
        if found is None or len(found) < rows * len(names):
            if len(self._repeated) >= REPEATED_MAX:
                self._repeated.clear()
            found = self._repeated[names] = repeated(names, rows)
        return found.slice(0, rows * len(names))

    def evens(self, count: int) -> pa.Array:
        """0, 2, 4, ..."""
        if len(self._evens) < count:
            self._evens = numbers(np.arange(0, 2 * count, 2), pa.int32())
        return self._evens.slice(0, count)

    def woven(self, width: int, rows: int) -> pa.Array:
        """Where to find, in `width` columns one behind the other, the first row, the second..."""
        if self._woven[:2] != (width, rows):
            places = np.arange(rows * width).reshape(width, rows).T.ravel()
            self._woven = width, rows, numbers(places, pa.int32())
        return self._woven[2]


# --- Rows that are laid out alike ----------------------------------------------------------------


@dataclass(frozen=True)
class Alike:
    """A group of rows, as arrays."""

    cells: Cells
    group: Group
    memo: Memo

    def __len__(self) -> int:
        return len(self.group.rows)

    def annotation(self, name: str) -> Values | None:
        return self.group.values.get(Place(MESSAGE_ANNOTATIONS, name))

    def section(self, code: int) -> dict[str, Values]:
        return {
            place.name: values
            for place, values in self.group.values.items()
            if place.section == code
        }

    def body(self) -> pa.Array:
        return cut_out(self.cells, self.group.values[BODY], self.memo)

    @cached_property
    def sequence(self) -> Places:
        values = self.annotation(SEQUENCE)
        if values is None:
            raise no_sequence(None)
        if values.kinds <= NUMBERS:
            return self.cells.integers(values)
        return sequence_of(decoded(self.cells, values))

    def enqueued(self) -> pa.Array:
        values = self.annotation(ENQUEUED)
        if values is None:
            return pa.nulls(len(self), TYPES["enqueuedTime"])
        if values.kinds <= INTEGERS:
            return times(self.cells.integers(values))
        return times_of(decoded(self.cells, values))

    def last_ms(self) -> int | None:
        """When the last one was enqueued, if that is a number."""
        values = self.annotation(ENQUEUED)
        if values is None or not values.kinds <= INTEGERS:
            return None
        return int(self.cells.integers(values.keep(LAST))[0])

    def text(self, name: str) -> pa.Array:
        values = self.annotation(name)
        if values is None:
            return pa.nulls(len(self), pa.string())
        if values.kinds <= TEXTS:
            return self.texts(values)
        return strings([text_or_none(value) for value in decoded(self.cells, values)])

    def properties(self) -> pa.Array:
        return self.map_of(self.section(APPLICATION_PROPERTIES))

    def system(self) -> pa.Array:
        notes = self.section(MESSAGE_ANNOTATIONS)
        kept = {name: values for name, values in notes.items() if name not in IN_COLUMNS}
        return self.map_of(kept | self.section(PROPERTIES))

    def map_of(self, entries: dict[str, Values]) -> pa.Array:
        """A map that has the same keys in every row."""
        rows, width = len(self), len(entries)
        items = self.interleave([self.texts(values) for values in entries.values()])
        offsets = numbers(np.arange(rows + 1) * width, pa.int32())
        return pa.MapArray.from_arrays(offsets, self.memo.repeat(tuple(entries), rows), items)

    def interleave(self, columns: list[pa.Array]) -> pa.Array:
        """First the first of each column, then the second of each, and so on."""
        if len(columns) < 2:
            return columns[0] if columns else strings([])
        return take(pa.concat_arrays(columns), self.memo.woven(len(columns), len(self)))

    def texts(self, values: Values) -> pa.Array:
        """Values as text_of would write them."""
        kinds = values.kinds
        if kinds <= TEXTS:
            return self.text_out(values)
        if kinds <= NUMBERS:
            return numbers(self.cells.integers(values), pa.int64()).cast(pa.string())
        if kinds <= BOOLEANS:
            return take(strings(["true", "false"]), numbers(values.codes - 0x41, pa.int8()))
        if kinds == {DOUBLE}:
            found = self.cells.each(">f8")[values.starts].astype(np.float64)
            size = np.abs(found)
            if every((size == 0) | ((size >= PLAIN_MIN) & (size < PLAIN_MAX))):
                return doubles(found)
        return strings(list(self.remembered(values)))

    def text_out(self, values: Values) -> pa.Array:
        """The text of each value, checked to be text."""
        found = cut_out(self.cells, values, self.memo).view(pa.string())
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:
            for _ in decoded(self.cells, values):
                pass  # one of them raises, and says where
            raise
        return found

    def remembered(self, values: Values) -> Iterator[str]:
        """The same for values of any kind, which are often the same ones."""
        for start, end in zip(*extents(values), strict=True):
            yield self.memo.text(bytes(self.cells.data[start:end]))


def extents(values: Values) -> tuple[list[int], list[int]]:
    """Where each value starts, constructor included, and where it ends."""
    starts = values.starts - HEADS[values.codes]
    return starts.tolist(), (values.starts + values.lengths).tolist()


# How many bytes stand before the content of a value: the constructor, and its size if it has one.
HEADS = np.array([1 + (WIDTHS[code >> 4] if code >= 0xA0 else 0) for code in range(256)], np.int64)


def decoded(cells: Cells, values: Values) -> Iterator[Any]:
    return (decode(cells.data, start, end)[0] for start, end in zip(*extents(values), strict=True))


def cut_out(cells: Cells, values: Values, memo: Memo) -> pa.Array:
    """The bytes of each value. They lie in the buffer in the order of the rows."""
    rows, size = len(values.starts), int(values.lengths[0])
    # What numpy makes is soon given back to the system, so large pieces are left to Arrow.
    if 0 < size <= NUMPY_BYTES_MAX and every(values.lengths == size):
        offsets = np.arange(0, rows * size + 1, size, dtype=np.int32)
        return binaries(offsets, cells.stretches(values.starts, size))
    # Seen as binaries that touch each other, every second one is a value.
    edges = np.empty(2 * rows, np.int32)
    edges[0::2], edges[1::2] = values.starts, values.starts + values.lengths
    return take(binaries(edges, cells.bytes), memo.evens(rows))


def take(found: pa.Array, places: pa.Array) -> pa.Array:
    """Some of the items; the places are ours, so nobody needs to check them."""
    return TAKE.call([found, places], UNCHECKED)


def binaries(offsets: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> pa.Array:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


# pyarrow.array and pyarrow.scalar import pandas when they are first used, which takes a second. So
# arrays are made of their buffers here.


def numbers(found: npt.NDArray[Any], kind: pa.DataType, valid: Mask | None = None) -> pa.Array:
    """A numpy array as one of Arrow's; null where it is not valid."""
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    exact = np.ascontiguousarray(found, NUMPY_TYPES[kind])
    return pa.Array.from_buffers(kind, len(exact), [bits, pa.py_buffer(exact)])


def packed(items: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    """Byte strings as an array of binaries or of strings."""
    lengths = [0 if item is None else len(item) for item in items]
    offsets = np.zeros(len(items) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    bits = None
    if None in items:
        bits = pa.py_buffer(np.packbits([item is not None for item in items], bitorder="little"))
    data = b"".join(item for item in items if item is not None)
    buffers = [bits, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(items), buffers)


def repeated(names: Sequence[str], times: int) -> pa.Array:
    """The same strings over and over."""
    items = [name.encode() for name in names]
    offsets = np.zeros(len(items) * times + 1, np.int32)
    np.cumsum(np.tile([len(item) for item in items], times), out=offsets[1:])
    return binaries(offsets, np.frombuffer(b"".join(items) * times, np.uint8)).view(pa.string())


def strings(items: Sequence[str | None]) -> pa.Array:
    return packed([None if item is None else item.encode() for item in items], pa.string())


def doubles(found: npt.NDArray[np.float64]) -> pa.Array:
    """Plain doubles as text."""
    texts = numbers(found, pa.float64()).cast(pa.string())
    whole = numbers(found == np.floor(found), pa.int8())
    return pc.binary_join_element_wise(
        texts, take(strings(["", ".0"]), whole), repeated([""], len(found))
    )


def times(ms: Places) -> pa.Array:
    """Milliseconds as Arrow's timestamps in microseconds."""
    for extreme in (ms.min(initial=0), ms.max(initial=0)):
        if not -MS_MAX < extreme < MS_MAX:
            raise no_time(int(extreme))
    return numbers(ms * 1000, TYPES["enqueuedTime"])


# --- Messages that were decoded alone ------------------------------------------------------------


@dataclass(frozen=True)
class Alone:
    """Single messages, as arrays."""

    messages: list[Message]

    def __len__(self) -> int:
        return len(self.messages)

    def annotation(self, name: str) -> Iterator[Any]:
        return (message.annotations.get(name) for message in self.messages)

    def body(self) -> pa.Array:
        return packed([body_of(message) for message in self.messages], pa.binary())

    @cached_property
    def sequence(self) -> Places:
        return sequence_of(self.annotation(SEQUENCE))

    def enqueued(self) -> pa.Array:
        return times_of(self.annotation(ENQUEUED))

    def last_ms(self) -> int | None:
        found = self.messages[-1].annotations.get(ENQUEUED)
        return int(found) if isinstance(found, int) else None

    def text(self, name: str) -> pa.Array:
        return strings([text_or_none(value) for value in self.annotation(name)])

    def properties(self) -> pa.Array:
        return self.map_of(message.application for message in self.messages)

    def system(self) -> pa.Array:
        return self.map_of(system_properties(message) for message in self.messages)

    def map_of(self, found: Iterable[Mapping[Any, Any]]) -> pa.Array:
        texts = [{text_of(key): text_of(value) for key, value in one.items()} for one in found]
        offsets = np.cumsum([0, *map(len, texts)])
        return pa.MapArray.from_arrays(
            numbers(offsets, pa.int32()),
            strings([key for one in texts for key in one]),
            strings([value for one in texts for value in one.values()]),
        )


def system_properties(message: Message) -> dict[Any, Any]:
    """Annotations that are no columns, and the properties of the message by their AMQP names."""
    found = {key: value for key, value in message.annotations.items() if key not in IN_COLUMNS}
    for spec in specs(Properties) if message.properties else ():
        value = getattr(message.properties, spec.name)
        if value is not None:
            found[hyphen(spec.name)] = value
    return found


# --- What both say of odd values -----------------------------------------------------------------


def sequence_of(found: Iterable[Any]) -> Places:
    checked = [value if is_integer(value) else None for value in found]
    for value in checked:
        if value is None or not ~INT64_MAX <= value <= INT64_MAX:
            raise no_sequence(value)
    return np.array(checked, np.int64)


def times_of(found: Iterable[Any]) -> pa.Array:
    ms = [value if is_integer(value) or isinstance(value, Timestamp) else None for value in found]
    for value in ms:
        if value is not None and abs(value) >= MS_MAX:
            raise no_time(value)
    valid = np.array([value is not None for value in ms], np.bool_)
    micros = np.array([0 if value is None else value * 1000 for value in ms], np.int64)
    return numbers(micros, TYPES["enqueuedTime"], None if valid.all() else valid)


def is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool | Timestamp)


def text_or_none(value: Any) -> str | None:
    return None if value is None else text_of(value)


def no_sequence(found: Any) -> RemoteProtocolError:
    return RemoteProtocolError(f"an event came with {found!r} as its sequence number")


def no_time(ms: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"an event came with {ms} ms as its enqueued time")
