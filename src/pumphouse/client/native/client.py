"""The native client of a hub, in our own AMQP.

async with NativeClient(connection_string) as client:
    await (await client.sender()).send([Event(b"hello")])
    reader = await client.reader(ReaderOptions("0"))
    events = await reader.receive(max_events=100, deadline_s=5.0)

NativeClient -> NativeManagement, NativeSender, NativeReader -> ReconnectingConnection
^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
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
from pumphouse.client.connection_string import (
    ConnectionString,
    hub_missing,
    read_connection_string,
)
from pumphouse.client.credentials import credential_for
from pumphouse.client.native.connection import ConnectionOptions
from pumphouse.client.native.management import NativeManagement
from pumphouse.client.native.reader import NativeReader
from pumphouse.client.native.reconnect import ConnectionSettings, ReconnectingConnection
from pumphouse.client.native.sender import NativeSender
from pumphouse.client.routes import route_for


class NativeClient(HubClient):
    """A client of one hub, or without a hub name of a namespace, over one connection.

    `connection` is a connection string, or the host of a namespace if a `credential` is given. A
    broken connection is reopened as `retry` allows. `first_retry` replaces `retry` for the first
    connection, where an immediate error may be preferable. `options` holds timeouts and the clock.
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
    ) -> None:
        self.connection_string = read_connection_string(
            connection, hub, keyless=credential is not None
        )
        self.connection = ReconnectingConnection(
            ConnectionSettings(
                self.connection_string,
                route_for(self.connection_string, transport, endpoint),
                credential_for(self.connection_string, credential),
                ca_file,
                context,
                options or ConnectionOptions(),
                retry or RetryOptions(),
            )
        )
        self._first_retry = first_retry
        self._readers: WeakSet[NativeReader] = WeakSet()

    def __repr__(self) -> str:
        address = self.connection.settings.route.address
        return f"<NativeClient {address} {self.connection_string.hub or 'namespace'}>"

    @property
    def hub(self) -> str:
        """The name of the hub; OptionError if none was given."""
        if not self.connection_string.hub:
            raise hub_missing()
        return self.connection_string.hub

    @property
    def namespace(self) -> str:
        """The host under which checkpoints and leases are stored, as the official clients do."""
        return self.connection_string.authority

    # -- opening and closing ----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        try:
            await self.connection.connect(self._first_retry)
        except asyncio.CancelledError:
            await self.connection.close()  # otherwise the attempts would continue
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self.connection.is_inherited:
            return
        reattaching = [task for reader in list(self._readers) for task in reader.stop()]
        try:
            if reattaching:
                await asyncio.wait(reattaching)
        finally:
            await self.connection.close()

    # -- reading, sending and managing ------------------------------------------------------------

    async def sender(self, partition: str | None = None) -> NativeSender:
        """A sender to one partition, or to the hub, which chooses by key or in turn."""
        sender = NativeSender(self.connection, self.hub, partition)
        await sender.open()
        return sender

    @property
    def has_batch_sender(self) -> bool:
        return True

    async def batch_sender(self, partition: str) -> NativeSender:
        """A sender of encoded batches to one partition."""
        return await self.sender(partition)

    async def reader(self, options: ReaderOptions) -> NativeReader:
        """A reader of one partition. Events that arrive after this call are not missed."""
        reader = NativeReader(self.connection, self.hub, options)
        await reader.open()
        self._readers.add(reader)
        return reader

    async def management(self) -> NativeManagement:
        """The management calls about hubs, partitions and groups."""
        return NativeManagement(self.connection)

    async def properties(self) -> HubProperties:
        return await NativeManagement(self.connection).hub(self.hub)

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return await NativeManagement(self.connection).partition(self.hub, partition)


def __getattr__(name: str) -> Any:
    if name == "Client":
        warn(f"{__name__}.Client is now NativeClient", DeprecationWarning, stacklevel=2)
        return NativeClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
