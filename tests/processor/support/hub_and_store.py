"""HubAndStore: a hub and a store on virtual time. Tests add their own hosts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.stores.memory import MemoryStore
from tests.processor.support.virtual_time import LoopClock

HUB = "eh"


class HubAndStore:
    """A hub, a client and a memory store. Use it in `async with`, on a virtual loop."""

    def __init__(self, partitions: int = 4, **hub_options: Any) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.hub = EmbeddedHub({HUB: partitions}, clock=self.clock, **hub_options)
        self.partitions = [str(number) for number in range(partitions)]

    async def __aenter__(self) -> Self:
        await self.hub.__aenter__()
        self.connection = self.hub.connection_string(HUB)
        self.client = await open_client(self.connection).__aenter__()
        self.group = Group(self.client.namespace, HUB)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.client.__aexit__(*exc)
        await self.hub.__aexit__(*exc)

    async def send(self, *bodies: str, partition: str = "0") -> None:
        sender = await self.client.sender(partition)
        await sender.send([Event(body.encode()) for body in bodies])
        await sender.close()

    async def checkpoint(self, partition: str = "0") -> Checkpoint | None:
        stored = await self.store.list_checkpoints(self.group)
        return {each.partition: each for each in stored}.get(partition)

    async def until_checkpoint(self, sequence: int, partition: str = "0") -> None:
        async with asyncio.timeout(600):
            while not is_at(await self.checkpoint(partition), sequence):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


def is_at(checkpoint: Checkpoint | None, sequence: int) -> bool:
    return checkpoint is not None and checkpoint.sequence == sequence


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(600):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
