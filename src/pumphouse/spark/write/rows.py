"""Converts the rows that Spark writes to events, with errors that name the row.

    RecordBatch -> RowFormat.events, plain_rows -> OutgoingRows -> sender
                   ^^^^^^^^^ this module ^^^^^^^^^^^^^^^^^^^^^^^

A row has a body (string or binary), and optionally partitionId (or partition), partitionKey and
properties. Partition and key can be options instead, if they are the same for all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.types import BinaryType, MapType, StringType, StructType

from pumphouse.client.base import PlainEvents, encode_event
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.spark.deduplication import BATCH, IDENTITY, QUERY, ROW, TASK, name_row
from pumphouse.spark.options import SinkOptions

BATCH_ROWS = 1000  # rows of Spark that are converted to one Arrow batch
PARTITION_NAMES = ("partitionId", "partition")
COLUMNS = ("body", *PARTITION_NAMES, "partitionKey", "properties")
# Columns of rows that were read from a hub. The hub that gets the rows sets them again.
SET_BY_THE_HUB = (
    "offset",
    "sequenceNumber",
    "enqueuedTime",
    "publisher",
    "systemProperties",
    "hub",
)
STANDARD_NAMES = {name.lower(): name for name in (*COLUMNS, *SET_BY_THE_HUB)}


@dataclass(frozen=True, slots=True)
class RowOrigin:
    """What identifies the rows of a task: the same if Spark runs the task again."""

    query: str
    batch: str
    task: int

    def properties(self, row: int, body: bytes, key: str | None) -> dict[str, Any]:
        row_name = name_row(row, body, key)
        return {QUERY: self.query, BATCH: self.batch, TASK: self.task, ROW: row_name}


def without_identity(properties: dict[str, Any]) -> dict[str, Any]:
    """Properties without those by which another query has named the row that it wrote.

    Several rows may come from one such event: they are not duplicates.
    """
    if QUERY not in properties:
        return properties
    return {name: value for name, value in properties.items() if name not in IDENTITY}


@dataclass(frozen=True, slots=True)
class OutgoingRows:
    """Rows for one partition: their numbers in the task, and their events."""

    numbers: Sequence[int]
    events: Sequence[Event] | PlainEvents

    def __str__(self) -> str:
        first, last = min(self.numbers), max(self.numbers)
        if first == last:
            return f"row {first} of the task"
        return f"rows {first} to {last} of the task"

    def body_bytes(self) -> int:
        if isinstance(self.events, PlainEvents):
            return sum(sum(map(len, bodies)) for _, bodies in self.events.groups)
        return sum(len(event.body) for event in self.events)

    def largest(self) -> tuple[int, Event]:
        """The row whose event is the largest: properties count as well."""
        rows = zip(self.numbers, self.events, strict=True)
        return max(rows, key=lambda row: len(encode_event(row[1])))


@dataclass(frozen=True, slots=True)
class RowFormat:
    """Which column holds what; checked when a query starts."""

    partition_column: str | None
    key_column: str | None
    properties_column: str | None
    partition: str | None
    key: str | None
    body_column: str = "body"
    was_read: bool = False  # rows of a hub: those with a key have a partition too

    def events(
        self, batch: pa.RecordBatch, first_row: int, origin: RowOrigin | None
    ) -> Iterator[tuple[str | None, Event]]:
        """Each row as the partition it goes to (None: the hub chooses) and the event."""
        bodies = read_bodies(batch, first_row, self.body_column)
        partitions = self.column(batch, self.partition_column)
        if partitions is not None and "" in partitions:
            row = first_row + partitions.index("")
            raise invalid_row(row, "has an empty partition; write null to let the hub choose one")
        keys = self.column(batch, self.key_column)
        properties = self.column(batch, self.properties_column)
        for index in range(batch.num_rows):
            row = first_row + index
            partition = self.partition if partitions is None else partitions[index]
            key = self.key if keys is None else keys[index]
            if partition is not None and key is not None:
                if self.was_read:
                    partition = None  # the key chooses it
                else:
                    raise invalid_row(
                        row, f"has a partition ({partition}) and a key ({key}); set one to null"
                    )
            event_properties = as_properties(row, None if properties is None else properties[index])
            event_properties = without_identity(event_properties)
            if origin is not None:
                event_properties |= origin.properties(row, bodies[index], key)
            yield partition, Event(bodies[index], event_properties, key)

    def is_plain(self, origin: RowOrigin | None) -> bool:
        """Whether the rows go to one partition, need no check and have no properties."""
        if self.partition is not None and (self.key_column is not None or self.key is not None):
            return False
        others = self.partition_column, self.properties_column, origin
        return all(other is None for other in others)

    def plain_rows(self, pieces: Sequence[pa.RecordBatch], first_row: int) -> OutgoingRows:
        """Rows for which `is_plain` holds; those of one key side by side."""
        bodies: list[bytes] = []
        for piece in pieces:
            bodies += read_bodies(piece, first_row + len(bodies), self.body_column)
        numbers = range(first_row, first_row + len(bodies))
        if self.key_column is None:
            return OutgoingRows(numbers, PlainEvents([(self.key, bodies)]))
        keys = pa.concat_arrays([piece.column(self.key_column) for piece in pieces])
        order, groups = order_by_key(keys)
        ordered = [*map(bodies.__getitem__, order.tolist())]
        by_key = [(key, ordered[first:last]) for key, first, last in groups]
        return OutgoingRows((order + first_row).tolist(), PlainEvents(by_key))

    def record_batches(self, rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Rows of Spark as Arrow batches, with the columns that are written."""
        types = {
            name: type_
            for name, type_ in (
                (self.body_column, pa.binary()),
                (self.partition_column, pa.string()),
                (self.key_column, pa.string()),
                (self.properties_column, pa.map_(pa.string(), pa.string())),
            )
            if name is not None
        }
        for chunk in batched(rows, BATCH_ROWS):
            columns = [arrow_column([row[name] for row in chunk], types[name]) for name in types]
            yield pa.RecordBatch.from_arrays(columns, names=list(types))

    @staticmethod
    def column(batch: pa.RecordBatch, name: str | None) -> list[Any] | None:
        return None if name is None else batch.column(name).to_pylist()


