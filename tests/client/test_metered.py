"""Metrics of clients: their names, labels and values, while readers and senders exist."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.client.metered import MeteredClient
from pumphouse.client.native.client import NativeClient
from pumphouse.client.wrapped import ObservedReader
from pumphouse.errors import AmqpError, EventTooLarge, ReaderEvicted
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.telemetry.page import forget_totals, recording, scrape

SENT, CONSUMED = "messaging_client_sent_messages_total", "messaging_client_consumed_messages_total"
CALLS = "messaging_client_operation_duration_seconds_count"


@pytest.fixture(autouse=True)
def no_totals() -> None:
    forget_totals()


@pytest.fixture
async def client(hub: EmbeddedHub) -> AsyncIterator[HubClient]:
    with recording():
        async with open_client(hub.connection_string("eh")) as client:
            assert isinstance(client, MeteredClient)
            yield client


def values(name: str, **labels: str) -> list[float]:
    return list(scrape(name, messaging_destination_name="eh", **labels).values())


async def test_what_is_sent_and_received(client: HubClient) -> None:
    sender = await client.sender("0")
    await sender.send([Event(b"a"), Event(b"b")])
    await sender.send([Event(b"c")])
    labels = {
        "messaging_system": "eventhubs",
        "messaging_operation_name": "send",
        "messaging_operation_type": "send",
        "messaging_destination_partition_id": "0",
    }
    assert values(SENT, **labels) == [3]
    assert values(CALLS, **labels) == [2]
    reader = await client.reader(ReaderOptions("0", group="$Default"))
    received = 0
    while received < 3:
        received += len(await reader.receive(deadline_s=30))
    labels = {"messaging_consumer_group_name": "$Default", "messaging_operation_name": "receive"}
    assert values(CONSUMED, **labels) == [3]
    calls = values(CALLS, **labels)
    assert await reader.receive(deadline_s=0.01) == []
    assert values(CALLS, **labels) == calls  # a call without an event is not recorded


async def test_durations_are_those_of_the_given_clock(hub: EmbeddedHub) -> None:
    times = iter([100.0, 103.0, 200.0, 207.0])
    async with MeteredClient(NativeClient(hub.connection_string("eh")), lambda: next(times)) as one:
        sender = await one.sender("0")
        await sender.send([Event(b"a")])
        with pytest.raises(EventTooLarge):
            await sender.send([Event(bytes(2_000_000))])
        seconds = "messaging_client_operation_duration_seconds_sum"
        assert values(seconds, error_type="") == [3]
        assert values(seconds, error_type="EventTooLarge") == [7]


async def test_totals_of_closed_senders_stay(client: HubClient) -> None:
    """A producer for each request may be open for less than the interval of a scrape."""
    for _ in range(3):
        sender = await client.sender("1")
        await sender.send([Event(b"a"), Event(b"b")])
        with pytest.raises(EventTooLarge):
            await sender.send([Event(bytes(2_000_000))])
        await sender.close()
    labels = {"messaging_destination_partition_id": "1"}
    assert values(SENT, error_type="", **labels) == [6]
    assert values(CALLS, error_type="", **labels) == [3]
    assert values(CALLS, error_type="EventTooLarge", **labels) == [3]


async def test_totals_of_senders_stay_after_their_client(hub: EmbeddedHub) -> None:
    for _ in range(3):
        with recording():
            async with open_client(hub.connection_string("eh")) as client:
                await (await client.sender("1")).send([Event(b"a")])
                await client.reader(ReaderOptions("1"))
                assert len(values(CALLS, messaging_destination_partition_id="1")) == 2
    assert values(SENT, messaging_destination_partition_id="1") == [3]
    assert values(CALLS, messaging_destination_partition_id="1") == [3]


async def test_series_of_a_partition_end_with_its_last_reader(client: HubClient) -> None:
    first, second = [await client.reader(ReaderOptions("1")) for _ in range(2)]
    await first.close()
    assert values(CONSUMED, messaging_destination_partition_id="1") == [0]
    await second.close()
    assert values(CONSUMED, messaging_destination_partition_id="1") == []


async def test_a_reader_that_fails_after_its_close_leaves_no_series(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("1"))
    assert isinstance(reader, ObservedReader)
    await reader.close()

    async def fail() -> list[Event]:
        raise ReaderEvicted("amqp:link:stolen", "detached")

    with pytest.raises(ReaderEvicted):
        await reader._observer.receive(fail)
    assert values(CALLS, messaging_destination_partition_id="1") == []


async def test_failures_have_the_name_of_their_error(client: HubClient) -> None:
    sender = await client.sender("0")
    with pytest.raises(EventTooLarge):
        await sender.send([Event(bytes(2_000_000))])
    assert values(SENT, error_type="EventTooLarge") == [1]
    assert values(CALLS, error_type="EventTooLarge") == [1]
    await sender.close()
    reader = await client.reader(ReaderOptions("0", epoch=1))
    await client.reader(ReaderOptions("0", epoch=2))
    with pytest.raises(ReaderEvicted):
        await reader.receive(deadline_s=30)
    assert values(CALLS, error_type="ReaderEvicted") == [1]


async def test_a_reader_that_cannot_be_opened_leaves_no_series(client: HubClient) -> None:
    with pytest.raises(AmqpError, match="It should be between 0 and 1"):
        await client.reader(ReaderOptions("99"))
    assert values(CALLS, messaging_destination_partition_id="99") == []


async def test_without_metrics_the_driver_is_returned_as_it_is(hub: EmbeddedHub) -> None:
    assert isinstance(open_client(hub.connection_string("eh")), NativeClient)
