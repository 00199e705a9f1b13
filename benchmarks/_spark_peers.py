"""Data sources to compare with: the same work as most people would write it.

* `naive`: the synchronous client of the official SDK. Reading: one consumer per partition with a
  prefetch of 3000, rows as tuples. Writing: one producer per task, full batches, one per key if
  rows have keys.
* `hop`: record batches from memory: the limit of what Spark can take from Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from azure.eventhub import EventData, EventDataBatch, EventHubConsumerClient, EventHubProducerClient
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from pumphouse.client.bulk.arrow import TYPES
from pyspark_eventhubs import SCHEMA

PREFETCH = 3000
HOP_ROWS = 4000


class Part(InputPartition):
    def __init__(self, partitions: list[int], rows: int) -> None:
        self.partitions, self.rows = partitions, rows


class OneBatch(DataSourceStreamReader):
    """One batch of `rows` from each partition."""

    def __init__(self, options: dict[str, str]) -> None:
        self.options = options
        self.rows, self.partitions_ = int(options["rows"]), int(options["partitions"])

    def initialOffset(self) -> dict[str, int]:
        return {"rows": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]
        return {"rows": self.rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Part]:
        tasks = int(self.options["tasks"])
        spread = [list(range(first, self.partitions_, tasks)) for first in range(tasks)]
        return [Part(group, end["rows"] - start["rows"]) for group in spread if group]


class NaiveReader(OneBatch):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, Part)
        for number in partition.partitions:
            yield from self.read_partition(str(number), partition.rows)

    def read_partition(self, partition: str, rows: int) -> Iterator[tuple[Any, ...]]:
        waiting: list[Any] = []
        client = EventHubConsumerClient.from_connection_string(
            self.options["connection"], "$Default"
        )
        # The public API calls back and never returns; the internal consumer can be polled.
        make: Any = client._create_consumer
        consumer = make("$Default", partition, "-1", waiting.extend, prefetch=PREFETCH)
        try:
            while rows:
                # Returns as soon as some events have arrived.
                consumer.receive(batch=True, max_batch_size=min(rows, PREFETCH))
                for event in waiting[:rows]:
                    yield row_of(partition, event)
                rows -= min(rows, len(waiting))
                waiting.clear()
        finally:
            consumer.close()
            client.close()


def row_of(partition: str, event: Any) -> tuple[Any, ...]:
    properties = {str(name): str(value) for name, value in (event.properties or {}).items()}
    key = event.partition_key
    return (
        b"".join(event.body), partition, str(event.offset), event.sequence_number,
        event.enqueued_time, None, None if key is None else key.decode(), properties, {},
    )  # fmt: skip


class HopReader(OneBatch):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        full = made(HOP_ROWS, int(self.options["size"]))
        for _ in partition.partitions:
            for first in range(0, partition.rows, HOP_ROWS):
                yield full.slice(0, min(HOP_ROWS, partition.rows - first))


def made(rows: int, size: int) -> pa.RecordBatch:
    """A record batch like those of the hub."""
    values: dict[str, Any] = {
        "body": [bytes(size)] * rows, "partition": ["0"] * rows, "offset": ["123456"] * rows,
        "sequenceNumber": range(rows), "enqueuedTime": [1_700_000_000_000_000] * rows,
        "publisher": [None] * rows, "partitionKey": [None] * rows,
        "properties": [[]] * rows, "systemProperties": [[]] * rows,
    }  # fmt: skip
    arrays = [pa.array(values[name], kind) for name, kind in TYPES.items()]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(list(TYPES.items())))


class Sent(WriterCommitMessage):
    pass


class NaiveWriter(DataSourceWriter):
    def __init__(self, connection: str) -> None:
        self.connection = connection

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        with EventHubProducerClient.from_connection_string(self.connection) as producer:
            batches: dict[str | None, EventDataBatch] = {}
            for row in iterator:
                put(producer, batches, row.asDict().get("partitionKey"), EventData(row.body))
            for batch in batches.values():
                producer.send_batch(batch)
        return Sent()


def put(
    producer: EventHubProducerClient,
    batches: dict[str | None, EventDataBatch],
    key: str | None,
    event: EventData,
) -> None:
    """Add an event to the batch of its key, and send the batch when it is full."""
    if key not in batches:
        batches[key] = producer.create_batch(partition_key=key)
    try:
        batches[key].add(event)
    except ValueError:  # the batch is full
        producer.send_batch(batches[key])
        batches[key] = producer.create_batch(partition_key=key)
        batches[key].add(event)


class Naive(DataSource):
    @classmethod
    def name(cls) -> str:
        return "naive"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NaiveReader(dict(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return NaiveWriter(self.options["connection"])


class Hop(DataSource):
    @classmethod
    def name(cls) -> str:
        return "hop"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return HopReader(dict(self.options))
