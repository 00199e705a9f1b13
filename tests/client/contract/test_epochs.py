"""Epochs: a lower epoch is evicted or refused, and gets the name of the other reader."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.base import HubClient, Reader, ReaderOptions
from pumphouse.errors import AmqpError, ReaderEvicted
from pumphouse.events import Event
from tests.client.contract.support import DEADLINE_S, DriverTarget, fill, sequences, take


async def drain(reader: Reader, received: list[Event]) -> None:
    """Receive until it raises."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            received += await reader.receive(10, DEADLINE_S)


async def test_a_higher_epoch_evicts(client: HubClient, target: DriverTarget) -> None:
    old = await client.reader(ReaderOptions("0", epoch=1))
    await fill(client, "0", 3)
    assert sequences(await take(old, 1, at_once=1)) == [0]
    new = await client.reader(ReaderOptions("0", epoch=7))
    # Buffered events are returned first.
    received: list[Event] = []
    with pytest.raises(ReaderEvicted, match="with higher epoch of '7' is created") as evicted:
        await drain(old, received)
    assert sequences(received) in ([], [1], [1, 2])
    assert (evicted.value.condition, evicted.value.epoch) == ("amqp:link:stolen", 7)
    with pytest.raises(ReaderEvicted):  # permanently
        await old.receive(1, DEADLINE_S)
    assert sequences(await take(new, 3)) == [0, 1, 2]
    assert [consumer.reader.epoch for consumer in target.consumer_links()] == [7]


async def test_an_equal_epoch_evicts(client: HubClient) -> None:
    old = await client.reader(ReaderOptions("0", epoch=4))
    waiting = asyncio.create_task(old.receive(1, 3600.0))
    await client.reader(ReaderOptions("0", epoch=4))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ReaderEvicted) as evicted:
            await waiting
    assert evicted.value.epoch == 4


async def test_a_lower_epoch_is_refused(client: HubClient, target: DriverTarget) -> None:
    await client.reader(ReaderOptions("0", epoch=5))
    with pytest.raises(ReaderEvicted, match="higher epoch '5' already exists") as refused:
        await client.reader(ReaderOptions("0", epoch=4))
    assert (refused.value.condition, refused.value.epoch) == ("amqp:link:stolen", 5)
    with pytest.raises(ReaderEvicted, match="non-epoch receiver is not allowed") as refused:
        await client.reader(ReaderOptions("0"))
    assert refused.value.epoch == 5
    assert [consumer.reader.epoch for consumer in target.consumer_links()] == [5]


async def test_epoch_zero_evicts_readers_without_an_epoch(client: HubClient) -> None:
    without = await client.reader(ReaderOptions("0"))
    await client.reader(ReaderOptions("0", epoch=0))
    with pytest.raises(ReaderEvicted) as evicted:
        await without.receive(1, DEADLINE_S)
    assert evicted.value.epoch == 0


async def test_a_64_bit_epoch_is_accepted(client: HubClient, target: DriverTarget) -> None:
    await client.reader(ReaderOptions("0", epoch=2**62))
    assert [consumer.reader.epoch for consumer in target.consumer_links()] == [2**62]


async def test_epochs_are_separate_per_group_and_partition(
    client: HubClient, target: DriverTarget
) -> None:
    target.hub.create_group(target.name, "other")
    await fill(client, "0", 2)
    first = await client.reader(ReaderOptions("0", epoch=9))
    second = await client.reader(ReaderOptions("0", group="other", epoch=1))
    await client.reader(ReaderOptions("1", epoch=1))
    for reader in (first, second):
        assert sequences(await take(reader, 2)) == [0, 1]


async def test_a_sixth_reader_without_an_epoch_is_refused(client: HubClient) -> None:
    await asyncio.gather(*(client.reader(ReaderOptions("0")) for _ in range(5)))
    with pytest.raises(AmqpError, match="maximum number of allowed receivers") as refused:
        await client.reader(ReaderOptions("0"))
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    assert not isinstance(refused.value, ReaderEvicted)


async def test_an_evicted_reader_gets_the_name_of_its_successor(client: HubClient) -> None:
    old = await client.reader(ReaderOptions("0", epoch=1, name="host-a"))
    await client.reader(ReaderOptions("0", epoch=2, name="host-b"))
    with pytest.raises(ReaderEvicted, match=r"New receiver 'host-b'.*receiver 'host-a'"):
        await old.receive(1, DEADLINE_S)


async def test_an_eviction_is_noticed_while_waiting(
    client: HubClient, target: DriverTarget
) -> None:
    reader = await client.reader(ReaderOptions("0", epoch=3))
    assert target.hub.steal_readers(target.name) == 1
    with pytest.raises(ReaderEvicted) as evicted:
        await reader.receive(1, DEADLINE_S)
    assert evicted.value.epoch == 4
