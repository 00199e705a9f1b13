"""Measures how fast events are sent to a hub."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from pumphouse.client.base import HubClient, PartitionProperties, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock
from pumphouse.dashboard.monitors.readiness import Source
from pumphouse.errors import PumphouseError

RESPONSE_S = 15.0
RETRY_S = 2.0
SAMPLES = 6


class HubRateMonitor:
    """The rate of events sent to a hub, from the ends of its partitions."""

    def __init__(self, connection: str, hub: str, clock: Clock, ca_file: str | None) -> None:
        self.connection, self.hub, self.clock, self.ca_file = connection, hub, clock, ca_file
        self.rate: float | None = None
        self.total: int | None = None  # events that the hub has received so far
        self.trouble = ""
        self._samples: deque[tuple[float, int]] = deque(maxlen=SAMPLES)

    async def run(self, interval_s: float) -> None:
        while True:
            try:
                async with self._client() as client:
                    while True:
                        async with asyncio.timeout(RESPONSE_S):
                            self.add(await all_partitions(client))
                        await self.clock.sleep(interval_s)
            except (PumphouseError, OSError, TimeoutError) as error:
                self.trouble = str(error) or type(error).__name__
                self.rate = None
            await self.clock.sleep(RETRY_S)

    def source(self) -> Source:
        """Its hub, for the readiness of the page."""
        return Source(
            f"hub {self.hub}", self.trouble, self._samples[-1][0] if self._samples else None
        )

    def _client(self) -> HubClient:
        retry = RetryOptions(attempts=1)
        return open_client(self.connection, self.hub, ca_file=self.ca_file, retry=retry)

    def add(self, partitions: list[PartitionProperties]) -> None:
        self.trouble = ""
        self.total = sum(partition.last_sequence + 1 for partition in partitions)
        self._samples.append((self.clock.monotonic(), self.total))
        (first_s, first_total), (last_s, last_total) = self._samples[0], self._samples[-1]
        with suppress(ZeroDivisionError):  # there is only one sample yet
            self.rate = max(0.0, (last_total - first_total) / (last_s - first_s))


async def all_partitions(client: HubClient) -> list[PartitionProperties]:
    names = (await client.properties()).partitions
    return list(await asyncio.gather(*map(client.partition_properties, names)))
