"""The second driver: a hub reached through the official SDK, azure-eventhub.

async with AzureClient(connection_string, "sensors") as client:
    await (await client.sender()).send([Event(b"hello")])
    reader = await client.reader(ReaderOptions("0", epoch=3))
    events = await reader.receive(max_events=100, deadline_s=5.0)

AzureClient -> AzureReader, AzureSender -> azure-eventhub
^^^^^^^^^^^ this module

It keeps the contract of base.py and is exchangeable with the native driver; what differs:

* It is slower: the SDK spends some 40 to 60 microseconds of CPU on each event, either way.
* Each reader, each lane of a sender and each question about properties has a connection of its own.
* `latest` is settled by asking for the end of the partition first, which costs one more call.
* Properties that are characters or decimals can be read but not sent, and an empty partition key
  counts as none: OptionError says so.

It needs the extra `azure`. Credentials are the key or signature in the connection string, or one of
azure-identity's (asyncio or blocking), AzureSasCredential, AzureNamedKeyCredential or a signature
as text; with one of these the connection string may be just the host of the namespace.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from pumphouse.client.azure.calls import Caller, bounded
from pumphouse.client.azure.link import SdkLink
from pumphouse.client.base import (
    HubClient,
    HubProperties,
    MessageReader,
    PartitionProperties,
    Reader,
    ReaderOptions,
    RetryOptions,
    Sender,
)
from pumphouse.client.connection_string import TLS_PORT, ConnectionString, read_connection_string
from pumphouse.client.credentials import credential_for
from pumphouse.client.positions import position_after_all
from pumphouse.client.routes import WSS_PORT, Route, route_for
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AmqpError, OptionError
from pumphouse.events import Position, to_ms

if TYPE_CHECKING:
    from pumphouse.client.azure.reader import AzureReader

RECEIVER_NAME = b"com.microsoft:receiver-name"


class AzureClient(HubClient):
    """A hub, over as many connections as the SDK opens. Nothing is opened before it is needed."""

    def __init__(
        self,
        connection: str | ConnectionString,
        hub: str = "",
        *,
        credential: Any = None,
        transport: str = "tcp",
        ca_file: str | Path | None = None,
        retry: RetryOptions | None = None,
        endpoint: str | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._sdk = load_sdk()
        self.connection = read_connection_string(connection, hub, keyless=credential is not None)
        self.route = route_for(self.connection, transport, endpoint)
        credential_for(self.connection, credential)  # says so if it is none
        self._credential = credential
        self._settings = settings_for(self.connection, self.route, endpoint, ca_file)
        place = f"{self.route.place}/{self.connection.hub}"
        self._caller = Caller(
            place, retry or RetryOptions(), clock or SystemClock(), rng or Random()
        )
        self._opened: WeakSet[Any] = WeakSet()  # readers and senders, to be closed with us
        self._asking: Any = None

    def __repr__(self) -> str:
        return f"<AzureClient {self.route.place} {self.connection.hub or 'namespace'}>"

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
        return self.connection.authority

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        asking, self._asking = self._asking, None
        await asyncio.gather(*(one.close() for one in list(self._opened)))
        if asking is not None:
            await bounded(asking.close(), "management")

    # -- reading and sending ----------------------------------------------------------------------

    async def message_reader(self, options: ReaderOptions) -> MessageReader:
        """A reader of encoded messages, in the order of their events."""
        return await self._open_reader(options)

    async def reader(self, options: ReaderOptions) -> Reader:
        return await self._open_reader(options)

    async def _open_reader(self, options: ReaderOptions) -> AzureReader:
        from pumphouse.client.azure.reader import AzureReader

        start = options.position
        if start.kind == "latest":
            # Asked for again after a broken connection, "latest" would be another place.
            start = position_after_all(await self.partition_properties(options.partition))

        async def attach(position: Position, arrived: Callable[[bytes], None]) -> SdkLink:
            link = SdkLink(self._consumer(options, position), arrived)
            try:
                await link.open()
            except BaseException:
                await link.close()
                raise
            return link

        reader = AzureReader(options, start, attach, self._caller)
        await reader.open()
        self._opened.add(reader)
        return reader

    def _consumer(self, options: ReaderOptions, position: Position) -> Any:
        """The SDK's consumer of one partition. Why not its public face: see azure_link.py."""
        from pumphouse.client.azure.events import start_of

        start, inclusive = start_of(position)
        consumer = self._client(options.group)._create_consumer(
            options.group,
            options.partition,
            start,
            None,  # what it would call back with events
            event_position_inclusive=inclusive,
            owner_level=options.epoch,
            prefetch=options.prefetch,
            track_last_enqueued_event_properties=options.track_end,
        )
        if options.name:
            consumer._link_properties[RECEIVER_NAME] = options.name
        return consumer

    async def sender(self, partition: str | None = None) -> Sender:
        from pumphouse.client.azure.sender import AzureSender

        if partition is not None:
            self._check(partition, await self.properties())
        sender = AzureSender(partition, self._producer, self._caller)
        await sender.open()
        self._opened.add(sender)
        return sender

    def _check(self, partition: str, found: HubProperties) -> None:
        """The SDK attaches to a partition only when something is sent; we tell before."""
        if partition not in found.partitions:
            raise AmqpError(
                "com.microsoft:argument-out-of-range",
                f"hub {found.name!r} has no partition {partition!r}; "
                f"it should be between 0 and {len(found.partitions) - 1}",
            )

    # -- asking -----------------------------------------------------------------------------------

    async def properties(self) -> HubProperties:
        found = await self._caller.persist(lambda: self._management().get_eventhub_properties())
        return HubProperties(
            found["eventhub_name"], to_ms(found["created_at"]), tuple(found["partition_ids"])
        )

    async def partition_properties(self, partition: str) -> PartitionProperties:
        try:
            found = await self._caller.persist(
                lambda: self._management().get_partition_properties(partition)
            )
        except AmqpError:
            self._check(partition, await self.properties())
            raise
        return PartitionProperties(
            hub=found["eventhub_name"],
            partition=found["id"],
            first_sequence=found["beginning_sequence_number"],
            last_sequence=found["last_enqueued_sequence_number"],
            last_offset=found["last_enqueued_offset"],
            last_enqueued_ms=to_ms(found["last_enqueued_time_utc"]),
            empty=found["is_empty"],
        )

    def _management(self) -> Any:
        if self._asking is None:
            self._asking = self._client("$Default")
        return self._asking

    # -- clients of the SDK -----------------------------------------------------------------------

    def _client(self, group: str) -> Any:
        return self._sdk.EventHubConsumerClient(
            self.namespace, self.hub, group, self._key(), **self._settings
        )

    def _producer(self) -> Any:
        return self._sdk.EventHubProducerClient(
            self.namespace, self.hub, self._key(), **self._settings
        )

    def _key(self) -> Any:
        """What opens the hub, as the SDK wants it."""
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

        given = self._credential
        if isinstance(given, str) or (given is None and self.connection.signature):
            return AzureSasCredential(given or self.connection.signature)
        if given is None:
            return AzureNamedKeyCredential(self.connection.key_name, self.connection.key)
        return AwaitedCredential(given) if hasattr(given, "get_token") else given


