"""All that is in a hub, partition by partition."""

from __future__ import annotations

import asyncio

from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub


async def read_all(client: NativeClient) -> dict[str, list[Event]]:
    """Every event of every partition, in order."""
    found: dict[str, list[Event]] = {}
    for partition in (await client.properties()).partitions:
        last = (await client.partition_properties(partition)).last_sequence
        found[partition] = []
        if last < 0:
            continue
        reader = await client.reader(ReaderOptions(partition, prefetch=2000))
        while len(found[partition]) <= last:
            found[partition] += await reader.receive(max_events=1000, deadline_s=10.0)
        await reader.close()
    return found


def events_of(hub: EmbeddedHub, name: str = "sensors") -> dict[str, list[Event]]:
    async def run() -> dict[str, list[Event]]:
        async with NativeClient(hub.connection_string(name)) as client:
            return await read_all(client)

    return asyncio.run(run())


def await_events(hub: EmbeddedHub, name: str = "sensors", deadline_s: float = 100.0) -> None:
    """Until something has come to every partition of a hub."""

    async def run() -> list[list[Event]]:
        async with NativeClient(hub.connection_string(name)) as client:
            partitions = (await client.properties()).partitions
            readers = [await client.reader(ReaderOptions(one)) for one in partitions]
            return await asyncio.gather(*(one.receive(1, deadline_s) for one in readers))

    assert all(asyncio.run(run())), f"a partition of {name} has nothing after {deadline_s:g} s"
