"""Writes rows as a task of Spark does, without Spark."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from pumphouse.spark.sink import batch_writer
from tests.spark.conftest import Hub
from tests.spark.support.readers import options_for


def write(hub: Hub, rows: pa.RecordBatch, **options: str) -> None:
    schema = from_arrow_schema(rows.schema)
    writer = batch_writer(options_for(hub, **options), schema, overwrite=False)
    writer.write(iter([rows]))


def two_rows(**columns: Any) -> pa.RecordBatch:
    """Two rows with a body, and more columns."""
    return pa.RecordBatch.from_pydict({"body": ["a", "b"], **columns})
