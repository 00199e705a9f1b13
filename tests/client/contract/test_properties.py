"""Properties of a hub and its partitions."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.base import HubClient
from pumphouse.clock import MovableClock
from pumphouse.errors import AmqpError
from pumphouse.events import NEVER_MS
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention
from tests.client.contract.support import DriverTarget, every_listener, fill, read, running


@every_listener
async def test_hub_properties(client: HubClient, target: DriverTarget) -> None:
    properties = await client.properties()
    assert (properties.name, properties.partitions) == (target.name, ("0", "1", "2", "3"))
    assert properties.created_ms == target.hub.namespace.hub(target.name).created_ms
    assert client.hub == target.name


async def test_the_namespace_for_checkpoints(client: HubClient, target: DriverTarget) -> None:
    assert client.namespace == f"127.0.0.1:{target.hub.port}"


async def test_properties_of_an_unused_partition(client: HubClient, target: DriverTarget) -> None:
    empty = await client.partition_properties("1")
    assert (empty.hub, empty.partition, empty.empty) == (target.name, "1", True)
    assert (empty.first_sequence, empty.last_sequence) == (0, -1)
    assert (empty.last_offset, empty.last_enqueued_ms) == ("-1", NEVER_MS)


async def test_properties_of_a_partition_with_events(client: HubClient) -> None:
    await fill(client, "1", 12)
    last = (await read(client, "1", 12))[-1]
    partition = await client.partition_properties("1")
    assert (partition.first_sequence, partition.last_sequence, partition.empty) == (0, 11, False)
    assert (partition.last_offset, partition.last_enqueued_ms) == (last.offset, last.enqueued_ms)


async def test_properties_of_a_partition_with_expired_events(driver: str) -> None:
    clock = MovableClock()
    made = EmbeddedHub({"eh": 1}, clock=clock, retention=Retention(seconds=60))
    async with running(made) as hub, DriverTarget(hub, "eh", driver).client() as client:
        await fill(client, "0", 5)
        clock.advance(61)
        hub.tick()
        gone = await client.partition_properties("0")
        assert (gone.first_sequence, gone.last_sequence, gone.empty) == (5, 4, True)
        assert gone.first_sequence > gone.last_sequence
        await fill(client, "0", 2)
        partition = await client.partition_properties("0")
        assert (partition.first_sequence, partition.last_sequence, partition.empty) == (5, 6, False)
        assert [event.sequence for event in await read(client, "0", 2)] == [5, 6]


async def test_properties_of_an_unknown_partition_are_refused(client: HubClient) -> None:
    with pytest.raises(AmqpError, match="between 0 and 3") as refused:
        await client.partition_properties("4")
    assert refused.value.condition == "com.microsoft:argument-out-of-range"


async def test_concurrent_property_calls(client: HubClient) -> None:
    replies = await asyncio.gather(*(client.partition_properties(str(n % 4)) for n in range(12)))
    assert [reply.partition for reply in replies] == [str(n % 4) for n in range(12)]
