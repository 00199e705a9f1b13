"""Every way the SDK sends: where the events end up, in what order, and up to what size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from azure.eventhub import EventData
from azure.eventhub.amqp import AmqpAnnotatedMessage
from azure.eventhub.exceptions import EventDataSendError

from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.hub import MESSAGE_BYTES_MAX
from pumphouse.hub.routing import partition_for
from tests.conformance.support import (
    MILLISECOND,
    Entity,
    Sdk,
    bodies,
    body,
    condition,
    fill,
    numbered,
    sequences,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

VECTORS = Path(__file__).parents[1] / "hub" / "key_vectors.json"


def counts(eh: Entity) -> list[int]:
    """How many events each partition holds."""
    return [partition.log.next_sequence for partition in eh.model.partitions]


# -- one event, a list, a batch -------------------------------------------------------------------


async def test_a_single_event(sdk: Sdk, single: Entity) -> None:
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


async def test_a_list_keeps_its_order_and_stays_together(sdk: Sdk, eh: Entity) -> None:
    # In batches: of four partitions, the blocking client hands over one event in 0.6 seconds.
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, None, batch=True) as reader:
        await producer.send_batch(numbered(50))
        events = await reader.take(50)
    assert sorted(counts(eh)) == [0, 0, 0, 50]
    assert bodies(events) == [b"%d" % number for number in range(50)]
    assert sequences(events) == list(range(50))
    offsets = [int(event.offset or "") for event in events]
    assert offsets == sorted(set(offsets))


async def test_a_batch(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        batch = await producer.create_batch()
        for event in numbered(3):
            batch.add(event)
        batch.add(AmqpAnnotatedMessage(data_body=b"annotated"))
        assert len(batch) == 4
        await producer.send_batch(batch)
        assert bodies(await reader.take(4)) == [b"0", b"1", b"2", b"annotated"]


async def test_an_empty_list_or_batch_sends_nothing(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer:
        await producer.send_batch([])
        await producer.send_batch(await producer.create_batch())
    assert counts(eh) == [0, 0, 0, 0]


async def test_an_empty_body_is_an_event(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        await producer.send_batch([EventData(b""), EventData("")])
        assert bodies(await reader.take(2)) == [b"", b""]


async def test_one_producer_sends_again_and_again(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        for number in range(100):
            await producer.send_event(EventData(str(number)))
        assert sequences(await reader.take(100)) == list(range(100))
        assert bodies(reader.events) == [b"%d" % number for number in range(100)]


async def test_calls_at_the_same_time_on_one_producer(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        # One call makes the link; the others then share it.
        await producer.send_event(EventData(b"first"))
        await asyncio.gather(*(producer.send_batch(numbered(5, 10 * n)) for n in range(10)))
        events = await reader.take(51)
    # In which order the calls came through is the SDK's affair; that none was torn apart is ours.
    groups = [bodies(events[at : at + 5]) for at in range(1, 51, 5)]
    assert sorted(groups) == sorted([b"%d" % (10 * n + i) for i in range(5)] for n in range(10))


# -- to which partition ---------------------------------------------------------------------------


async def test_to_a_partition(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, "2") as reader:
        await producer.send_event(EventData(b"event"), partition_id="2")
        await producer.send_batch([EventData(b"list")], partition_id="2")
        batch = await producer.create_batch(partition_id="2")
        batch.add(EventData(b"batch"))
        await producer.send_batch(batch)
        assert bodies(await reader.take(3)) == [b"event", b"list", b"batch"]
    assert counts(eh) == [0, 0, 3, 0]


# Short, exactly one block of the hash, more than one, the longest allowed, and not ASCII.
KEYS = ["home-1", "a", "0123456789ab", "0123456789abc", "x" * 128, "Ключ", "鍵", "🏠", "é"]


async def test_a_key_goes_where_the_service_would_put_it(
    sdk: Sdk, make_entity: Callable[[int], Entity]
) -> None:
    eh = make_entity(32)
    async with sdk.producer(eh.connection) as producer:
        for key in KEYS:
            await producer.send_event(EventData(key), partition_key=key)
            await producer.send_batch([EventData(key)], partition_key=key)
            batch = await producer.create_batch(partition_key=key)
            batch.add(EventData(key))
            await producer.send_batch(batch)
    expected = [0] * 32
    for key in KEYS:
        expected[partition_for(key, 32)] += 3
    assert counts(eh) == expected


async def test_a_key_comes_back_with_the_event(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        for key in KEYS:
            await producer.send_event(EventData(b""), partition_key=key)
            await producer.send_batch(numbered(2), partition_key=key)
        events = await reader.take(3 * len(KEYS))
    assert [event.partition_key for event in events] == [
        key.encode() for key in KEYS for _ in range(3)
    ]


async def test_keys_of_the_other_clients(sdk: Sdk, make_entity: Callable[[int], Entity]) -> None:
    """Where the JavaScript client, a port of the service's own hash, puts a key (recorded)."""
    # The SDK takes an empty key for none.
    vectors = [v for v in json.loads(VECTORS.read_text())["vectors"] if 0 < len(v["key"]) <= 128]
    eh = make_entity(32)
    expected = [0] * 32
    async with sdk.producer(eh.connection) as producer:
        for vector in vectors:
            await producer.send_batch([EventData(b"")], partition_key=vector["key"])
            expected[abs(vector["hash"]) % 32] += 1
    assert len(vectors) > 50
    assert counts(eh) == expected


