"""A client around another one that passes every call on. Subclasses add what they observe."""

from __future__ import annotations

from typing import Any, Self

from pumphouse.client.base import (
    BatchSender,
    HubClient,
    HubProperties,
    ManagementClient,
    MessageReader,
    PartitionProperties,
    Reader,
    ReaderOptions,
    Sender,
)


class WrappedClient(HubClient):
    """Passes every call on to another client."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)  # what a driver has beyond the protocol

    @property
    def hub(self) -> str:
        return self._client.hub

    @property
    def namespace(self) -> str:
        return self._client.namespace

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    async def reader(self, options: ReaderOptions) -> Reader:
        return await self._client.reader(options)

    async def sender(self, partition: str | None = None) -> Sender:
        return await self._client.sender(partition)

    async def batch_sender(self, partition: str) -> BatchSender:
        return await self._client.batch_sender(partition)

    async def properties(self) -> HubProperties:
        return await self._client.properties()

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return await self._client.partition_properties(partition)

    @property
    def has_batch_sender(self) -> bool:
        return self._client.has_batch_sender

    async def message_reader(self, options: ReaderOptions) -> MessageReader:
        return await self._client.message_reader(options)

    async def management(self) -> ManagementClient:
        return await self._client.management()
