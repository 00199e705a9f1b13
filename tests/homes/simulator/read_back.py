"""Reads all events of a hub."""

from __future__ import annotations

import asyncio

from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub


async def read_all(client: NativeClient) -> dict[str, list[Event]]:
    """Every event of every partition, in order."""
    received: dict[str, list[Event]] = {}
    for partition in (await client.properties()).partitions:
        last = (await client.partition_properties(partition)).last_sequence
        received[partition] = []
        if last < 0:
            continue
        reader = await client.reader(ReaderOptions(partition, prefetch=2000))
        while len(received[partition]) <= last:
            received[partition] += await reader.receive(max_events=1000, deadline_s=10.0)
        await reader.close()
    return received


def events_of(hub: EmbeddedHub, name: str = "sensors") -> dict[str, list[Event]]:
    async def run() -> dict[str, list[Event]]:
        async with NativeClient(hub.connection_string(name)) as client:
            return await read_all(client)

    return asyncio.run(run())


def await_events(hub: EmbeddedHub, name: str = "sensors", deadline_s: float = 100.0) -> None:
    """Wait until every partition of a hub has an event."""

    async def run() -> list[list[Event]]:
        async with NativeClient(hub.connection_string(name)) as client:
            partitions = (await client.properties()).partitions
            readers = [await client.reader(ReaderOptions(partition)) for partition in partitions]
            return await asyncio.gather(*(reader.receive(1, deadline_s) for reader in readers))

    assert all(asyncio.run(run())), f"a partition of {name} has nothing after {deadline_s:g} s"
