"""Properties of a hub and its partitions, as the SDK reads them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.eventhub import EventData
from azure.eventhub.exceptions import AuthenticationError, ConnectError

from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention
from tests.conformance.entity import Entity, MovableClock, running
from tests.conformance.readers import MILLISECOND, numbered, sequences
from tests.conformance.sdks import NO_RETRY, Sdk, both_sdks
from tests.conformance.variants import HubVariant

pytestmark = pytest.mark.asyncio(loop_scope="session")

# The enqueued time of a partition without events.
NEVER = datetime(1, 1, 1, tzinfo=UTC)


@both_sdks
async def test_the_hub(sdk: Sdk, variant: HubVariant) -> None:
    before = datetime.now(UTC)
    async with running(variant.hub({"Sensors/North": 32})) as hub:
        connection = hub.connection_string("Sensors/North")
        async with sdk.producer(connection) as producer:
            properties = await producer.get_eventhub_properties()
            ids = await producer.get_partition_ids()
        async with sdk.consumer(connection) as consumer:
            assert await consumer.get_eventhub_properties() == properties
    created = properties.pop("created_at")
    assert before - MILLISECOND <= created <= datetime.now(UTC)
    all_ids = [str(number) for number in range(32)]
    assert properties == {"eventhub_name": "Sensors/North", "partition_ids": all_ids}
    assert ids == all_ids


@both_sdks
async def test_the_name_in_another_case(sdk: Sdk, eh: Entity) -> None:
    """Names are case-insensitive, and the response has the name as it was created."""
    connection = eh.hub.connection_string()
    async with sdk.producer(connection, eventhub_name=eh.name.upper()) as producer:
        assert (await producer.get_eventhub_properties())["eventhub_name"] == eh.name


@both_sdks
async def test_a_partition_before_and_after_sending(sdk: Sdk, eh: Entity) -> None:
    before = datetime.now(UTC)
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, "1") as reader:
        assert await producer.get_partition_properties("1") == {
            "eventhub_name": eh.name,
            "id": "1",
            "beginning_sequence_number": 0,
            "last_enqueued_sequence_number": -1,
            "last_enqueued_offset": "-1",
            "last_enqueued_time_utc": NEVER,
            "is_empty": True,
        }
        await producer.send_batch(numbered(5), partition_id="1")
        *_, last = await reader.take(5)
        properties = await producer.get_partition_properties("1")
        untouched = await producer.get_partition_properties("2")
    assert properties == {
        "eventhub_name": eh.name,
        "id": "1",
        "beginning_sequence_number": 0,
        "last_enqueued_sequence_number": 4,
        "last_enqueued_offset": last.offset,
        "last_enqueued_time_utc": last.enqueued_time,
        "is_empty": False,
    }
    assert before - MILLISECOND <= properties["last_enqueued_time_utc"]
    assert untouched["is_empty"]


@both_sdks
async def test_a_partition_after_retention(sdk: Sdk, variant: HubVariant) -> None:
    """The first number moves with retention; the number of the last event stays."""
    clock = MovableClock(-3600)
    async with running(
        variant.hub({"eh": 1}, clock=clock, retention=Retention(seconds=600))
    ) as hub:
        eh = Entity(hub, "eh")

        def bounds(properties: dict[str, Any]) -> tuple[int, int, bool]:
            first = properties["beginning_sequence_number"]
            return first, properties["last_enqueued_sequence_number"], properties["is_empty"]

        async with sdk.producer(eh.connection) as producer:
            await producer.send_batch(numbered(5))
            clock.advance(300)
            await producer.send_batch(numbered(5))
            last = await producer.get_partition_properties("0")
            assert bounds(last) == (0, 9, False)

            clock.advance(400)
            hub._call(hub.namespace.expire)
            assert bounds(await producer.get_partition_properties("0")) == (5, 9, False)

            clock.advance(400)
            hub._call(hub.namespace.expire)
            empty = await producer.get_partition_properties("0")
            assert bounds(empty) == (10, 9, True)
            assert empty["last_enqueued_offset"] == last["last_enqueued_offset"]
            assert empty["last_enqueued_time_utc"] == last["last_enqueued_time_utc"]

            async with sdk.read(eh, start=last["last_enqueued_offset"]) as reader:
                await producer.send_event(EventData(b"next"))
                assert sequences(await reader.take(1)) == [10]
                await reader.close()


# A defect of the SDK: it reads the text of a refusal from "statusDescription", the key of Service
# Bus, and reports "None". Event Hubs and the embedded hub write "status-description".


@both_sdks
async def test_a_missing_hub(sdk: Sdk, hub: EmbeddedHub) -> None:
    connection = hub.connection_string()
    async with sdk.producer(connection, eventhub_name="nowhere", **NO_RETRY) as producer:
        text = "Status code: 404\nDescription: The messaging entity '.*nowhere' could not be found"
        with pytest.raises(AuthenticationError, match=text):
            await producer.get_eventhub_properties()


@both_sdks
async def test_a_missing_partition(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection, **NO_RETRY) as producer:
        with pytest.raises(ConnectError, match="Status code: 400, Description: None"):
            await producer.get_partition_properties("4")


@both_sdks
async def test_times_come_from_the_clock_of_the_hub(sdk: Sdk, variant: HubVariant) -> None:
    clock = MovableClock(-timedelta(days=1).total_seconds())
    async with (
        running(variant.hub({"eh": 1}, clock=clock)) as hub,
        sdk.producer(hub.connection_string("eh")) as producer,
    ):
        await producer.send_event(EventData(b""))
        properties = await producer.get_partition_properties("0")
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert abs(properties["last_enqueued_time_utc"] - yesterday) < timedelta(hours=1)
