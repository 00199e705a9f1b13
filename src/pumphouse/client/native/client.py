"""The native client: a hub, and everything that can be done with it, in our own AMQP.

async with NativeClient(connection_string) as client:
    await (await client.sender()).send([Event(b"hello")])
    reader = await client.reader(ReaderOptions("0"))
    events = await reader.receive(max_events=100, deadline_s=5.0)

NativeClient -> NativeManagement, NativeSender, NativeReader -> ReconnectingConnection -> Connection
^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from random import Random
from typing import Any, Self
from warnings import warn
from weakref import WeakSet

from pumphouse.client.base import (
    HubClient,
    HubProperties,
    PartitionProperties,
    ReaderOptions,
    RetryOptions,
)
from pumphouse.client.connection_string import ConnectionString, read_connection_string
from pumphouse.client.credentials import credential_for
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.management import NativeManagement
from pumphouse.client.native.reader import NativeReader
from pumphouse.client.native.reconnect import ConnectionSettings, ReconnectingConnection
from pumphouse.client.native.sender import NativeSender
from pumphouse.client.routes import route_for
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError


class NativeClient(HubClient):
    """A hub, or (without a hub's name) a namespace of hubs, over one connection.

    `connection` is a connection string, or just the host of a namespace if a `credential` is given.
    A broken connection is mended within the patience of `retry`; `first_retry` is for the first
    one, where somebody may rather want to hear at once that nobody is there.
    """

    def __init__(
        self,
        connection: str | ConnectionString,
        hub: str = "",
        *,
        credential: Any = None,
        transport: str = "tcp",
        endpoint: str | None = None,
        ca_file: str | Path | None = None,
        context: ssl.SSLContext | None = None,
        retry: RetryOptions | None = None,
        first_retry: RetryOptions | None = None,
        options: ConnectionOptions | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self.connection = read_connection_string(connection, hub, keyless=credential is not None)
        self.clock: Clock = clock or SystemClock()
        self.line = ReconnectingConnection(
            ConnectionSettings(
                self.connection,
                route_for(self.connection, transport, endpoint),
                credential_for(self.connection, credential),
                ca_file,
                context,
                options or ConnectionOptions(),
                retry or RetryOptions(),
                self.clock,
                rng or Random(),
            )
        )
        self._first_retry = first_retry
        self._readers: WeakSet[NativeReader] = WeakSet()

    def __repr__(self) -> str:
        return (
            f"<NativeClient {self.line.options.route.place} {self.connection.hub or 'namespace'}>"
        )

    @property
    def hub(self) -> str:
        """The hub we speak of; OptionError if nobody has named one."""
        if not self.connection.hub:
            raise OptionError(
                "no hub is named: name one, or add EntityPath=HUB to the connection string"
            )
        return self.connection.hub

    @property
    def namespace(self) -> str:
        """The host that checkpoints and leases are filed under, as the official clients do."""
        return self.connection.authority

    # -- opening and closing ----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.line.contact(self._first_retry)
        return self

    async def __aexit__(self, *exc: object) -> None:
        mending = [task for reader in list(self._readers) for task in reader.stop()]
        try:
            if mending:
                await asyncio.wait(mending)
        finally:
            await self.line.close()

    # -- what a hub offers ------------------------------------------------------------------------

    async def sender(self, partition: str | None = None) -> NativeSender:
        """A sender to one partition, or to the hub, which chooses by key or in turn."""
        sender = NativeSender(self.line, self.hub, partition)
        await sender.open()
        return sender

    @property
    def has_batch_sender(self) -> bool:
        return True

    async def batch_sender(self, partition: str) -> NativeSender:
        """A sender of encoded batches to one partition."""
        return await self.sender(partition)

    async def reader(self, options: ReaderOptions) -> NativeReader:
        """A reader of one partition. What arrives from now on is not missed."""
        reader = NativeReader(self.line, self.hub, options)
        await reader.open()
        self._readers.add(reader)
        return reader

    async def management(self) -> NativeManagement:
        """The calls about hubs, partitions and groups."""
        return NativeManagement(self.line)

    async def properties(self) -> HubProperties:
        return await NativeManagement(self.line).hub(self.hub)

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return await NativeManagement(self.line).partition(self.hub, partition)


def __getattr__(name: str) -> Any:
    if name == "Client":
        warn(f"{__name__}.Client is now NativeClient", DeprecationWarning, stacklevel=2)
        return NativeClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
