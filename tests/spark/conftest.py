"""One Spark session for all tests of a process, and a hub to read from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark.versions.features import FILTERS, has

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# It imports the filters of Spark.
collect_ignore = [] if has(FILTERS) else ["test_filters.py"]

RECEIVE_S = 60.0


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pumphouse.spark import session

    running = session("tests", "local[4]", {"spark.log.level": "OFF"})
    yield running
    running.stop()


class Hub:
    """One hub of an embedded namespace, and a way to send events to it."""

    def __init__(self, embedded: EmbeddedHub, name: str) -> None:
        self.embedded, self.name = embedded, name

    @property
    def connection(self) -> str:
        return self.embedded.connection_string(self.name)

    def send(self, *bodies: str, partition: str | None = None, key: str | None = None) -> None:
        self.send_events([Event(body.encode(), partition_key=key) for body in bodies], partition)

    def send_events(self, events: Sequence[Event], partition: str | None = None) -> None:
        async def send() -> None:
            async with open_client(self.connection) as client:
                await (await client.sender(partition)).send(events)

        asyncio.run(send())

    def events(self) -> dict[str, list[Event]]:
        """All events by partition, read without Spark."""

        async def read() -> dict[str, list[Event]]:
            by_partition: dict[str, list[Event]] = {}
            async with open_client(self.connection) as client:
                for name in (await client.properties()).partitions:
                    last = (await client.partition_properties(name)).last_sequence
                    reader = await client.reader(ReaderOptions(name))
                    by_partition[name] = []
                    while len(by_partition[name]) <= last:
                        by_partition[name] += await reader.receive(1000, RECEIVE_S)
                    await reader.close()
            return by_partition

        return asyncio.run(read())

    def all_events(self) -> list[Event]:
        return [event for events in self.events().values() for event in events]


@pytest.fixture
def hub(event_hub: EmbeddedHub) -> Hub:
    event_hub.create_hub("sensors", 4)
    return Hub(event_hub, "sensors")


@pytest.fixture
def queries(spark: SparkSession) -> Iterator[None]:
    """Stops every query that a test has started."""
    yield
    for query in spark.streams.active:
        query.stop()
