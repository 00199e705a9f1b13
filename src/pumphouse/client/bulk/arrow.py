"""Builds Arrow record batches from columns of events.

Names and types are those of the Spark connector of Azure. Groups of rows with the same layout
become arrays without a Python object per row: Arrow copies text and bodies out of the receive
buffer, numpy the numbers. Messages that are in no group (`Columns.singles`) are converted one by
one, with the same result.

    amqp.Columns -> BatchBuilder.rows -> Rows.batch -> pyarrow.RecordBatch
                    ^^^^^^^^^^^^ this module ^^^^^^

It needs pyarrow, which the extra `spark` installs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pumphouse.amqp.columnar.buffer_view import (
    BINARIES,
    BODY,
    INTEGERS,
    STRINGS,
    SYMBOLS,
    BufferView,
    IntArray,
    ValueId,
    Values,
    all_true,
)
from pumphouse.amqp.columnar.columns import NO_ROWS, Columns, Group
from pumphouse.amqp.composites import hyphen, specs
from pumphouse.amqp.messages import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Message,
    Properties,
)
from pumphouse.client.batches import ENQUEUED, KEY, OFFSET, SEQUENCE, body_of
from pumphouse.client.bulk.arrays import (
    TIME_US,
    ArrayCache,
    binary_array,
    decoded,
    doubles_as_text,
    extents,
    invalid_sequence,
    numbers,
    sequence_of,
    slice_values,
    string_array,
    take,
    text_or_none,
    timestamps,
    timestamps_of,
)
from pumphouse.client.bulk.texts import text_of
from pumphouse.errors import OptionError

PUBLISHER = "x-opt-publisher"
IN_COLUMNS = (SEQUENCE, OFFSET, ENQUEUED)  # annotations with a column of their own

TEXT_MAP = pa.map_(pa.string(), pa.string())
TYPES: Mapping[str, pa.DataType] = {
    "body": pa.binary(),
    "partition": pa.string(),
    "offset": pa.string(),
    "sequenceNumber": pa.int64(),
    "enqueuedTime": TIME_US,
    "publisher": pa.string(),
    "partitionKey": pa.string(),
    "properties": TEXT_MAP,
    "systemProperties": TEXT_MAP,
}
ALL_COLUMNS = tuple(TYPES)

# Constructors.
TEXTS = STRINGS | SYMBOLS
TIME, DOUBLE = 0x83, 0x82
BOOLEANS = frozenset((0x41, 0x42))
NUMBERS = INTEGERS - {TIME}  # timestamps become ISO 8601 text
# In this range Arrow writes a double as Python does, except for the ".0" of a whole number.
PLAIN_MIN, PLAIN_MAX = 1e-4, 1e10
LAST = np.array([-1])  # the index of the last row


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of some columns, in the given order."""
    return schema_of_names(tuple(columns))


@cache
def schema_of_names(names: tuple[str, ...]) -> pa.Schema:
    unknown = [name for name in names if name not in TYPES]
    if unknown or not names or len(set(names)) < len(names):
        wrong = (
            f"{unknown[0]!r} is not one of them" if unknown else f"got {', '.join(names) or 'none'}"
        )
        raise OptionError(f"columns must be some of {', '.join(TYPES)}, each once; {wrong}")
    return pa.schema([(name, TYPES[name]) for name in names])


