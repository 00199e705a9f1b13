"""Refusals of the hub, and the errors of clients whose hub or group is deleted."""

from __future__ import annotations

import re

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import (
    AuthenticationError,
    ClientClosedError,
    ConnectError,
    ConnectionLostError,
    EventHubError,
)

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.entity import Entity, Refusals
from tests.conformance.readers import bodies, condition, numbered, refused, sequences
from tests.conformance.sdks import NO_RETRY, Sdk, both_sdks

pytestmark = pytest.mark.asyncio(loop_scope="session")


def is_not_found(text: str, resource: str) -> bool:
    """Whether this is the service's text for an entity that does not exist."""
    pattern = (
        rf"The messaging entity '{re.escape(resource)}' could not be found\..* "
        r"TrackingId:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}_G\d+, SystemTracker:\S+, "
        r"Timestamp:\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    )
    return re.search(pattern, text) is not None


@both_sdks
async def test_sending_to_a_missing_hub(sdk: Sdk, hub: EmbeddedHub) -> None:
    connection = hub.connection_string()
    async with sdk.producer(connection, eventhub_name="nowhere", **NO_RETRY) as producer:
        with pytest.raises(AuthenticationError, match="Status code: 404") as refused:
            await producer.create_batch()
        assert is_not_found(str(refused.value), Entity(hub, "nowhere").resource)
        # For a single event the SDK reads the partition ids first.
        with pytest.raises(ConnectError, match="Status code: 404"):
            await producer.send_event(EventData(b""))


@both_sdks
async def test_reading_from_a_missing_hub(sdk: Sdk, hub: EmbeddedHub) -> None:
    client = sdk.make_consumer(
        hub.connection_string(), "$Default", eventhub_name="nowhere", **NO_RETRY
    )
    async with sdk.read_with(client) as reader:
        error = await reader.error()
    assert isinstance(error, AuthenticationError)
    assert "Status code: 404" in str(error)
    assert is_not_found(str(error), Entity(hub, "nowhere").resource)


@both_sdks
async def test_a_missing_group(sdk: Sdk, eh: Entity, refusals: Refusals) -> None:
    path = f"{eh.resource}/ConsumerGroups/Nobody"
    async with sdk.read(eh, group="Nobody") as reader:
        text = f"The messaging entity '{path}' could not be found."
        await refused(reader, refusals, "amqp:not-found", text)


@both_sdks
async def test_a_missing_partition(sdk: Sdk, eh: Entity) -> None:
    """The SDK reads the partition ids and raises by itself."""
    async with sdk.producer(eh.connection, **NO_RETRY) as producer, sdk.read(eh, "9") as reader:
        with pytest.raises(ConnectError, match="Invalid partition 9 for the event hub"):
            await producer.send_event(EventData(b""), partition_id="9")
        error = await reader.error()
    assert isinstance(error, ValueError)
    assert "Wrong partition id:9." in str(error)


@both_sdks
async def test_a_closed_client(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection, **NO_RETRY) as producer:
        await producer.send_event(EventData(b""))
        await producer.close()
        # The SDK opens a closed producer again.
        await producer.send_event(EventData(b""))
        inner = producer.client._create_producer()
        await sdk.run(inner.close)
        with pytest.raises(ClientClosedError):
            await sdk.run(inner.send, EventData(b""))


# -- deleted hubs and groups ----------------------------------------------------------------------


@both_sdks
async def test_the_hub_is_deleted(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection, **NO_RETRY) as producer, sdk.read(eh) as reader:
        await producer.send_event(EventData(b""))
        await eh.attached()
        eh.hub.delete_hub(eh.name)
        error = await reader.error()
        assert isinstance(error, ConnectionLostError)
        assert condition(error) == "not-found"
        assert f"The messaging entity '{eh.name}' has been deleted." in str(error)
        with pytest.raises(EventHubError, match=r"could not be found|has been deleted"):
            await producer.send_event(EventData(b""))


@both_sdks
async def test_a_deleted_hub_comes_back_empty(sdk: Sdk, eh: Entity) -> None:
    """The same clients can use the new one."""
    async with sdk.producer(eh.connection, **NO_RETRY) as producer:
        await producer.send_batch(numbered(5))
        eh.hub.delete_hub(eh.name)
        with pytest.raises(EventHubError):
            await producer.send_batch(numbered(1))
        eh.hub.create_hub(eh.name, 1)
        await producer.send_event(EventData(b"new"))
        async with sdk.read(eh) as reader:
            assert bodies(await reader.take(1)) == [b"new"]
            assert sequences(reader.events) == [0]


@both_sdks
async def test_a_group_is_deleted(sdk: Sdk, single: Entity) -> None:
    single.hub.create_group(single.name, "Short")
    async with (
        sdk.producer(single.connection) as producer,
        sdk.read(single) as stays,
        sdk.read(single, group="Short") as goes,
    ):
        await single.attached(group="short")
        await single.attached()
        single.hub.delete_group(single.name, "Short")
        error = await goes.error()
        assert isinstance(error, ConnectionLostError)
        assert condition(error) == "not-found"
        assert "The consumer group 'Short' has been deleted." in str(error)
        # The readers of other groups are not affected.
        await producer.send_batch(numbered(3))
        assert sequences(await stays.take(3)) == [0, 1, 2]


@both_sdks
async def test_hubs_and_groups_are_made_while_clients_are_there(
    sdk: Sdk, eh: Entity, single: Entity
) -> None:
    async with sdk.producer(eh.connection) as producer:
        await producer.send_event(EventData(b""))
        name = f"{eh.name}-more"
        eh.hub.create_hub(name, 1, ["Early"])
        eh.hub.create_group(name, "Late")
        more = Entity(eh.hub, name)
        async with (
            sdk.producer(more.connection) as other,
            sdk.read(more, group="Early") as early,
            sdk.read(more, group="Late") as late,
        ):
            await other.send_event(EventData(b"hello"))
            assert bodies(await early.take(1)) == bodies(await late.take(1)) == [b"hello"]
        await producer.send_event(EventData(b""))
