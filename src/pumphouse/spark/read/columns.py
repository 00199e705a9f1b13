"""The columns of the source, and those that a query selects with `.schema(...)`.

Spark does not pass the columns that a query needs to a Python source. So a query may
give a schema with fewer columns: the others are then neither decoded nor copied.
"""

from __future__ import annotations

from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

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

# Every event has these; a schema may declare them NOT NULL.
NEVER_NULL = ("body", "partition", "offset", "sequenceNumber", "enqueuedTime")


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The names of the columns; OptionError if one is unknown or has another type."""
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise OptionError(f"the schema names the column {twice[0]} twice")
    for field in schema.fields:
        known = TYPES.get(field.name)
        if known is None:
            raise OptionError(f"the source has no column {field.name!r}; it has {', '.join(TYPES)}")
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
