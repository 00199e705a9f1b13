"""The requests of one poll: partitions of a hub, and rows and checkpoints of a store.

HubClient -> read_partitions -> properties        ObservedStore -> read_groups -> GroupRows
             ^^^^^^^^^^^^^^^ this module                           ^^^^^^^^^^^
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pumphouse.client.base import HubClient, PartitionProperties, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.lag.observed_store import ObservedStore
from pumphouse.lag.options import LagOptions
from pumphouse.leases.model import Checkpoint, Group, Listing
from pumphouse.leases.store import CheckpointStore

A = TypeVar("A")
B = TypeVar("B")

REQUESTS_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class GroupRows:
    """The rows and checkpoints of a group in a store."""

    group: str
    listing: Listing
    checkpoints: Mapping[str, Checkpoint]  # by partition


@dataclass(frozen=True, slots=True)
class StoreReading:
    """The groups that could be read, and why others could not."""

    groups: tuple[GroupRows, ...]
    failure: str | None = None


def client_of(options: LagOptions) -> HubClient:
    # One retry, for a connection that the hub has closed since the last poll.
    retry = RetryOptions(attempts=1)
    return open_client(options.connection, options.hub, ca_file=options.ca_file, retry=retry)


async def read_partitions(client: HubClient) -> list[PartitionProperties]:
    names = (await client.properties()).partitions
    return await each_of(names, client.partition_properties)


async def read_groups(observed: ObservedStore, options: LagOptions) -> StoreReading:
    """All groups, or the named ones. StoreUnavailable if the store does not respond."""
    names = options.groups or await observed.groups(options.namespace, options.hub)

    async def read(name: str) -> GroupRows | StoreError:
        try:
            return await read_group(observed.store, Group(options.namespace, options.hub, name))
        except StoreUnavailable:
            raise
        except StoreError as error:  # a row that cannot be read: other groups are not affected
            return StoreError(f"consumer group {name}: {error}")

    readings = await each_of(names, read)
    failures = [str(each) for each in readings if isinstance(each, StoreError)]
    groups = tuple(each for each in readings if isinstance(each, GroupRows))
    return StoreReading(groups, "; ".join(failures) or None)


async def read_group(store: CheckpointStore, group: Group) -> GroupRows:
    listing = await store.list_ownership(group)
    checkpoints = {each.partition: each for each in await store.list_checkpoints(group)}
    return GroupRows(group.name, listing, checkpoints)


async def each_of(items: Iterable[A], call: Callable[[A], Awaitable[B]]) -> list[B]:
    """The results of a call for each item, a few at the same time."""
    slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

    async def call_one(item: A) -> B:
        async with slots:
            return await call(item)

    return list(await asyncio.gather(*map(call_one, items)))
