"""Sending with the SDK: partitions, order and size limits."""

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
from tests.conformance.entity import Entity, running
from tests.conformance.readers import (
    MILLISECOND,
    OpenLink,
    PartitionCounter,
    bodies,
    body,
    condition,
    fill,
    numbered,
    sequences,
)
from tests.conformance.sdks import NO_RETRY, Sdk, both_sdks
from tests.conformance.variants import HubVariant

pytestmark = pytest.mark.asyncio(loop_scope="session")

VECTORS = Path(__file__).parents[1] / "hub" / "key_vectors.json"
# Short, exactly one block of the hash, more than one, the longest allowed, and not ASCII.
KEYS = ["home-1", "a", "0123456789ab", "0123456789abc", "x" * 128, "Ключ", "鍵", "🏠", "é"]


# -- one event, a list, a batch -------------------------------------------------------------------


@both_sdks
async def test_a_single_event(sdk: Sdk, single: Entity) -> None:
    """On a new event hub, so that its sequence number is 0."""
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


async def test_a_list_keeps_its_order(open_link: OpenLink) -> None:
    await open_link.producer.send_batch(numbered(50))
    events = await open_link.take(50)
    assert bodies(events) == [b"%d" % number for number in range(50)]
    assert sequences(events) == list(range(open_link.mark, open_link.mark + 50))
    offsets = [int(event.offset or "") for event in events]
    assert offsets == sorted(set(offsets))
    assert len({event.enqueued_time for event in events}) == 1


async def test_a_list_stays_together(partition_counter: PartitionCounter) -> None:
    await partition_counter.producer.send_batch(numbered(50))
    assert sorted(partition_counter.got()) == [0] * 31 + [50]


async def test_a_batch(open_link: OpenLink) -> None:
    batch = await open_link.producer.create_batch()
    for event in numbered(3):
        batch.add(event)
    batch.add(AmqpAnnotatedMessage(data_body=b"annotated"))
    assert len(batch) == 4
    await open_link.producer.send_batch(batch)
    assert bodies(await open_link.take(4)) == [b"0", b"1", b"2", b"annotated"]


async def test_an_empty_list_or_batch_sends_nothing(partition_counter: PartitionCounter) -> None:
    await partition_counter.producer.send_batch([])
    await partition_counter.producer.send_batch(await partition_counter.producer.create_batch())
    assert partition_counter.got() == [0] * 32


async def test_an_empty_body_is_an_event(open_link: OpenLink) -> None:
    await open_link.producer.send_batch([EventData(b""), EventData("")])
    await open_link.producer.send_event(EventData(b""))
    assert bodies(await open_link.take(3)) == [b"", b"", b""]


async def test_one_producer_sends_many_events(open_link: OpenLink) -> None:
    for number in range(100):
        await open_link.producer.send_event(EventData(str(number)))
    events = await open_link.take(100)
    assert sequences(events) == list(range(open_link.mark, open_link.mark + 100))
    assert bodies(events) == [b"%d" % number for number in range(100)]


async def test_calls_at_the_same_time_on_one_producer(open_link: OpenLink) -> None:
    await asyncio.gather(*(open_link.producer.send_batch(numbered(5, 10 * n)) for n in range(10)))
    events = await open_link.take(50)
    # The SDK decides the order of the calls; the hub must keep each batch together.
    groups = [bodies(events[at : at + 5]) for at in range(0, 50, 5)]
    assert sorted(groups) == sorted([b"%d" % (10 * n + i) for i in range(5)] for n in range(10))


# -- to which partition ---------------------------------------------------------------------------


@both_sdks
async def test_to_a_partition(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, "2") as reader:
        await producer.send_event(EventData(b"event"), partition_id="2")
        await producer.send_batch([EventData(b"list")], partition_id="2")
        batch = await producer.create_batch(partition_id="2")
        batch.add(EventData(b"batch"))
        await producer.send_batch(batch)
        # A partition id takes precedence over a key.
        await producer.send_event(EventData(b"key"), partition_id="2", partition_key=other_key(2))
        assert bodies(await reader.take(4)) == [b"event", b"list", b"batch", b"key"]
    assert [partition.log.next_sequence for partition in eh.model.partitions] == [0, 0, 4, 0]


