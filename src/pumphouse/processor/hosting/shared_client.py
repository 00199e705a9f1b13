"""SharedClient: one client of a hub for several processors of a process.

ProcessorGroup -> SharedClient -> HubClient, opened by the first user, closed by the last one
                  ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

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
from pumphouse.errors import OptionError


class SharedClient(HubClient):
    """A client that can be opened several times at the same time; `make` creates the client."""

    def __init__(self, make: Callable[[], HubClient]) -> None:
        self._make = make
        self._opened: HubClient | None = None
        self._users = 0
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<SharedClient {self._opened!r} | {self._users} users>"

    async def __aenter__(self) -> Self:
        async with self._changing:
            if self._opened is None:
                client = self._make()
                await client.__aenter__()
                self._opened = client
            self._users += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        async with self._changing:
            self._users -= 1
            if self._users == 0 and self._opened is not None:
                client, self._opened = self._opened, None
                await client.__aexit__(*exc)

    @property
    def _client(self) -> HubClient:
        if self._opened is None:
            raise OptionError("the shared client is not open; use `async with`")
        return self._opened

    @property
    def hub(self) -> str:
        return self._client.hub

    @property
    def namespace(self) -> str:
        return self._client.namespace

    async def reader(self, options: ReaderOptions) -> Reader:
        return await self._client.reader(options)

    async def sender(self, partition: str | None = None) -> Sender:
        return await self._client.sender(partition)

    async def properties(self) -> HubProperties:
        return await self._client.properties()

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return await self._client.partition_properties(partition)

    @property
    def has_batch_sender(self) -> bool:
        return self._client.has_batch_sender

    async def batch_sender(self, partition: str) -> BatchSender:
        return await self._client.batch_sender(partition)

    async def message_reader(self, options: ReaderOptions) -> MessageReader:
        return await self._client.message_reader(options)

    async def management(self) -> ManagementClient:
        return await self._client.management()
