"""A query without Spark: calls a reader as Spark does, in this process."""

from __future__ import annotations

import socket
from collections import Counter
from types import TracebackType
from typing import Any, Self

import pytest
from pyspark.sql.types import StructField, StructType

from pumphouse.spark.driver.all_partitions import AllPartitionsDriver
from pumphouse.spark.driver.base import QueryRun
from pumphouse.spark.read.columns import TYPES
from pumphouse.spark.source import BatchReader, StreamReader
from pumphouse.spark.versions.streams import StreamCallsBase
from tests.spark.conftest import Hub

SCHEMA = StructType([StructField(name, kind) for name, kind in TYPES.items()])
PRUNED = StructType([SCHEMA["body"], SCHEMA["sequenceNumber"]])
FAST_RETRIES = {"retry.backoff": "20ms"}


def options_for(hub: Hub, **options: str) -> dict[str, str]:
    named = "name" in options
    connection = hub.embedded.connection_string() if named else hub.connection
    return {"connectionString": connection} | FAST_RETRIES | options


def read_batch(hub: Hub, **options: str) -> Counter[str]:
    """A batch query; the number of rows of each partition."""
    reader = BatchReader(options_for(hub, **options), SCHEMA)
    return sum((count_rows(reader, task) for task in reader.partitions()), Counter[str]())


def count_rows(reader: BatchReader | StreamCallsBase, task: Any) -> Counter[str]:
    """The number of rows of each partition."""
    rows = Counter[str]()
    for batch in reader.read(task):
        rows.update(batch.column("partition").to_pylist())
    return rows


class Run:
    """One run of a stream, batch by batch."""

    schema = SCHEMA

    def __init__(self, hub: Hub, **options: str) -> None:
        earliest = {"startingPosition": "earliest"}
        self.reader = StreamReader(options_for(hub, **earliest | options), self.schema)
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
        end = self.reader.driver.latest_offset(self.offset, rows)
        tasks = list(self.reader.partitions(self.offset, end))
        self.offset = end
        return tasks

    def batch(self, rows: int = 1000) -> Counter[str]:
        """Read the next batch; the number of rows of each partition."""
        return sum((count_rows(self.reader, task) for task in self.plan(rows)), Counter[str]())

    @property
    def query_run(self) -> QueryRun:
        assert isinstance(self.reader.driver, AllPartitionsDriver)
        return self.reader.driver.run

    def report(self) -> dict[str, Any]:
        return self.reader.driver.report()


class PrunedRun(Run):
    """A run of a stream with `.schema("body binary, sequenceNumber long")`."""

    schema = PRUNED


both_drivers = pytest.mark.parametrize("driver", ["native", "azure"])


def with_wrong_key(hub: Hub) -> str:
    key = hub.connection.split("SharedAccessKey=")[1].split(";")[0]
    return hub.connection.replace(key, "d3Jvbmc=")


def connection_string_of(server: socket.socket) -> str:
    """A connection string for a socket that is not a hub."""
    endpoint = f"Endpoint=sb://127.0.0.1:{server.getsockname()[1]};SharedAccessKeyName=k"
    return f"{endpoint};SharedAccessKey=a2V5;EntityPath=sensors;UseDevelopmentEmulator=true"