def other_key(partition: int) -> str:
    """A key that hashes to another partition."""
    return next(key for key in KEYS if partition_for(key, 4) != partition)


async def test_a_key_goes_where_the_service_would_put_it(
    partition_counter: PartitionCounter,
) -> None:
    expected = [0] * 32
    for key in KEYS:
        await partition_counter.producer.send_event(EventData(key), partition_key=key)
        await partition_counter.producer.send_batch([EventData(key)], partition_key=key)
        batch = await partition_counter.producer.create_batch(partition_key=key)
        batch.add(EventData(key))
        await partition_counter.producer.send_batch(batch)
        expected[partition_for(key, 32)] += 3
    assert partition_counter.got() == expected


async def test_keys_of_the_other_clients(partition_counter: PartitionCounter) -> None:
    """The recorded hashes of the JavaScript client, which ports the hash of the service."""
    # The SDK treats an empty key as no key.
    vectors = [v for v in json.loads(VECTORS.read_text())["vectors"] if 0 < len(v["key"]) <= 128]
    assert len(vectors) > 50
    expected = [0] * 32
    for vector in vectors:
        await partition_counter.producer.send_batch([EventData(b"")], partition_key=vector["key"])
        expected[abs(vector["hash"]) % 32] += 1
    assert partition_counter.got() == expected


async def test_a_key_comes_back_with_the_event(open_link: OpenLink) -> None:
    for key in KEYS:
        await open_link.producer.send_event(EventData(b""), partition_key=key)
        await open_link.producer.send_batch(numbered(2), partition_key=key)
    events = await open_link.take(3 * len(KEYS))
    expected = [key.encode() for key in KEYS for _ in range(3)]
    assert [event.partition_key for event in events] == expected


async def test_without_a_key_all_partitions_get_some(partition_counter: PartitionCounter) -> None:
    for _ in range(64):
        await partition_counter.producer.send_event(EventData(b""))
        await partition_counter.producer.send_batch(numbered(3))
    assert min(partition_counter.got()) > 0
    assert sum(partition_counter.got()) == 64 * 4


async def test_a_key_that_is_not_a_string_is_ignored_for_routing(
    partition_counter: PartitionCounter, open_link: OpenLink
) -> None:
    """As the SDK documents for the service; readers still get the key."""
    for _ in range(64):
        await partition_counter.producer.send_batch([EventData(b"")], partition_key=7)
    assert min(partition_counter.got()) > 0
    await open_link.producer.send_event(EventData(b""), partition_key=7)
    await open_link.producer.send_batch([EventData(b"")], partition_key=7)
    keys: list[object] = [event.partition_key for event in await open_link.take(2)]
    assert keys == [7, 7]


@both_sdks
async def test_a_key_too_long(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection, **NO_RETRY) as producer:
        with pytest.raises(EventDataSendError, match="at most 128 characters, found 129") as error:
            await producer.send_batch([EventData(b"")], partition_key="x" * 129)
    assert condition(error.value) == "argument-error"
    assert single.partition(0).log.empty


async def test_the_sdk_loses_the_key_of_a_bare_annotated_message(open_link: OpenLink) -> None:
    """A defect of the SDK: it sets the key on a copy of the message and sends the original.

    If the message has an annotations dict, copy and original share it and the key is sent. In a
    list the same message raises in the client.
    """
    await open_link.producer.send_event(AmqpAnnotatedMessage(data_body=b""), partition_key="key")
    annotated = AmqpAnnotatedMessage(data_body=b"", annotations={})
    await open_link.producer.send_event(annotated, partition_key="key")
    with pytest.raises(AttributeError):
        await open_link.producer.send_batch(
            [AmqpAnnotatedMessage(data_body=b"")], partition_key="key"
        )
    await open_link.producer.send_batch([annotated], partition_key="key")
    assert [event.partition_key for event in await open_link.take(3)] == [None, b"key", b"key"]


