"""From a command to a consumer group: its hub, its store, and both asked at once.

--connection, --hub, --store -> GroupAccess -> overview, checkpoints
                                ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

from pumphouse.cli.common.options import ca_file, need_connection
from pumphouse.client.base import HubClient, PartitionProperties, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.leases.model import Checkpoint, Group, Listing
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store

T = TypeVar("T")
REQUESTS_AT_ONCE = 16  # partitions whose properties are asked for together


@dataclass(frozen=True, slots=True)
class GroupAccess:
    """One consumer group, with everything that is written about it."""

    client: HubClient
    store: CheckpointStore
    group: Group

    async def partitions(self, wanted: Sequence[str] = ()) -> list[PartitionProperties]:
        """The properties of these partitions, or of all."""
        there = (await self.client.properties()).partitions
        if unknown := [name for name in wanted if name not in there]:
            raise OptionError(
                f"hub {self.group.hub} has no partition {unknown[0]}; it has {', '.join(there)}"
            )
        gate = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def ask(partition: str) -> PartitionProperties:
            async with gate:
                return await self.client.partition_properties(partition)

        return list(await asyncio.gather(*map(ask, wanted or there)))

    async def listing(self) -> Listing:
        return await self.store.list_ownership(self.group)

    async def checkpoints(self) -> dict[str, Checkpoint]:
        return {mark.partition: mark for mark in await self.store.list_checkpoints(self.group)}


@asynccontextmanager
async def open_group(
    connection: str, hub: str | None, group: str, store: str
) -> AsyncIterator[GroupAccess]:
    # A person waits: whoever is not there is said to be missing at once.
    reached = open_client(connection, hub or "", ca_file=ca_file(), retry=RetryOptions(attempts=0))
    async with reached as client, open_store(store) as opened:
        yield GroupAccess(client, opened, Group(client.namespace, client.hub, group))


def with_group(
    connection: str | None,
    hub: str | None,
    group: str,
    store: str,
    work: Callable[[GroupAccess], Awaitable[T]],
) -> T:
    """Open hub and store, let `work` do its part, close both."""
    string = need_connection(connection)

    async def run() -> T:
        async with open_group(string, hub, group, store) as access:
            return await work(access)

    return asyncio.run(run())
