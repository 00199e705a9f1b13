"""A query without Spark: asks a reader what Spark would ask, in its order, in this process."""

from __future__ import annotations

import socket
from collections import Counter
from types import TracebackType
from typing import Any, Self

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructField, StructType

from pumphouse.spark.columns import TYPES
from pumphouse.spark.source import BatchReader, StreamReader

from .conftest import Hub

SCHEMA = StructType([StructField(name, kind) for name, kind in TYPES.items()])
PATIENT = {"retry.backoff": "20ms"}  # what is wrong stays wrong: no need to wait for it


def given(hub: Hub, **options: str) -> dict[str, str]:
    return {"connectionString": hub.connection} | PATIENT | options


def read_batch(hub: Hub, **options: str) -> Counter[str]:
    """A whole batch; the rows of each partition."""
    reader = BatchReader(given(hub, **options), SCHEMA)
    return sum((rows_of(reader, part) for part in reader.partitions()), Counter[str]())


def rows_of(reader: BatchReader | StreamReader, part: Any) -> Counter[str]:
    found = Counter[str]()
    for batch in reader.read(part):
        found.update(batch.column("partition").to_pylist())
    return found


class Run:
    """One run of a stream, batch by batch."""

    def __init__(self, hub: Hub, **options: str) -> None:
        earliest = {"startingPosition": "earliest"}
        self.reader = StreamReader(given(hub, **earliest | options), SCHEMA)
        self.offset: dict[str, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.reader.stop()

    def plan(self, rows: int = 1000) -> list[Any]:
        """The tasks of the next batch."""
        if not self.offset:
            self.offset = self.reader.initialOffset()
        end = self.reader.latestOffset(self.offset, ReadMaxRows(rows))
        parts = list(self.reader.partitions(self.offset, end))
        self.offset = end
        return parts

    def batch(self, rows: int = 1000) -> Counter[str]:
        """The next batch; the rows of each partition."""
        return sum((rows_of(self.reader, part) for part in self.plan(rows)), Counter[str]())

    def reported(self) -> dict[str, Any]:
        return self.reader.reportLatestOffset() or {}


both_drivers = pytest.mark.parametrize("driver", ["native", "azure"])


def with_wrong_key(hub: Hub) -> str:
    key = hub.connection.split("SharedAccessKey=")[1].split(";")[0]
    return hub.connection.replace(key, "d3Jvbmc=")


def string_of(server: socket.socket) -> str:
    """As if there were a hub behind the socket."""
    endpoint = f"Endpoint=sb://127.0.0.1:{server.getsockname()[1]};SharedAccessKeyName=k"
    return f"{endpoint};SharedAccessKey=a2V5;EntityPath=sensors;UseDevelopmentEmulator=true"