# -- how large ------------------------------------------------------------------------------------


async def test_a_batch_filled_to_the_limit(open_link: OpenLink) -> None:
    batch = await open_link.producer.create_batch()
    assert batch.max_size_in_bytes == MESSAGE_BYTES_MAX == 1048576
    with pytest.raises(ValueError, match="reached its size limit: 1048576"):
        fill(batch, b"x" * 9_999)
    # One more event that fills the batch to the last byte.
    batch.add(EventData(b"y" * (MESSAGE_BYTES_MAX - batch.size_in_bytes - 16)))
    assert batch.size_in_bytes == MESSAGE_BYTES_MAX
    await open_link.producer.send_batch(batch)
    events = await open_link.take(len(batch))
    assert {len(body(event)) for event in events[:-1]} == {9_999}
    assert body(events[-1]).strip(b"y") == b""


async def test_a_batch_with_a_limit_of_its_own(open_link: OpenLink) -> None:
    with pytest.raises(ValueError, match="acceptable max batch size is: 1048576 bytes"):
        await open_link.producer.create_batch(max_size_in_bytes=MESSAGE_BYTES_MAX + 1)
    batch = await open_link.producer.create_batch(max_size_in_bytes=1000)
    with pytest.raises(ValueError, match="reached its size limit: 1000"):
        fill(batch, b"x" * 50)
    assert 10 < len(batch) < 20
    await open_link.producer.send_batch(batch)
    assert len(await open_link.take(len(batch))) == len(batch)


@pytest.mark.parametrize("size", [65_400, 65_536, 700_000, 1_040_000])
async def test_an_event_of_many_frames(open_link: OpenLink, size: int) -> None:
    """The hub accepts frames of 64 KiB, so these events take several frames."""
    content = bytes(range(251)) * (size // 251 + 1)
    await open_link.producer.send_event(EventData(content[:size]))
    await open_link.producer.send_batch([EventData(b"after"), EventData(content[: size - 1000])])
    first, after, second = await open_link.take(3)
    assert body(first) == content[:size]
    assert body(after) == b"after"
    assert body(second) == content[: size - 1000]


async def test_large_events_between_small_ones(open_link: OpenLink) -> None:
    sizes = [10, 300_000, 20, 70_000, 30, 900_000, 40] * 2
    for size in sizes:
        await open_link.producer.send_event(EventData(b"z" * size))
    assert [len(body(event)) for event in await open_link.take(len(sizes))] == sizes


@both_sdks
async def test_an_event_too_large(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection, **NO_RETRY) as producer:
        too_large = EventData(b"x" * (MESSAGE_BYTES_MAX + 1))
        # The SDK checks the size of a list itself.
        with pytest.raises(ValueError, match="The combined size"):
            await producer.send_batch([too_large])
        # The hub checks a single event, and its error names the size and the limit.
        with pytest.raises(EventDataSendError) as refused:
            await producer.send_event(too_large)
        assert condition(refused.value) == "link:message-size-exceeded"
        assert "exceeds the limit (1048576 bytes) currently allowed on the link" in str(
            refused.value
        )
        # The link is still open.
        await producer.send_event(EventData(b"small"))
    assert single.partition(0).log.next_sequence == 1


@both_sdks
async def test_a_hub_with_a_smaller_limit(sdk: Sdk, variant: HubVariant) -> None:
    """As in the service's basic tier."""
    async with running(variant.hub({"eh": 1}, message_bytes_max=262_144)) as hub:
        eh = Entity(hub, "eh")
        async with sdk.producer(eh.connection, **NO_RETRY) as producer:
            batch = await producer.create_batch()
            assert batch.max_size_in_bytes == 262_144
            with pytest.raises(EventDataSendError, match=r"the limit \(262144 bytes\)"):
                await producer.send_event(EventData(b"x" * 300_000))
            await producer.send_event(EventData(b"x" * 262_000))
        assert eh.partition(0).log.next_sequence == 1
