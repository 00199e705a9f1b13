"""The native client: one connection to a hub, and everything that can be done over it.

async with Client(connection_string) as client:
    await (await client.sender()).send([Event(b"hello")])
    reader = await client.reader(ReaderOptions("0"))
    events = await reader.receive(max_events=100, deadline_s=5.0)

Client -> Tokens, Management, Sender, Reader -> Wire
^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from typing import Self

from pumphouse.client.base import HubProperties, PartitionProperties, ReaderOptions
from pumphouse.client.calls import Calls
from pumphouse.client.connection_string import ConnectionString, parse
from pumphouse.client.management import Management
from pumphouse.client.reader import Reader
from pumphouse.client.sender import Sender
from pumphouse.client.tokens import Tokens
from pumphouse.client.wire import Wire, WireOptions, connect
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError, PumphouseError


class Client:
    """A hub, or (without a hub's name) a namespace of hubs, over one connection.

    Nothing is retried: a broken connection raises ConnectionFailed wherever it is used, and a new
    client is needed.
    """

    wire: Wire
    tokens: Tokens

    def __init__(
        self,
        connection: str | ConnectionString,
        hub: str = "",
        *,
        options: WireOptions | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.connection = parse(connection) if isinstance(connection, str) else connection
        self.options = options or WireOptions()
        self.clock: Clock = clock or SystemClock()
        self._hub = hub or self.connection.hub
        self._management: Management | None = None
        self._asking = asyncio.Lock()  # so that two who ask at once open it once
        if self.connection.tls:
            raise OptionError(
                f"{self.connection.place} needs TLS, which is not spoken here yet; for an embedded "
                "hub the connection string says UseDevelopmentEmulator=true"
            )

    def __repr__(self) -> str:
        return f"<Client {self.connection.place} {self._hub or 'namespace'}>"

    @property
    def hub(self) -> str:
        """The hub we speak of; OptionError if nobody has named one."""
        if not self._hub:
            raise OptionError(
                "no hub is named: name one, or add EntityPath=HUB to the connection string"
            )
        return self._hub

    # -- opening and closing ----------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        self.wire = await connect(self.connection.host, self.connection.port, self.options)
        try:
            calls = await Calls.open(self.wire, "$cbs")
        except BaseException:
            await self.wire.close()
            raise
        self.tokens = Tokens(calls, self.connection, self.clock)
        self._keeping = asyncio.create_task(self.keep_tokens(), name="token renewal")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._keeping.cancel()
        try:
            # Not `await self._keeping`: its being cancelled could not be told from our own.
            await asyncio.wait([self._keeping])
        finally:
            await self.wire.close()

    async def keep_tokens(self) -> None:
        """Renew tokens. If that fails the links are about to be cut, so everybody hears why."""
        try:
            await self.tokens.keep()
        except PumphouseError as failed:
            self.wire.fail(failed)

    # -- what a hub offers ------------------------------------------------------------------------

    async def sender(self, partition: str | None = None) -> Sender:
        """A sender to one partition, or to the hub, which chooses by key or in turn."""
        address = self.hub if partition is None else f"{self.hub}/Partitions/{partition}"
        await self.tokens.cover(self.hub)
        sender = Sender(self.wire, address)
        await sender.attach()
        return sender

    async def reader(self, options: ReaderOptions) -> Reader:
        await self.tokens.cover(self.hub)
        reader = Reader(self.wire, self.hub, options)
        await reader.attach()
        return reader

    async def management(self) -> Management:
        """The calls about hubs, partitions and groups."""
        async with self._asking:
            if self._management is None:
                calls = await Calls.open(self.wire, "$management")
                self._management = Management(calls, self.tokens)
        return self._management

    async def properties(self) -> HubProperties:
        return await (await self.management()).hub(self.hub)

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return await (await self.management()).partition(self.hub, partition)
