"""One Spark session for all tests that need one, and hubs to read from."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    from pumphouse.spark import session

    running = session("tests", "local[2]", {"spark.log.level": "OFF"})
    yield running
    running.stop()


class Hub:
    """An embedded hub with one entity, and a way to put events into it."""

    def __init__(self, house: EmbeddedHub, name: str) -> None:
        self.house, self.name = house, name

    @property
    def connection(self) -> str:
        return self.house.connection_string(self.name)

    def send(self, *bodies: str, partition: str | None = None, key: str | None = None) -> None:
        self.put([Event(body.encode(), partition_key=key) for body in bodies], partition)

    def put(self, events: Sequence[Event], partition: str | None = None) -> None:
        async def work() -> None:
            async with open_client(self.connection) as client:
                await (await client.sender(partition)).send(events)

        asyncio.run(work())


@pytest.fixture
def hub(event_hub: EmbeddedHub) -> Hub:
    event_hub.create_hub("sensors", 4)
    return Hub(event_hub, "sensors")
