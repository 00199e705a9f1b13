"""A reader delivers the events of one partition in order, each once; every call ends."""

from __future__ import annotations

import asyncio
from itertools import cycle

import pytest

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.errors import LocalProtocolError
from pumphouse.events import LATEST, Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.contract.support import (
    DEADLINE_S,
    DriverTarget,
    bodies,
    eventually,
    every_listener,
    fill,
    numbered,
    read,
    sequences,
    take,
)


@every_listener
async def test_events_are_read_in_order_and_once(client: HubClient) -> None:
    await fill(client, "1", 2500)
    events = await read(client, "1", 2500)
    assert sequences(events) == list(range(2500))
    assert bodies(events) == bodies(numbered(2500))
    assert {event.partition for event in events} == {"1"}


async def test_receive_returns_at_its_deadline(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.receive(10, 0.01) == []
        assert await reader.receive(10, 0) == []


async def test_receive_returns_as_soon_as_there_is_an_event(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(100, 3600.0))
    await fill(client, "0", 1)
    async with asyncio.timeout(DEADLINE_S):
        assert bodies(await waiting) == [b"0"]


async def test_receive_respects_max_events(client: HubClient) -> None:
    await fill(client, "0", 20)
    reader = await client.reader(ReaderOptions("0"))
    received: list[Event] = []
    while len(received) < 20:
        events = await reader.receive(3, DEADLINE_S)
        assert len(events) <= 3
        received += events
    assert sequences(received) == list(range(20))


async def test_a_cancelled_receive_loses_no_event(client: HubClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(1, DEADLINE_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await fill(client, "0", 5)
    assert sequences(await take(reader, 5)) == list(range(5))


async def test_buffered_events_and_credit_are_limited(
    client: HubClient, target: DriverTarget
) -> None:
    await fill(client, "0", 100)
    reader = await client.reader(ReaderOptions("0", prefetch=10))
    [consumer] = target.consumer_links()
    for taken in range(0, 72, 6):
        # In the hub: events sent but not received, and remaining credit. After more than half
        # is received, credit is granted again.
        await eventually(lambda taken=taken: target.granted(consumer) - taken >= 10)  # type: ignore[misc]
        assert target.granted(consumer) - taken == 10
        assert sequences(await take(reader, 6, at_once=2)) == list(range(taken, taken + 6))


async def test_a_prefetch_of_one_reads_all_events(client: HubClient) -> None:
    await fill(client, "0", 20)
    assert sequences(await read(client, "0", 20, prefetch=1)) == list(range(20))


async def test_large_events_with_a_small_byte_limit_are_read(client: HubClient) -> None:
    sender = await client.sender("0")
    await sender.send([Event(bytes([number]) * 200_000) for number in range(20)])
    events = await read(client, "0", 20, prefetch_bytes_max=250_000)
    assert [event.body[:1] for event in events] == [bytes([number]) for number in range(20)]
    assert {len(event.body) for event in events} == {200_000}


async def test_a_byte_limit_may_shrink_and_grow_while_the_reader_is_open(client: HubClient) -> None:
    sender = await client.sender("0")
    await sender.send([Event(bytes([number]) * 200_000) for number in range(40)])
    limits = cycle([8_000_000, 1, 250_000, 1_000_000])
    events = await read(client, "0", 40, bytes_limit=lambda: next(limits))
    assert [event.body[:1] for event in events] == [bytes([number]) for number in range(40)]


async def test_two_partitions_are_read_concurrently(client: HubClient) -> None:
    async def follow(partition: str) -> list[bytes]:
        return bodies(await read(client, partition, 500))

    first, second = asyncio.create_task(follow("0")), asyncio.create_task(follow("2"))
    await asyncio.gather(fill(client, "0", 500), fill(client, "2", 500, start=1000))
    async with asyncio.timeout(DEADLINE_S):
        assert await first == bodies(numbered(500))
        assert await second == bodies(numbered(500, start=1000))


async def test_thirty_two_readers_are_served(hub: EmbeddedHub, target: DriverTarget) -> None:
    name = f"{target.name}-wide"
    hub.create_hub(name, 32)
    async with target.client(name=name) as client:
        sender = await client.sender()
        await sender.send(numbered(320), batch_events_max=10)  # without a key: in turn
        readers = await asyncio.gather(
            *(client.reader(ReaderOptions(str(number))) for number in range(32))
        )
        received = await asyncio.gather(*(take(reader, 10) for reader in readers))
        assert [sequences(events) for events in received] == [list(range(10))] * 32
        assert sorted(int(event.body) for events in received for event in events) == list(
            range(320)
        )


async def test_readers_without_an_epoch_get_the_same_events(client: HubClient) -> None:
    await fill(client, "0", 10)
    readers = await asyncio.gather(*(client.reader(ReaderOptions("0")) for _ in range(2)))
    for reader in readers:
        assert sequences(await take(reader, 10)) == list(range(10))


async def test_track_end_reports_the_partition_end(client: HubClient) -> None:
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


# -- closing --------------------------------------------------------------------------------------


async def test_closing_ends_a_waiting_receive(client: HubClient, target: DriverTarget) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(1, 3600.0))
    await asyncio.sleep(0)
    await reader.close()
    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(LocalProtocolError, match="has been closed"):
            await waiting
    await target.empty()


async def test_closing_drops_prefetched_events(client: HubClient, target: DriverTarget) -> None:
    await fill(client, "0", 20)
    reader = await client.reader(ReaderOptions("0"))
    await take(reader, 1, at_once=1)
    await reader.close()
    await reader.close()
    with pytest.raises(LocalProtocolError, match="has been closed"):
        await reader.receive(1, DEADLINE_S)
    await target.empty()


async def test_a_closed_reader_frees_its_place(client: HubClient, target: DriverTarget) -> None:
    readers = [await client.reader(ReaderOptions("0")) for _ in range(5)]
    await readers[0].close()
    await eventually(lambda: len(target.consumer_links()) == 4)
    await client.reader(ReaderOptions("0"))


async def test_a_client_closes_its_readers(target: DriverTarget) -> None:
    before = asyncio.all_tasks()
    async with target.client() as client:
        reader = await client.reader(ReaderOptions("0", position=LATEST))
        assert len(target.consumer_links()) == 1
    await target.empty()
    with pytest.raises(LocalProtocolError, match="closed"):
        await reader.receive(1, DEADLINE_S)
    assert asyncio.all_tasks() == before


async def test_a_client_is_closed_when_its_task_is_cancelled(target: DriverTarget) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with target.client() as client:
            reader = await client.reader(ReaderOptions("0"))
            inside.set()
            await reader.receive(1, 3600.0)

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await target.empty()