class BatchBuilder:
    """Builds record batches from the events of one partition."""

    def __init__(self, partition: str, columns: Iterable[str] = ALL_COLUMNS) -> None:
        self.partition = partition
        self.schema = schema_of(columns)
        self.cache = ArrayCache()

    def rows(self, columns: Columns) -> Rows:
        """The rows of received columns. They refer to the buffer until a batch is built."""
        groups = [GroupRows(columns.view, group, self.cache) for group in columns.groups]
        singles = [MessageRows(list(columns.singles.values()))] if columns.singles else []
        return Rows(self, groups, singles, columns.order())

    def arrays(self, part: GroupRows | MessageRows, names: Iterable[str]) -> dict[str, pa.Array]:
        """Some columns of a part."""
        makers: dict[str, Callable[[], pa.Array]] = {
            "body": part.body,
            "partition": lambda: self.cache.repeat((self.partition,), len(part)),
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
    """Received rows in parts: groups with the same layout, then single messages."""

    batches: BatchBuilder
    groups: list[GroupRows]
    singles: list[MessageRows]  # at most one
    order: IntArray | None  # indexes that sort the concatenated parts; None if sorted

    @property
    def parts(self) -> list[GroupRows | MessageRows]:
        return [*self.groups, *self.singles]

    def sequence(self) -> IntArray:
        """The sequence number of each row."""
        sequences = np.concatenate([NO_ROWS, *(part.sequence for part in self.parts)])
        return sequences if self.order is None else sequences[self.order]

    def newest_ms(self) -> int | None:
        """The latest enqueued time of the rows, if any."""
        return max((ms for part in self.parts if (ms := part.last_ms()) is not None), default=None)

    def batch(self) -> pa.RecordBatch:
        """The rows as a record batch."""
        schema = self.batches.schema
        # Bodies last: they would evict the data of the other columns from the CPU cache.
        names = sorted(schema.names, key="body".__eq__)
        bodies_last = names[-1] == "body" and not self.singles
        parts = [
            self.batches.arrays(part, names[:-1] if bodies_last else names) for part in self.parts
        ]
        arrays = {name: self.joined([part[name] for part in parts]) for name in parts[0]}
        if bodies_last:
            arrays["body"] = self.bodies()
        return pa.RecordBatch.from_arrays([arrays[name] for name in schema.names], schema=schema)

    def joined(self, columns: list[pa.Array]) -> pa.Array:
        """The same column of all parts, as one."""
        combined = columns[0] if len(columns) == 1 else pa.concat_arrays(columns)
        return combined if self.order is None else take(combined, numbers(self.order, pa.int64()))

    def bodies(self) -> pa.Array:
        """The bodies of rows that are all in the buffer: sorted first, then copied once."""
        if len(self.groups) == 1:
            return self.groups[0].body()
        bodies = [part.group.values[BODY] for part in self.groups]
        values = Values(
            np.concatenate([values.codes for values in bodies]),
            np.concatenate([values.starts for values in bodies]),
            np.concatenate([values.lengths for values in bodies]),
            BINARIES,
        )
        values = values if self.order is None else values.keep(self.order)
        return slice_values(self.groups[0].view, values, self.batches.cache)


# --- Rows with the same layout -------------------------------------------------------------------


@dataclass(frozen=True)
class GroupRows:
    """Rows with the same layout, as arrays."""

    view: BufferView
    group: Group
    cache: ArrayCache

    def __len__(self) -> int:
        return len(self.group.rows)

    def annotation(self, name: str) -> Values | None:
        return self.group.values.get(ValueId(MESSAGE_ANNOTATIONS, name))

    def section(self, code: int) -> dict[str, Values]:
        return {
            value_id.name: values
            for value_id, values in self.group.values.items()
            if value_id.section == code
        }

    def body(self) -> pa.Array:
        return slice_values(self.view, self.group.values[BODY], self.cache)

    @cached_property
    def sequence(self) -> IntArray:
        values = self.annotation(SEQUENCE)
        if values is None:
            raise invalid_sequence(None)
        if values.kinds <= NUMBERS:
            return self.view.integers(values)
        return sequence_of(decoded(self.view, values))

    def enqueued(self) -> pa.Array:
        values = self.annotation(ENQUEUED)
        if values is None:
            return pa.nulls(len(self), TYPES["enqueuedTime"])
        if values.kinds <= INTEGERS:
            return timestamps(self.view.integers(values))
        return timestamps_of(decoded(self.view, values))

    def last_ms(self) -> int | None:
        """The enqueued time of the last row, if it is a number."""
        values = self.annotation(ENQUEUED)
        if values is None or not values.kinds <= INTEGERS:
            return None
        return int(self.view.integers(values.keep(LAST))[0])

    def text(self, name: str) -> pa.Array:
        values = self.annotation(name)
        if values is None:
            return pa.nulls(len(self), pa.string())
        if values.kinds <= TEXTS:
            return self.texts(values)
        return string_array([text_or_none(value) for value in decoded(self.view, values)])

    def properties(self) -> pa.Array:
        return self.map_of(self.section(APPLICATION_PROPERTIES))

    def system(self) -> pa.Array:
        annotations = self.section(MESSAGE_ANNOTATIONS)
        kept = {name: values for name, values in annotations.items() if name not in IN_COLUMNS}
        return self.map_of(kept | self.section(PROPERTIES))

    def map_of(self, entries: dict[str, Values]) -> pa.Array:
        """A map column with the same keys in every row."""
        rows, width = len(self), len(entries)
        items = self.interleave([self.texts(values) for values in entries.values()])
        offsets = numbers(np.arange(rows + 1) * width, pa.int32())
        return pa.MapArray.from_arrays(offsets, self.cache.repeat(tuple(entries), rows), items)

    def interleave(self, columns: list[pa.Array]) -> pa.Array:
        """The first value of each column, then the second of each, and so on."""
        if len(columns) < 2:
            return columns[0] if columns else string_array([])
        return take(pa.concat_arrays(columns), self.cache.interleaved(len(columns), len(self)))

    def texts(self, values: Values) -> pa.Array:
        """Values as `text_of` writes them."""
        kinds = values.kinds
        if kinds <= TEXTS:
            return self.checked_texts(values)
        if kinds <= NUMBERS:
            return numbers(self.view.integers(values), pa.int64()).cast(pa.string())
        if kinds <= BOOLEANS:
            return take(string_array(["true", "false"]), numbers(values.codes - 0x41, pa.int8()))
        if kinds == {DOUBLE}:
            doubles = self.view.as_type(">f8")[values.starts].astype(np.float64)
            magnitude = np.abs(doubles)
            in_range = (magnitude >= PLAIN_MIN) & (magnitude < PLAIN_MAX)
            if all_true((magnitude == 0) | in_range):
                return doubles_as_text(doubles)
        return string_array(list(self.cached_texts(values)))

    def checked_texts(self, values: Values) -> pa.Array:
        """The text of each value, checked to be UTF-8."""
        texts = slice_values(self.view, values, self.cache).view(pa.string())
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            for _ in decoded(self.view, values):
                pass  # one of them raises MalformedBytes
            raise
        return texts

    def cached_texts(self, values: Values) -> Iterator[str]:
        """The texts of values of any type, from a cache."""
        for start, end in zip(*extents(values), strict=True):
            yield self.cache.text(bytes(self.view.data[start:end]))


# --- Single messages -----------------------------------------------------------------------------


@dataclass(frozen=True)
class MessageRows:
    """Single messages, as arrays."""

    messages: list[Message]

    def __len__(self) -> int:
        return len(self.messages)

    def annotation(self, name: str) -> Iterator[Any]:
        return (message.annotations.get(name) for message in self.messages)

    def body(self) -> pa.Array:
        return binary_array([body_of(message) for message in self.messages], pa.binary())

    @cached_property
    def sequence(self) -> IntArray:
        return sequence_of(self.annotation(SEQUENCE))

    def enqueued(self) -> pa.Array:
        return timestamps_of(self.annotation(ENQUEUED))

    def last_ms(self) -> int | None:
        enqueued = self.messages[-1].annotations.get(ENQUEUED)
        return int(enqueued) if isinstance(enqueued, int) else None

    def text(self, name: str) -> pa.Array:
        return string_array([text_or_none(value) for value in self.annotation(name)])

    def properties(self) -> pa.Array:
        return self.map_of(message.application for message in self.messages)

    def system(self) -> pa.Array:
        return self.map_of(system_properties(message) for message in self.messages)

    def map_of(self, maps: Iterable[Mapping[Any, Any]]) -> pa.Array:
        texts = [{text_of(key): text_of(value) for key, value in map_.items()} for map_ in maps]
        offsets = np.cumsum([0, *map(len, texts)])
        return pa.MapArray.from_arrays(
            numbers(offsets, pa.int32()),
            string_array([key for text_map in texts for key in text_map]),
            string_array([value for text_map in texts for value in text_map.values()]),
        )


def system_properties(message: Message) -> dict[Any, Any]:
    """Annotations without a column, and message properties by their AMQP names."""
    properties = {key: value for key, value in message.annotations.items() if key not in IN_COLUMNS}
    for spec in specs(Properties) if message.properties else ():
        value = getattr(message.properties, spec.name)
        if value is not None:
            properties[hyphen(spec.name)] = value
    return properties
