"""A reader delivers the events of one partition in order, each once; every call ends."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.errors import LocalProtocolError
from pumphouse.events import LATEST, Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.contract.support import (
    DEADLINE_S,
    Place,
    bodies,
    eventually,
    every_door,
    fill,
    numbered,
    read,
    sequences,
    take,
)


@every_door
async def test_in_order_and_each_once(client: HubClient) -> None:
    await fill(client, "1", 2500)
    events = await read(client, "1", 2500)
    assert sequences(events) == list(range(2500))
    assert bodies(events) == bodies(numbered(2500))
    assert {event.partition for event in events} == {"1"}


async def test_receive_ends_at_its_deadline(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.receive(10, 0.01) == []
        assert await reader.receive(10, 0) == []


async def test_receive_does_not_wait_for_more_than_there_is(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(100, 3600.0))
    await fill(client, "0", 1)
    async with asyncio.timeout(DEADLINE_S):
        assert bodies(await waiting) == [b"0"]


async def test_receive_hands_out_no_more_than_asked_for(client: HubClient) -> None:
    await fill(client, "0", 20)
    reader = await client.reader(ReaderOptions("0"))
    found: list[Event] = []
    while len(found) < 20:
        events = await reader.receive(3, DEADLINE_S)
        assert len(events) <= 3
        found += events
    assert sequences(found) == list(range(20))


async def test_what_is_not_taken_stays_when_a_receive_is_cancelled(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(1, DEADLINE_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await fill(client, "0", 5)
    assert sequences(await take(reader, 5)) == list(range(5))


async def test_what_waits_and_what_may_still_come_has_a_bound(
    client: HubClient, place: Place
) -> None:
    await fill(client, "0", 100)
    reader = await client.reader(ReaderOptions("0", prefetch=10))
    [outlet] = place.outlets()
    for taken in range(0, 72, 6):
        # The hub's side of it: what was sent and not taken, and what it may still send. Once more
        # than half was taken, all of it is asked for again.
        await eventually(lambda taken=taken: place.granted(outlet) - taken >= 10)  # type: ignore[misc]
        assert place.granted(outlet) - taken == 10
        assert sequences(await take(reader, 6, at_once=2)) == list(range(taken, taken + 6))


async def test_a_prefetch_of_one(client: HubClient) -> None:
    await fill(client, "0", 20)
    assert sequences(await read(client, "0", 20, prefetch=1)) == list(range(20))


async def test_large_events_with_little_room_for_them(client: HubClient) -> None:
    sender = await client.sender("0")
    await sender.send([Event(bytes([number]) * 200_000) for number in range(20)])
    events = await read(client, "0", 20, prefetch_bytes_max=250_000)
    assert [event.body[:1] for event in events] == [bytes([number]) for number in range(20)]
    assert {len(event.body) for event in events} == {200_000}


async def test_two_partitions_at_once(client: HubClient) -> None:
    async def follow(partition: str) -> list[bytes]:
        return bodies(await read(client, partition, 500))

    first, second = asyncio.create_task(follow("0")), asyncio.create_task(follow("2"))
    await asyncio.gather(fill(client, "0", 500), fill(client, "2", 500, start=1000))
    async with asyncio.timeout(DEADLINE_S):
        assert await first == bodies(numbered(500))
        assert await second == bodies(numbered(500, start=1000))


async def test_thirty_two_readers(hub: EmbeddedHub, place: Place) -> None:
    name = f"{place.name}-wide"
    hub.create_hub(name, 32)
    async with place.client(name=name) as client:
        sender = await client.sender()
        await sender.send(numbered(320), batch_events_max=10)  # without a key: in turn
        readers = await asyncio.gather(
            *(client.reader(ReaderOptions(str(number))) for number in range(32))
        )
        found = await asyncio.gather(*(take(reader, 10) for reader in readers))
        assert [sequences(events) for events in found] == [list(range(10))] * 32
        assert sorted(int(event.body) for events in found for event in events) == list(range(320))


async def test_readers_of_one_group_without_an_epoch_get_the_same(client: HubClient) -> None:
    await fill(client, "0", 10)
    readers = await asyncio.gather(*(client.reader(ReaderOptions("0")) for _ in range(2)))
    for reader in readers:
        assert sequences(await take(reader, 10)) == list(range(10))


async def test_the_end_of_the_partition_is_told_to_whoever_asks(client: HubClient) -> None:
    await fill(client, "0", 10)
    properties = await client.partition_properties("0")
    knowing = await client.reader(ReaderOptions("0", track_end=True))
    assert knowing.end is None
    await take(knowing, 4, at_once=2)
    assert knowing.end is not None
    assert knowing.end.sequence == properties.last_sequence == 9
    assert knowing.end.offset == properties.last_offset
    assert knowing.end.enqueued_ms == properties.last_enqueued_ms
    assert knowing.end.retrieved_ms >= knowing.end.enqueued_ms
    unknowing = await client.reader(ReaderOptions("0"))
    await take(unknowing, 10)
    assert unknowing.end is None


# -- leaving --------------------------------------------------------------------------------------


async def test_closing_wakes_whoever_waits(client: HubClient, place: Place) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(1, 3600.0))
    await asyncio.sleep(0)
    await reader.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(LocalProtocolError, match="has been closed"):
            await waiting
    await place.empty()


async def test_what_was_prefetched_is_forgotten(client: HubClient, place: Place) -> None:
    await fill(client, "0", 20)
    reader = await client.reader(ReaderOptions("0"))
    await take(reader, 1, at_once=1)
    await reader.close()
    await reader.close()
    with pytest.raises(LocalProtocolError, match="has been closed"):
        await reader.receive(1, DEADLINE_S)
    await place.empty()


async def test_a_closed_reader_makes_room(client: HubClient, place: Place) -> None:
    readers = [await client.reader(ReaderOptions("0")) for _ in range(5)]
    await readers[0].close()
    await eventually(lambda: len(place.outlets()) == 4)
    await client.reader(ReaderOptions("0"))


async def test_a_client_closes_its_readers(place: Place) -> None:
    before = asyncio.all_tasks()
    async with place.client() as client:
        reader = await client.reader(ReaderOptions("0", position=LATEST))
        assert len(place.outlets()) == 1
    await place.empty()
    with pytest.raises(LocalProtocolError, match="closed"):
        await reader.receive(1, DEADLINE_S)
    assert asyncio.all_tasks() == before


async def test_a_client_is_closed_when_its_task_is_cancelled(place: Place) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with place.client() as client:
            reader = await client.reader(ReaderOptions("0"))
            inside.set()
            await reader.receive(1, 3600.0)

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await place.empty()
