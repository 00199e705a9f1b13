"""Every way the SDK sends: where the events end up, in what order, and up to what size."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import EventDataSendError

from pumphouse.hub.namespace import MESSAGE_BYTES_MAX
from pumphouse.hub.routing import partition_for
from tests.conformance.doors import Door
from tests.conformance.entity import Entity, running
from tests.conformance.faces import NO_RETRY, Sdk, both_faces
from tests.conformance.readers import (
    MILLISECOND,
    Spreader,
    Wire,
    bodies,
    body,
    condition,
    fill,
    numbered,
    sequences,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

VECTORS = Path(__file__).parents[1] / "hub" / "key_vectors.json"
# Short, exactly one block of the hash, more than one, the longest allowed, and not ASCII.
KEYS = ["home-1", "a", "0123456789ab", "0123456789abc", "x" * 128, "Ключ", "鍵", "🏠", "é"]


# -- one event, a list, a batch -------------------------------------------------------------------


@both_faces
async def test_a_single_event(sdk: Sdk, single: Entity) -> None:
    """With links of its own, so that it is the first of all."""
    before = datetime.now(UTC)
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        await producer.send_event(EventData(b"one"))
        [event] = await reader.take(1)
    assert body(event) == b"one"
    assert event.sequence_number == 0
    assert event.offset is not None
    assert int(event.offset) >= 0
    assert event.partition_key is None
    assert event.enqueued_time is not None
    # The hub counts whole milliseconds.
    assert before - MILLISECOND <= event.enqueued_time <= datetime.now(UTC)


async def test_a_list_keeps_its_order(wire: Wire) -> None:
    await wire.producer.send_batch(numbered(50))
    events = await wire.take(50)
    assert bodies(events) == [b"%d" % number for number in range(50)]
    assert sequences(events) == list(range(wire.mark, wire.mark + 50))
    offsets = [int(event.offset or "") for event in events]
    assert offsets == sorted(set(offsets))
    assert len({event.enqueued_time for event in events}) == 1


async def test_a_list_stays_together(spreader: Spreader) -> None:
    await spreader.producer.send_batch(numbered(50))
    assert sorted(spreader.got()) == [0] * 31 + [50]


async def test_a_batch(wire: Wire) -> None:
    batch = await wire.producer.create_batch()
    for event in numbered(3):
        batch.add(event)
    batch.add(AmqpAnnotatedMessage(data_body=b"annotated"))
    assert len(batch) == 4
    await wire.producer.send_batch(batch)
    assert bodies(await wire.take(4)) == [b"0", b"1", b"2", b"annotated"]


async def test_an_empty_list_or_batch_sends_nothing(spreader: Spreader) -> None:
    await spreader.producer.send_batch([])
    await spreader.producer.send_batch(await spreader.producer.create_batch())
    assert spreader.got() == [0] * 32


async def test_an_empty_body_is_an_event(wire: Wire) -> None:
    await wire.producer.send_batch([EventData(b""), EventData("")])
    await wire.producer.send_event(EventData(b""))
    assert bodies(await wire.take(3)) == [b"", b"", b""]


async def test_one_producer_sends_again_and_again(wire: Wire) -> None:
    for number in range(100):
        await wire.producer.send_event(EventData(str(number)))
    events = await wire.take(100)
    assert sequences(events) == list(range(wire.mark, wire.mark + 100))
    assert bodies(events) == [b"%d" % number for number in range(100)]


async def test_calls_at_the_same_time_on_one_producer(wire: Wire) -> None:
    await asyncio.gather(*(wire.producer.send_batch(numbered(5, 10 * n)) for n in range(10)))
    events = await wire.take(50)
    # In which order the calls came through is the SDK's affair; that none was torn apart is ours.
    groups = [bodies(events[at : at + 5]) for at in range(0, 50, 5)]
    assert sorted(groups) == sorted([b"%d" % (10 * n + i) for i in range(5)] for n in range(10))


# -- to which partition ---------------------------------------------------------------------------


@both_faces
async def test_to_a_partition(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, "2") as reader:
        await producer.send_event(EventData(b"event"), partition_id="2")
        await producer.send_batch([EventData(b"list")], partition_id="2")
        batch = await producer.create_batch(partition_id="2")
        batch.add(EventData(b"batch"))
        await producer.send_batch(batch)
        # An id beats a key.
        await producer.send_event(EventData(b"key"), partition_id="2", partition_key=other_key(2))
        assert bodies(await reader.take(4)) == [b"event", b"list", b"batch", b"key"]
    assert [partition.log.next_sequence for partition in eh.model.partitions] == [0, 0, 4, 0]


def other_key(partition: int) -> str:
    """A key that belongs elsewhere."""
    return next(key for key in KEYS if partition_for(key, 4) != partition)


async def test_a_key_goes_where_the_service_would_put_it(spreader: Spreader) -> None:
    expected = [0] * 32
    for key in KEYS:
        await spreader.producer.send_event(EventData(key), partition_key=key)
        await spreader.producer.send_batch([EventData(key)], partition_key=key)
        batch = await spreader.producer.create_batch(partition_key=key)
        batch.add(EventData(key))
        await spreader.producer.send_batch(batch)
        expected[partition_for(key, 32)] += 3
    assert spreader.got() == expected


async def test_keys_of_the_other_clients(spreader: Spreader) -> None:
    """Where the JavaScript client, a port of the service's own hash, puts a key (recorded)."""
    # The SDK takes an empty key for none.
    vectors = [v for v in json.loads(VECTORS.read_text())["vectors"] if 0 < len(v["key"]) <= 128]
    assert len(vectors) > 50
    expected = [0] * 32
    for vector in vectors:
        await spreader.producer.send_batch([EventData(b"")], partition_key=vector["key"])
        expected[abs(vector["hash"]) % 32] += 1
    assert spreader.got() == expected


