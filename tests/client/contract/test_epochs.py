"""Who may read: a lower epoch gives way or is kept out, and is told by whom."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.base import HubClient, Reader, ReaderOptions
from pumphouse.errors import AmqpError, ReaderEvicted
from pumphouse.events import Event
from tests.client.contract.support import DEADLINE_S, Place, fill, sequences, take


async def drain(reader: Reader, found: list[Event]) -> None:
    """Receive until it raises."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found += await reader.receive(10, DEADLINE_S)


async def test_a_higher_epoch_evicts(client: HubClient, place: Place) -> None:
    old = await client.reader(ReaderOptions("0", epoch=1))
    await fill(client, "0", 3)
    assert sequences(await take(old, 1, at_once=1)) == [0]
    new = await client.reader(ReaderOptions("0", epoch=7))
    # What had arrived is handed out first.
    found: list[Event] = []
    with pytest.raises(ReaderEvicted, match="with higher epoch of '7' is created") as evicted:
        await drain(old, found)
    assert sequences(found) in ([], [1], [1, 2])
    assert (evicted.value.condition, evicted.value.epoch) == ("amqp:link:stolen", 7)
    with pytest.raises(ReaderEvicted):  # and for good: it does not come back
        await old.receive(1, DEADLINE_S)
    assert sequences(await take(new, 3)) == [0, 1, 2]
    assert [outlet.reader.epoch for outlet in place.outlets()] == [7]


async def test_an_equal_epoch_steals(client: HubClient) -> None:
    old = await client.reader(ReaderOptions("0", epoch=4))
    waiting = asyncio.create_task(old.receive(1, 3600.0))
    await client.reader(ReaderOptions("0", epoch=4))
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(ReaderEvicted) as evicted:
            await waiting
    assert evicted.value.epoch == 4


async def test_a_lower_epoch_is_kept_out(client: HubClient, place: Place) -> None:
    await client.reader(ReaderOptions("0", epoch=5))
    with pytest.raises(ReaderEvicted, match="higher epoch '5' already exists") as refused:
        await client.reader(ReaderOptions("0", epoch=4))
    assert (refused.value.condition, refused.value.epoch) == ("amqp:link:stolen", 5)
    with pytest.raises(ReaderEvicted, match="non-epoch receiver is not allowed") as refused:
        await client.reader(ReaderOptions("0"))
    assert refused.value.epoch == 5
    assert [outlet.reader.epoch for outlet in place.outlets()] == [5]


async def test_zero_is_an_epoch_and_evicts_those_without(client: HubClient) -> None:
    without = await client.reader(ReaderOptions("0"))
    await client.reader(ReaderOptions("0", epoch=0))
    with pytest.raises(ReaderEvicted) as evicted:
        await without.receive(1, DEADLINE_S)
    assert evicted.value.epoch == 0


async def test_a_large_epoch(client: HubClient, place: Place) -> None:
    await client.reader(ReaderOptions("0", epoch=2**62))
    assert [outlet.reader.epoch for outlet in place.outlets()] == [2**62]


async def test_groups_and_partitions_are_apart(client: HubClient, place: Place) -> None:
    place.hub.create_group(place.name, "other")
    await fill(client, "0", 2)
    first = await client.reader(ReaderOptions("0", epoch=9))
    second = await client.reader(ReaderOptions("0", group="other", epoch=1))
    await client.reader(ReaderOptions("1", epoch=1))
    for reader in (first, second):
        assert sequences(await take(reader, 2)) == [0, 1]


async def test_no_more_than_five_without_an_epoch(client: HubClient) -> None:
    await asyncio.gather(*(client.reader(ReaderOptions("0")) for _ in range(5)))
    with pytest.raises(AmqpError, match="maximum number of allowed receivers") as refused:
        await client.reader(ReaderOptions("0"))
    assert refused.value.condition == "amqp:resource-limit-exceeded"
    assert not isinstance(refused.value, ReaderEvicted)


async def test_the_evicted_hear_by_whom(client: HubClient) -> None:
    old = await client.reader(ReaderOptions("0", epoch=1, name="host-a"))
    await client.reader(ReaderOptions("0", epoch=2, name="host-b"))
    with pytest.raises(ReaderEvicted, match=r"New receiver 'host-b'.*receiver 'host-a'"):
        await old.receive(1, DEADLINE_S)


async def test_a_thief_is_noticed(client: HubClient, place: Place) -> None:
    reader = await client.reader(ReaderOptions("0", epoch=3))
    assert place.hub.steal_readers(place.name) == 1
    with pytest.raises(ReaderEvicted) as evicted:
        await reader.receive(1, DEADLINE_S)
    assert evicted.value.epoch == 4