def order_by_key(
    keys: pa.Array,
) -> tuple[npt.NDArray[np.intp], list[tuple[str | None, int, int]]]:
    """The order of rows that puts those of one key side by side, and where each key then is.

    Rows of one key keep their order.
    """
    encoded = keys.dictionary_encode(null_encoding="encode")
    indices = encoded.indices.to_numpy()
    order = np.argsort(indices, kind="stable")
    edges = [0, *np.cumsum(np.bincount(indices)).tolist()]
    names: list[str | None] = encoded.dictionary.to_pylist()
    return order, list(zip(names, edges[:-1], edges[1:], strict=True))


def arrow_column(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Values of Spark's rows, in which maps are dicts, as an Arrow column."""
    if pa.types.is_map(type_):
        values = [None if value is None else list(value.items()) for value in values]
    return pa.array(values, type_)


def batched(rows: Iterable[Any], size: int) -> Iterator[list[Any]]:
    remaining = iter(rows)
    while chunk := list(islice(remaining, size)):
        yield chunk


def read_bodies(batch: pa.RecordBatch, first_row: int, name: str = "body") -> list[bytes]:
    """The column body. Arrow stores text as UTF-8, so the column is converted as a whole."""
    column = batch.column(name)
    if column.null_count:
        row = first_row + column.is_null().index(True).as_py()
        raise invalid_row(row, "has no body (null); filter such rows out, or write an empty string")
    bodies: list[bytes] = column.cast(pa.binary()).to_numpy(zero_copy_only=False).tolist()
    return bodies


def as_properties(row: int, value: Any) -> dict[str, Any]:
    """A map of Arrow, which is a list of pairs, as a dict."""
    if value is None:
        return {}
    properties = dict(value)
    for name, text in properties.items():
        if name is None or text is None:
            raise invalid_row(
                row, f"has a null in its properties (at {name!r}); leave the entry out"
            )
    return properties


def invalid_row(row: int, what: str) -> OptionError:
    return OptionError(f"row {row} of the task {what}")


# -- checking a schema ----------------------------------------------------------------------------


def read_row_format(schema: StructType, options: SinkOptions) -> RowFormat:
    """The format of the rows; OptionError if they cannot be written."""
    types = {standard_name(column.name): column.dataType for column in schema.fields}
    if len(types) < len(schema.fields):
        raise OptionError(f"the rows have a column twice: {', '.join(schema.names)}")
    if "body" not in types:
        present = ", ".join(types) or "nothing"
        raise OptionError(
            f"the column body (string or binary) is missing: the rows have {present}. "
            'Add it, for example with to_json(struct("*")).alias("body")'
        )
    if unknown := [name for name in types if name not in (*COLUMNS, *SET_BY_THE_HUB)]:
        raise OptionError(
            f"unknown column {unknown[0]!r}: the sink writes {', '.join(COLUMNS)}. "
            "Drop it, or put it into body or properties"
        )
    check_type("body", types, lambda type_: isinstance(type_, StringType | BinaryType))
    for name in (*PARTITION_NAMES, "partitionKey"):
        check_type(name, types, lambda type_: isinstance(type_, StringType))
    check_type("properties", types, is_text_map)
    partition_columns = [name for name in PARTITION_NAMES if name in types]
    if len(partition_columns) > 1:
        raise OptionError("the columns partitionId and partition mean the same; keep one of them")
    if partition_columns and options.partition is not None:
        raise OptionError(
            f"the option partitionId and the column {partition_columns[0]} exclude each other; "
            "keep one of them"
        )
    if "partitionKey" in types and options.key is not None:
        raise OptionError("partitionKey is given as an option and as a column; keep one of them")
    written = {standard_name(name): name for name in schema.names}
    return RowFormat(
        partition_column=written[partition_columns[0]] if partition_columns else None,
        key_column=written.get("partitionKey"),
        properties_column=written.get("properties"),
        partition=options.partition,
        key=options.key,
        body_column=written["body"],
        was_read=any(name in types for name in SET_BY_THE_HUB),
    )


def standard_name(name: str) -> str:
    """The name of a column in our spelling: as in SQL, upper and lower case are the same."""
    return STANDARD_NAMES.get(name.lower(), name)


def check_type(name: str, types: dict[str, Any], fits: Callable[[Any], bool]) -> None:
    type_ = types.get(name)
    if type_ is not None and not fits(type_):
        allowed = {"body": "string or binary", "properties": "map<string,string>"}
        raise OptionError(
            f"the column {name} is {type_.simpleString()}; it must be {allowed.get(name, 'string')}"
        )


def is_text_map(type_: Any) -> bool:
    return (
        isinstance(type_, MapType)
        and isinstance(type_.keyType, StringType)
        and isinstance(type_.valueType, StringType)
    )
