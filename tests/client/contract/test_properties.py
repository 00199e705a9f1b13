"""What a hub and its partitions tell of themselves."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.base import HubClient
from pumphouse.clock import MovableClock
from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention
from tests.client.contract.support import Place, every_door, fill, read, running


@every_door
async def test_a_hub(client: HubClient, place: Place) -> None:
    properties = await client.properties()
    assert (properties.name, properties.partitions) == (place.name, ("0", "1", "2", "3"))
    assert properties.created_ms == place.hub.namespace.hub(place.name).created_ms
    assert client.hub == place.name


async def test_where_checkpoints_are_filed(client: HubClient, place: Place) -> None:
    assert client.namespace == f"127.0.0.1:{place.hub.port}"


async def test_a_partition_in_which_nothing_has_ever_been(client: HubClient, place: Place) -> None:
    empty = await client.partition_properties("1")
    assert (empty.hub, empty.partition, empty.empty) == (place.name, "1", True)
    assert (empty.first_sequence, empty.last_sequence) == (0, -1)
    assert (empty.last_offset, empty.last_enqueued_ms) == ("-1", NEVER_MS)


async def test_a_partition_with_events(client: HubClient) -> None:
    await fill(client, "1", 12)
    last = (await read(client, "1", 12))[-1]
    found = await client.partition_properties("1")
    assert (found.first_sequence, found.last_sequence, found.empty) == (0, 11, False)
    assert (found.last_offset, found.last_enqueued_ms) == (last.offset, last.enqueued_ms)


async def test_a_partition_whose_events_have_expired(driver: str) -> None:
    clock = MovableClock()
    made = EmbeddedHub({"eh": 1}, clock=clock, retention=Retention(seconds=60))
    async with running(made) as hub, Place(hub, "eh", driver).client() as client:
        await fill(client, "0", 5)
        clock.advance(61)
        hub.tick()
        gone = await client.partition_properties("0")
        assert (gone.first_sequence, gone.last_sequence, gone.empty) == (5, 4, True)
        assert gone.first_sequence > gone.last_sequence
        await fill(client, "0", 2)
        there = await client.partition_properties("0")
        assert (there.first_sequence, there.last_sequence, there.empty) == (5, 6, False)
        assert [event.sequence for event in await read(client, "0", 2)] == [5, 6]


async def test_an_unknown_partition(client: HubClient) -> None:
    with pytest.raises(AmqpError, match="between 0 and 3") as refused:
        await client.partition_properties("4")
    assert refused.value.condition == "com.microsoft:argument-out-of-range"


async def test_many_questions_at_once(client: HubClient) -> None:
    found = await asyncio.gather(*(client.partition_properties(str(n % 4)) for n in range(12)))
    assert [one.partition for one in found] == [str(n % 4) for n in range(12)]