async def test_a_key_comes_back_with_the_event(wire: Wire) -> None:
    for key in KEYS:
        await wire.producer.send_event(EventData(b""), partition_key=key)
        await wire.producer.send_batch(numbered(2), partition_key=key)
    events = await wire.take(3 * len(KEYS))
    expected = [key.encode() for key in KEYS for _ in range(3)]
    assert [event.partition_key for event in events] == expected


async def test_without_a_key_all_partitions_get_some(spreader: Spreader) -> None:
    for _ in range(64):
        await spreader.producer.send_event(EventData(b""))
        await spreader.producer.send_batch(numbered(3))
    assert min(spreader.got()) > 0
    assert sum(spreader.got()) == 64 * 4


async def test_a_key_that_is_no_string_decides_nothing(spreader: Spreader, wire: Wire) -> None:
    """As the SDK's documentation says of the service; readers see it all the same."""
    for _ in range(64):
        await spreader.producer.send_batch([EventData(b"")], partition_key=7)
    assert min(spreader.got()) > 0
    await wire.producer.send_event(EventData(b""), partition_key=7)
    await wire.producer.send_batch([EventData(b"")], partition_key=7)
    keys: list[object] = [event.partition_key for event in await wire.take(2)]
    assert keys == [7, 7]


@both_faces
async def test_a_key_too_long(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection, **NO_RETRY) as producer:
        with pytest.raises(EventDataSendError, match="at most 128 characters, found 129") as found:
            await producer.send_batch([EventData(b"")], partition_key="x" * 129)
    assert condition(found.value) == "argument-error"
    assert single.partition(0).log.empty


async def test_the_sdk_loses_the_key_of_a_bare_annotated_message(wire: Wire) -> None:
    """A defect of the SDK: it sets the key on a copy of the message, and sends the original.

    Where the message has an annotations dict, copy and original share it, and all is well. In a
    list the same message fails on the client.
    """
    await wire.producer.send_event(AmqpAnnotatedMessage(data_body=b""), partition_key="key")
    annotated = AmqpAnnotatedMessage(data_body=b"", annotations={})
    await wire.producer.send_event(annotated, partition_key="key")
    with pytest.raises(AttributeError):
        await wire.producer.send_batch([AmqpAnnotatedMessage(data_body=b"")], partition_key="key")
    await wire.producer.send_batch([annotated], partition_key="key")
    assert [event.partition_key for event in await wire.take(3)] == [None, b"key", b"key"]