async def test_a_key_too_long(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection, retry_total=0) as producer:
        with pytest.raises(EventDataSendError, match="at most 128 characters, found 129") as found:
            await producer.send_batch([EventData(b"")], partition_key="x" * 129)
    assert condition(found.value) == "argument-error"
    assert counts(eh) == [0, 0, 0, 0]


async def test_an_id_beats_a_key(sdk: Sdk, eh: Entity) -> None:
    other = str((partition_for("home-1", 4) + 1) % 4)
    async with sdk.producer(eh.connection) as producer:
        await producer.send_event(EventData(b""), partition_id=other, partition_key="home-1")
    assert counts(eh)[int(other)] == 1


async def test_without_a_key_all_partitions_get_some(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer:
        for _ in range(8):
            await producer.send_event(EventData(b""))
        for _ in range(8):
            await producer.send_batch(numbered(3))
    assert min(counts(eh)) > 0
    assert sum(counts(eh)) == 32


async def test_a_key_that_is_no_string_decides_nothing(sdk: Sdk, eh: Entity) -> None:
    """As the SDK's documentation says of the service; readers see it all the same."""
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, None, batch=True) as reader:
        for _ in range(8):
            await producer.send_event(EventData(b""), partition_key=7)
            await producer.send_batch([EventData(b"")], partition_key=7)
        events = await reader.take(16)
    assert min(counts(eh)) > 0
    assert {event.partition_key for event in events} == {7}  # type: ignore[comparison-overlap]


async def test_the_sdk_loses_the_key_of_a_bare_annotated_message(sdk: Sdk, single: Entity) -> None:
    """A defect of the SDK: it sets the key on a copy of the message, and sends the original.

    Where the message has an annotations dict, copy and original share it, and all is well. In a
    list the same message fails on the client.
    """
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        await producer.send_event(AmqpAnnotatedMessage(data_body=b""), partition_key="key")
        annotated = AmqpAnnotatedMessage(data_body=b"", annotations={})
        await producer.send_event(annotated, partition_key="key")
        with pytest.raises(AttributeError):
            await producer.send_batch([AmqpAnnotatedMessage(data_body=b"")], partition_key="key")
        await producer.send_batch([annotated], partition_key="key")
        events = await reader.take(3)
    assert [event.partition_key for event in events] == [None, b"key", b"key"]


# -- how large ------------------------------------------------------------------------------------


