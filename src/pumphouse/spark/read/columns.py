"""The columns of the source, and those that a query selects with `.schema(...)`.

Spark does not pass the columns that a query needs to a Python source. So a query may
give a schema with fewer columns: the others are then neither decoded nor copied.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from pumphouse.client.bulk import TYPES as ARROW_TYPES
from pumphouse.errors import OptionError

TEXT_MAP = MapType(StringType(), StringType())
TYPES: dict[str, DataType] = {
    "body": BinaryType(),
    "partition": StringType(),
    "offset": StringType(),
    "sequenceNumber": LongType(),
    "enqueuedTime": TimestampType(),
    "publisher": StringType(),
    "partitionKey": StringType(),
    "properties": TEXT_MAP,
    "systemProperties": TEXT_MAP,
}

# The hub of an event. Queries of several hubs have this column, others only if their schema has it.
HUB = "hub"
ALL_TYPES: dict[str, DataType] = {**TYPES, HUB: StringType()}

# Every event has these; a schema may declare them NOT NULL.
NEVER_NULL = ("body", "partition", "offset", "sequenceNumber", "enqueuedTime", HUB)


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The names of the columns; OptionError if one is unknown or has another type."""
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise OptionError(f"the schema names the column {twice[0]} twice")
    for field in schema.fields:
        known = ALL_TYPES.get(field.name)
        if known is None:
            raise OptionError(
                f"the source has no column {field.name!r}; it has {', '.join(ALL_TYPES)}"
            )
        if field.dataType != known:
            raise OptionError(
                f"the column {field.name} is {known.simpleString()}, and the schema has "
                f"{field.dataType.simpleString()}; cast it in the query"
            )
        if not field.nullable and field.name not in NEVER_NULL:
            raise OptionError(
                f"the column {field.name} may be null, and the schema has NOT NULL; remove NOT NULL"
            )
    return tuple(schema.names)


def required_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that the schema declares NOT NULL: Spark expects the same of record batches."""
    return tuple(column.name for column in schema.fields if not column.nullable)


def batch_converter(
    columns: tuple[str, ...], read: tuple[str, ...], *, required: tuple[str, ...], hub: str
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Converts batches of the columns `read` to the schema of the query.

    Columns that were not read are null. The column `hub` is the name of the hub in every row.
    """
    if columns == read and not required:
        return lambda batch: batch
    types = {**ARROW_TYPES, HUB: pa.string()}
    schema = pa.schema([pa.field(name, types[name], name not in required) for name in columns])

    def column(batch: pa.RecordBatch, name: str) -> pa.Array:
        if name == HUB:
            return pa.repeat(pa.scalar(hub), batch.num_rows)
        if name in read:
            return batch.column(read.index(name))
        return pa.nulls(batch.num_rows, types[name])

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = [column(batch, name) for name in columns]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    return convert