class AwaitedCredential:
    """A credential whose `get_token` can be awaited, whether it was made for asyncio or not."""

    def __init__(self, given: Any) -> None:
        self._given = given
        if hasattr(given, "token_type"):
            self.token_type = given.token_type  # without it the SDK takes a token for a JWT

    async def get_token(self, *scopes: str, **_: Any) -> Any:
        ask = self._given.get_token
        if inspect.iscoroutinefunction(ask):
            return await ask(*scopes)
        found = await asyncio.to_thread(ask, *scopes)
        return await found if inspect.isawaitable(found) else found


def load_sdk() -> Any:
    try:
        from azure.eventhub import aio
    except ImportError as missing:
        raise OptionError(
            f"the azure driver needs azure-eventhub ({missing}): pip install 'pumphouse[azure]'"
        ) from None
    return aio


def settings_for(
    connection: ConnectionString, route: Route, endpoint: str | None, ca_file: str | Path | None
) -> dict[str, Any]:
    """The way to the hub, as the SDK wants to be told."""
    from azure.eventhub import TransportType

    settings: dict[str, Any] = {
        "transport_type": TransportType.AmqpOverWebsocket
        if route.websocket
        else TransportType.Amqp,
        "use_tls": route.tls,
        "retry_total": 0,  # azure_calls.py has the patience
        "retry_backoff_factor": 0.001,  # it waits for so long even if it will not try again
    }
    usual = WSS_PORT if route.websocket else TLS_PORT if route.tls else connection.port
    if endpoint is not None or route.port != usual:
        # It takes a port from the connection string for plain AMQP only.
        host = f"[{route.host}]" if ":" in route.host else route.host
        settings["custom_endpoint_address"] = f"sb://{host}:{route.port}"
    if ca_file is not None:
        if not Path(ca_file).is_file():
            raise OptionError(f"ca_file {str(ca_file)!r} is not a file that can be read")
        settings["connection_verify"] = str(ca_file)
    return settings
