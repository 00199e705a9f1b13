"""The buffer of a reader is limited in events and bytes, and no event is lost."""

from __future__ import annotations

import asyncio
from itertools import chain
from random import Random

import pytest

from pumphouse.client.base import ReaderOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.reader import NativeReader
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.consumer import ConsumerLink
from tests.client.native.transports import DEADLINE_S, client_over, numbered, read, sequences


async def settled(reader: NativeReader) -> None:
    """Wait until no more events arrive."""
    async with asyncio.timeout(DEADLINE_S):
        before = -1
        while reader._buffer.bytes != before:
            before = reader._buffer.bytes
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("bytes_max", [1, 10_000, 300_000])
async def test_buffered_bytes_are_limited_also_if_events_grow_suddenly(bytes_max: int) -> None:
    rng = Random(bytes_max)
    sizes = [10] * 300 + [rng.choice([10, 1000, 100_000]) for _ in range(100)] + [200_000] * 20
    async with EmbeddedHub({"eh": 1}) as hub, client_over("tcp", hub) as client:
        await (await client.sender("0")).send(Event(bytes(size)) for size in sizes)
        options = ReaderOptions("0", prefetch=300, prefetch_bytes_max=bytes_max, epoch=1)
        reader = await client.reader(options)
        seen: list[Event] = []
        peak = 0
        while len(seen) < len(sizes):
            if len(seen) % 50 == 0:
                await settled(reader)
            peak = max(peak, reader._buffer.bytes)
            buffer = reader._buffer
            assert buffer.bytes == sum(map(len, chain(*buffer.first(len(buffer)))))
            seen += await read(reader, 1)
        assert sequences(seen) == list(range(len(sizes)))
        assert [len(event.body) for event in seen] == sizes
        assert peak <= bytes_max + 201_000, "at most one event above the limit"


async def test_an_idle_reader_does_not_stop_other_readers() -> None:
    async with EmbeddedHub({"eh": 2}) as hub, client_over("tcp", hub) as client:
        for partition in ("0", "1"):
            await (await client.sender(partition)).send([Event(bytes(50_000))] * 100)
        lazy = await client.reader(ReaderOptions("0", prefetch_bytes_max=200_000))
        busy = await client.reader(ReaderOptions("1", prefetch_bytes_max=200_000))
        assert sequences(await read(busy, 100)) == list(range(100))
        await settled(lazy)
        assert len(lazy._buffer) <= 5
        assert sequences(await read(lazy, 100)) == list(range(100))


async def test_small_events_are_prefetched_up_to_the_count(client: NativeClient) -> None:
    await (await client.sender("0")).send(numbered(2000))
    reader = await client.reader(ReaderOptions("0", prefetch=300))
    async with asyncio.timeout(DEADLINE_S):
        while len(reader._buffer) < 150:  # half of it at the least  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    await settled(reader)
    assert len(reader._buffer) <= 300


# -- the end of a partition, and names ------------------------------------------------------------


async def test_track_end_reports_the_end_of_the_partition(client: NativeClient) -> None:
    await (await client.sender("0")).send(numbered(10))
    silent = await client.reader(ReaderOptions("0"))
    await read(silent, 1)
    assert silent.end is None
    reader = await client.reader(ReaderOptions("0", track_end=True, prefetch=1))
    assert reader.end is None, "nothing has been received"
    events = await read(reader, 1)
    properties = await client.partition_properties("0")
    assert reader.end is not None
    assert (reader.end.sequence, reader.end.offset) == (9, properties.last_offset)
    assert reader.end.enqueued_ms == properties.last_enqueued_ms
    assert reader.end.retrieved_ms >= reader.end.enqueued_ms
    assert sequences(events) == [0]
    await (await client.sender("0")).send(numbered(5))
    await read(reader, 9)
    await read(reader, 1)
    assert reader.end is not None
    assert reader.end.sequence == 14


async def test_the_name_of_a_reader_is_sent_to_the_hub(
    client: NativeClient, hub: EmbeddedHub
) -> None:
    await client.reader(ReaderOptions("0", name="host-a"))
    nodes = [node for talk in hub.server.connections for node in talk.links()]
    assert [node.reader.name for node in nodes if isinstance(node, ConsumerLink)] == ["host-a"]
