"""The columns of the source, and those that a user asked for with `.schema(...)`.

Spark cannot tell a Python source which columns a query needs; a user can, by naming a part of the
schema. The others are then neither decoded nor moved.
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


# What every event has; a schema may call these NOT NULL.
ALWAYS = ("body", "partition", "offset", "sequenceNumber", "enqueuedTime")


def check_columns(schema: StructType) -> tuple[str, ...]:
    """The names of the columns wanted; OptionError if one is unknown or of another type."""
    if twice := [name for name in schema.names if schema.names.count(name) > 1]:
        raise OptionError(f"the schema names the column {twice[0]} twice")
    for wanted in schema.fields:
        known = TYPES.get(wanted.name)
        if known is None:
            raise OptionError(
                f"the source has no column {wanted.name!r}; it has {', '.join(TYPES)}"
            )
        if wanted.dataType != known:
            raise OptionError(
                f"the column {wanted.name} is {known.simpleString()}, and the schema says "
                f"{wanted.dataType.simpleString()}; cast it in the query"
            )
        if not wanted.nullable and wanted.name not in ALWAYS:
            raise OptionError(
                f"the column {wanted.name} may be null, and the schema says NOT NULL; leave it out"
            )
    return tuple(schema.names)


def required_columns(schema: StructType) -> tuple[str, ...]:
    """The columns that the schema calls NOT NULL: Spark wants batches that say the same."""
    return tuple(column.name for column in schema.fields if not column.nullable)
