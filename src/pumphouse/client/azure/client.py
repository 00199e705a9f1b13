"""The azure driver: a client of a hub through the official SDK, azure-eventhub.

async with AzureClient(connection_string, "sensors") as client:
    await (await client.sender()).send([Event(b"hello")])
    reader = await client.reader(ReaderOptions("0", epoch=3))
    events = await reader.receive(max_events=100, deadline_s=5.0)

AzureClient -> AzureReader, AzureSender -> azure-eventhub
^^^^^^^^^^^ this module

It keeps the contract of base.py and can replace the native driver. The differences:

* It is slower: the SDK spends 40 to 60 microseconds of CPU on each event, in both directions.
* Each reader, each producer of a sender and each properties call has a connection of its own.
* `latest` is resolved with an additional call for the end of the partition.
* Character and decimal properties can be read but not sent: `send` raises OptionError.
* An empty partition key counts as no key.

It needs the extra `azure`. Credentials are the key or signature of the connection string, a
credential of azure-identity (asyncio or blocking), AzureSasCredential, AzureNamedKeyCredential, or
a signature as text. With one of these the connection string may be the host of the namespace.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from pumphouse.client.azure.calls import SdkCaller, close_quietly
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
from pumphouse.client.connection_string import (
    TLS_PORT,
    ConnectionString,
    hub_missing,
    read_connection_string,
)
from pumphouse.client.credentials import credential_for
from pumphouse.client.positions import position_after_all
from pumphouse.client.routes import WSS_PORT, Route, route_for
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AmqpError, OptionError
from pumphouse.events import Position, to_ms
from pumphouse.logs import quieten

if TYPE_CHECKING:
    from pumphouse.client.azure.reader import AzureReader

RECEIVER_NAME = b"com.microsoft:receiver-name"


class AzureClient(HubClient):
    """A client of a hub over the connections of the SDK. They are opened on first use."""

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
        self.connection_string = read_connection_string(
            connection, hub, keyless=credential is not None
        )
        self.route = route_for(self.connection_string, transport, endpoint)
        credential_for(self.connection_string, credential)  # raises if it is invalid
        self._credential = credential
        self._settings = settings_for(self.connection_string, self.route, endpoint, ca_file)
        address = f"{self.route.address}/{self.connection_string.hub}"
        self._caller = SdkCaller(
            address, retry or RetryOptions(), clock or SystemClock(), rng or Random()
        )
        self._opened: WeakSet[Any] = WeakSet()  # readers and senders, closed with the client
        self._management_client: Any = None

    def __repr__(self) -> str:
        return f"<AzureClient {self.route.address} {self.connection_string.hub or 'namespace'}>"

    @property
    def hub(self) -> str:
        """The name of the hub; OptionError if none was given."""
        if not self.connection_string.hub:
            raise hub_missing()
        return self.connection_string.hub

    @property
    def namespace(self) -> str:
        return self.connection_string.authority

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        management_client, self._management_client = self._management_client, None
        await asyncio.gather(*(opened.close() for opened in list(self._opened)))
        if management_client is not None:
            await close_quietly(management_client.close(), "management")

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
            # After a reconnect "latest" would be a later position, and events would be skipped.
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
        """The SDK consumer of one partition. link.py explains why it is not the public one."""
        from pumphouse.client.azure.events import sdk_position

        start, inclusive = sdk_position(position)
        consumer = self._client(options.group)._create_consumer(
            options.group,
            options.partition,
            start,
            None,  # the event callback
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
            self._check_partition(partition, await self.properties())
        sender = AzureSender(partition, self._producer, self._caller)
        await sender.open()
        self._opened.add(sender)
        return sender

    def _check_partition(self, partition: str, properties: HubProperties) -> None:
        """Raise for an unknown partition: the SDK would report it only on the first send."""
        if partition not in properties.partitions:
            raise AmqpError(
                "com.microsoft:argument-out-of-range",
                f"hub {properties.name!r} has no partition {partition!r}; "
                f"it should be between 0 and {len(properties.partitions) - 1}",
            )

    # -- properties -------------------------------------------------------------------------------

    async def properties(self) -> HubProperties:
        properties = await self._caller.call_with_retries(
            lambda: self._management().get_eventhub_properties()
        )
        return HubProperties(
            properties["eventhub_name"],
            to_ms(properties["created_at"]),
            tuple(properties["partition_ids"]),
        )

    async def partition_properties(self, partition: str) -> PartitionProperties:
        try:
            properties = await self._caller.call_with_retries(
                lambda: self._management().get_partition_properties(partition)
            )
        except AmqpError:
            self._check_partition(partition, await self.properties())
            raise
        return PartitionProperties(
            hub=properties["eventhub_name"],
            partition=properties["id"],
            first_sequence=properties["beginning_sequence_number"],
            last_sequence=properties["last_enqueued_sequence_number"],
            last_offset=properties["last_enqueued_offset"],
            last_enqueued_ms=to_ms(properties["last_enqueued_time_utc"]),
            empty=properties["is_empty"],
        )

    def _management(self) -> Any:
        if self._management_client is None:
            self._management_client = self._client("$Default")
        return self._management_client

    # -- clients of the SDK -----------------------------------------------------------------------

    def _client(self, group: str) -> Any:
        return self._sdk.EventHubConsumerClient(
            self.namespace, self.hub, group, self._sdk_credential(), **self._settings
        )

    def _producer(self) -> Any:
        return self._sdk.EventHubProducerClient(
            self.namespace, self.hub, self._sdk_credential(), **self._settings
        )

    def _sdk_credential(self) -> Any:
        """The credential in the form of the SDK."""
        from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential

        given = self._credential
        if isinstance(given, str) or (given is None and self.connection_string.signature):
            return AzureSasCredential(given or self.connection_string.signature)
        if given is None:
            return AzureNamedKeyCredential(
                self.connection_string.key_name, self.connection_string.key
            )
        return AsyncCredential(given) if hasattr(given, "get_token") else given


class AsyncCredential:
    """A credential whose `get_token` can be awaited, also if it is a blocking one."""

    def __init__(self, given: Any) -> None:
        self._given = given
        if hasattr(given, "token_type"):
            self.token_type = given.token_type  # without it the SDK treats a token as a JWT

    async def get_token(self, *scopes: str, **_: Any) -> Any:
        get_token = self._given.get_token
        if inspect.iscoroutinefunction(get_token):
            return await get_token(*scopes)
        token = await asyncio.to_thread(get_token, *scopes)
        return await token if inspect.isawaitable(token) else token


def load_sdk() -> Any:
    try:
        from azure.eventhub import aio
    except ImportError as missing:
        raise OptionError(
            f"the azure driver needs azure-eventhub ({missing}): pip install 'pumphouse[azure]'"
        ) from None
    quieten(logging.getLogger("azure"), logging.WARNING)  # it logs each request as INFO
    return aio


def settings_for(
    connection: ConnectionString, route: Route, endpoint: str | None, ca_file: str | Path | None
) -> dict[str, Any]:
    """The route to the hub as arguments of the SDK."""
    from azure.eventhub import TransportType

    settings: dict[str, Any] = {
        "transport_type": TransportType.AmqpOverWebsocket
        if route.websocket
        else TransportType.Amqp,
        "use_tls": route.tls,
        "retry_total": 0,  # calls.py retries
        "retry_backoff_factor": 0.001,  # the SDK waits this long even without retries
    }
    default_port = WSS_PORT if route.websocket else TLS_PORT if route.tls else connection.port
    if endpoint is not None or route.port != default_port:
        # The SDK uses a port of the connection string for plain AMQP only.
        host = f"[{route.host}]" if ":" in route.host else route.host
        settings["custom_endpoint_address"] = f"sb://{host}:{route.port}"
    if ca_file is not None:
        if not Path(ca_file).is_file():
            raise OptionError(f"ca_file {str(ca_file)!r} is not a readable file")
        settings["connection_verify"] = str(ca_file)
    return settings