async def test_a_batch_filled_to_the_limit(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        batch = await producer.create_batch()
        assert batch.max_size_in_bytes == MESSAGE_BYTES_MAX == 1048576
        with pytest.raises(ValueError, match="reached its size limit: 1048576"):
            fill(batch, b"x" * 9_999)
        # As full as can be: one event more that takes the last byte.
        batch.add(EventData(b"y" * (MESSAGE_BYTES_MAX - batch.size_in_bytes - 16)))
        assert batch.size_in_bytes == MESSAGE_BYTES_MAX
        await producer.send_batch(batch)
        events = await reader.take(len(batch))
    assert {len(body(event)) for event in events[:-1]} == {9_999}
    assert body(events[-1]).strip(b"y") == b""


async def test_a_batch_with_a_limit_of_its_own(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        with pytest.raises(ValueError, match="acceptable max batch size is: 1048576 bytes"):
            await producer.create_batch(max_size_in_bytes=MESSAGE_BYTES_MAX + 1)
        batch = await producer.create_batch(max_size_in_bytes=1000)
        with pytest.raises(ValueError, match="reached its size limit: 1000"):
            fill(batch, b"x" * 50)
        assert 10 < len(batch) < 20
        await producer.send_batch(batch)
        assert len(await reader.take(len(batch))) == len(batch)


@pytest.mark.parametrize("size", [65_400, 65_536, 700_000, 1_040_000])
async def test_an_event_of_many_frames(sdk: Sdk, single: Entity, size: int) -> None:
    """The hub takes frames of 64 KiB, so this is several of them; back it comes in one or two."""
    content = bytes(range(251)) * (size // 251 + 1)
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        await producer.send_event(EventData(content[:size]))
        await producer.send_batch([EventData(b"after"), EventData(content[: size - 1000])])
        first, after, second = await reader.take(3)
    assert body(first) == content[:size]
    assert body(after) == b"after"
    assert body(second) == content[: size - 1000]


async def test_large_events_between_small_ones(sdk: Sdk, single: Entity) -> None:
    sizes = [10, 300_000, 20, 70_000, 30, 900_000, 40] * 2
    async with sdk.producer(single.connection) as producer, sdk.read(single) as reader:
        for size in sizes:
            await producer.send_event(EventData(b"z" * size))
        assert [len(body(event)) for event in await reader.take(len(sizes))] == sizes


async def test_an_event_too_large_for_a_batch(sdk: Sdk, single: Entity) -> None:
    """The SDK sees that by itself."""
    async with sdk.producer(single.connection) as producer:
        with pytest.raises(ValueError, match="The combined size"):
            await producer.send_batch([EventData(b"x" * (MESSAGE_BYTES_MAX + 1))])
    assert counts(single) == [0]


async def test_an_event_too_large_for_the_link(sdk: Sdk, single: Entity) -> None:
    """`send_event` leaves it to the hub, which says what was found and what is allowed."""
    async with sdk.producer(single.connection, retry_total=0) as producer:
        with pytest.raises(EventDataSendError) as refused:
            await producer.send_event(EventData(b"x" * (MESSAGE_BYTES_MAX + 1)))
        assert condition(refused.value) == "link:message-size-exceeded"
        assert "exceeds the limit (1048576 bytes) currently allowed on the link" in str(
            refused.value
        )
        # The link has survived it.
        await producer.send_event(EventData(b"small"))
    assert counts(single) == [1]


async def test_a_hub_with_a_smaller_limit(sdk: Sdk) -> None:
    """As in the service's basic tier."""
    with EmbeddedHub({"eh": 1}, message_bytes_max=262_144) as hub:
        eh = Entity(hub, "eh")
        async with sdk.producer(eh.connection, retry_total=0) as producer, sdk.read(eh) as reader:
            batch = await producer.create_batch()
            assert batch.max_size_in_bytes == 262_144
            with pytest.raises(EventDataSendError, match=r"the limit \(262144 bytes\)"):
                await producer.send_event(EventData(b"x" * 300_000))
            await producer.send_event(EventData(b"x" * 262_000))
            [event] = await reader.take(1)
            assert len(body(event)) == 262_000
            await reader.close()
