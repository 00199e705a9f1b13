"""The official checkpoint stores, blocking and asyncio, with the same methods; and raw blobs."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

from azure.eventhub._eventprocessor._eventprocessor_mixin import EventProcessorMixin
from azure.storage.blob.aio import ContainerClient

from pumphouse.leases.model import Group

PACKAGES = {
    "aio": "azure.eventhub.extensions.checkpointstoreblobaio",
    "sync": "azure.eventhub.extensions.checkpointstoreblob",
}
Row = dict[str, Any]


class OfficialStore(Protocol):
    """The calls of an official processor."""

    async def list_ownership(self, group: Group) -> dict[str, Row]: ...

    async def claim(self, rows: list[Row]) -> list[Row]: ...

    async def list_checkpoints(self, group: Group) -> dict[str, Row]: ...

    async def checkpoint(self, checkpoint_row: Row) -> None: ...


class AsyncioStore:
    def __init__(self, store: Any) -> None:
        self._store = store

    async def list_ownership(self, group: Group) -> dict[str, Row]:
        return by_partition(
            await self._store.list_ownership(group.namespace, group.hub, group.name)
        )

    async def claim(self, rows: list[Row]) -> list[Row]:
        return list(await self._store.claim_ownership(rows))

    async def list_checkpoints(self, group: Group) -> dict[str, Row]:
        rows = await self._store.list_checkpoints(group.namespace, group.hub, group.name)
        return by_partition(rows)

    async def checkpoint(self, checkpoint_row: Row) -> None:
        await self._store.update_checkpoint(checkpoint_row)


class BlockingStore(AsyncioStore):
    """The blocking store, each call in a thread."""

    def __init__(self, store: Any) -> None:
        super().__init__(ThreadedCalls(store))


class ThreadedCalls:
    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            return await asyncio.to_thread(getattr(self._store, name), *args)

        return call


@asynccontextmanager
async def official(
    package_name: str, connection_string: str, container: str
) -> AsyncIterator[OfficialStore]:
    package = importlib.import_module(PACKAGES[package_name])
    store = package.BlobCheckpointStore.from_connection_string(connection_string, container)
    if package_name == "aio":
        async with store:
            yield AsyncioStore(store)
    else:
        with store:
            yield BlockingStore(store)


def by_partition(rows: Any) -> dict[str, Row]:
    return {row["partition_id"]: row for row in rows}


def ownership(group: Group, partition: str, owner: str, etag: str | None = None) -> Row:
    row = {**key_fields(group, partition), "owner_id": owner}
    return {**row, "etag": etag} if etag else row


def checkpoint(group: Group, partition: str, sequence: int, offset: str) -> Row:
    return {**key_fields(group, partition), "sequence_number": sequence, "offset": offset}


def key_fields(group: Group, partition: str) -> Row:
    return {
        "fully_qualified_namespace": group.namespace,
        "eventhub_name": group.hub,
        "consumer_group": group.name,
        "partition_id": partition,
    }


def start_position(checkpoint_row: Row | None, default: str) -> Any:
    """The start position of an official Python processor, computed by its own code."""
    processor = EventProcessorMixin()
    processor._initial_event_position = default
    return processor.get_init_event_position("0", checkpoint_row)[0]


@asynccontextmanager
async def raw_container(connection_string: str, container: str) -> AsyncIterator[ContainerClient]:
    """The container, created if it is missing: for blobs as other SDKs write them."""
    client = ContainerClient.from_connection_string(connection_string, container)
    async with client:
        if not await client.exists():
            await client.create_container()
        yield client


async def put(
    container: ContainerClient, name: str, metadata: dict[str, str], body: bytes = b""
) -> None:
    await container.upload_blob(name, body, metadata=metadata, overwrite=True)