# -- how large ------------------------------------------------------------------------------------


async def test_a_batch_filled_to_the_limit(wire: Wire) -> None:
    batch = await wire.producer.create_batch()
    assert batch.max_size_in_bytes == MESSAGE_BYTES_MAX == 1048576
    with pytest.raises(ValueError, match="reached its size limit: 1048576"):
        fill(batch, b"x" * 9_999)
    # As full as can be: one event more that takes the last byte.
    batch.add(EventData(b"y" * (MESSAGE_BYTES_MAX - batch.size_in_bytes - 16)))
    assert batch.size_in_bytes == MESSAGE_BYTES_MAX
    await wire.producer.send_batch(batch)
    events = await wire.take(len(batch))
    assert {len(body(event)) for event in events[:-1]} == {9_999}
    assert body(events[-1]).strip(b"y") == b""


async def test_a_batch_with_a_limit_of_its_own(wire: Wire) -> None:
    with pytest.raises(ValueError, match="acceptable max batch size is: 1048576 bytes"):
        await wire.producer.create_batch(max_size_in_bytes=MESSAGE_BYTES_MAX + 1)
    batch = await wire.producer.create_batch(max_size_in_bytes=1000)
    with pytest.raises(ValueError, match="reached its size limit: 1000"):
        fill(batch, b"x" * 50)
    assert 10 < len(batch) < 20
    await wire.producer.send_batch(batch)
    assert len(await wire.take(len(batch))) == len(batch)


@pytest.mark.parametrize("size", [65_400, 65_536, 700_000, 1_040_000])
async def test_an_event_of_many_frames(wire: Wire, size: int) -> None:
    """The hub takes frames of 64 KiB, so this is several of them; back it comes in one or two."""
    content = bytes(range(251)) * (size // 251 + 1)
    await wire.producer.send_event(EventData(content[:size]))
    await wire.producer.send_batch([EventData(b"after"), EventData(content[: size - 1000])])
    first, after, second = await wire.take(3)
    assert body(first) == content[:size]
    assert body(after) == b"after"
    assert body(second) == content[: size - 1000]


async def test_large_events_between_small_ones(wire: Wire) -> None:
    sizes = [10, 300_000, 20, 70_000, 30, 900_000, 40] * 2
    for size in sizes:
        await wire.producer.send_event(EventData(b"z" * size))
    assert [len(body(event)) for event in await wire.take(len(sizes))] == sizes


@both_faces
async def test_an_event_too_large(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection, **NO_RETRY) as producer:
        too_large = EventData(b"x" * (MESSAGE_BYTES_MAX + 1))
        # In a list the SDK sees it by itself.
        with pytest.raises(ValueError, match="The combined size"):
            await producer.send_batch([too_large])
        # A single event it leaves to the hub, which says what was found and what is allowed.
        with pytest.raises(EventDataSendError) as refused:
            await producer.send_event(too_large)
        assert condition(refused.value) == "link:message-size-exceeded"
        assert "exceeds the limit (1048576 bytes) currently allowed on the link" in str(
            refused.value
        )
        # The link has survived it.
        await producer.send_event(EventData(b"small"))
    assert single.partition(0).log.next_sequence == 1


@both_faces
async def test_a_hub_with_a_smaller_limit(sdk: Sdk, door: Door) -> None:
    """As in the service's basic tier."""
    async with running(door.hub({"eh": 1}, message_bytes_max=262_144)) as hub:
        eh = Entity(hub, "eh")
        async with sdk.producer(eh.connection, **NO_RETRY) as producer:
            batch = await producer.create_batch()
            assert batch.max_size_in_bytes == 262_144
            with pytest.raises(EventDataSendError, match=r"the limit \(262144 bytes\)"):
                await producer.send_event(EventData(b"x" * 300_000))
            await producer.send_event(EventData(b"x" * 262_000))
        assert eh.partition(0).log.next_sequence == 1
