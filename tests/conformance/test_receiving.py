"""Receiving with the SDK: start positions, batches, prefetch and last enqueued properties."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import pytest_asyncio
from azure.eventhub import EventData
from azure.eventhub.exceptions import ConnectError

from pumphouse.amqp.messages import SINGLE_FORMAT
from pumphouse.hub.annotations import parse_payload
from pumphouse.hub.options import Retention
from tests.conformance.entity import Entity, MovableClock, Refusals, eventually, running
from tests.conformance.readers import (
    MILLISECOND,
    OpenLink,
    Reader,
    bodies,
    body,
    fill,
    numbered,
    refused,
    sequences,
)
from tests.conformance.sdks import STORES, Sdk, both_sdks
from tests.conformance.variants import HubVariant

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.xdist_group("receiving"),  # its fixtures read and send for all tests of this file
]


# -- start positions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Written:
    """The offsets and times of ten events that were sent in pairs, a minute apart."""

    offsets: list[str]
    times: list[datetime]


# name -> position, inclusive, the first sequence number that is read (10 is sent later)
POSITIONS: dict[str, tuple[Callable[[Written], Any], bool, int]] = {
    "the beginning": (lambda w: "-1", False, 0),
    "the beginning, inclusive": (lambda w: "-1", True, 0),
    "the end": (lambda w: "@latest", False, 10),
    "the end, inclusive": (lambda w: "@latest", True, 10),
    "nothing said": (lambda w: None, False, 10),
    "offset of the first": (lambda w: w.offsets[0], False, 1),
    "offset of the first, inclusive": (lambda w: w.offsets[0], True, 0),
    "offset in the middle": (lambda w: w.offsets[4], False, 5),
    "offset in the middle, inclusive": (lambda w: w.offsets[4], True, 4),
    "offset between two": (lambda w: str(int(w.offsets[4]) + 1), True, 5),
    "offset of the last": (lambda w: w.offsets[9], False, 10),
    "offset of the last, inclusive": (lambda w: w.offsets[9], True, 9),
    "sequence number 0": (lambda w: 0, False, 1),
    "sequence number 0, inclusive": (lambda w: 0, True, 0),
    "sequence number in the middle": (lambda w: 5, False, 6),
    "sequence number in the middle, inclusive": (lambda w: 5, True, 5),
    "sequence number of the last": (lambda w: 9, False, 10),
    "sequence number of the last, inclusive": (lambda w: 9, True, 9),
    "sequence number of the next, inclusive": (lambda w: 10, True, 10),
    "sequence number -1": (lambda w: -1, False, 0),
    "long ago": (lambda w: datetime(2020, 1, 1, tzinfo=UTC), False, 0),
    "just before a time": (lambda w: w.times[4] - MILLISECOND, False, 4),
    "a time": (lambda w: w.times[4], False, 6),
    "a time, inclusive": (lambda w: w.times[4], True, 4),
    "a time elsewhere": (lambda w: w.times[4].astimezone(timezone(timedelta(hours=5))), True, 4),
    "between two times": (lambda w: w.times[4] + timedelta(seconds=30), True, 6),
    "the last time": (lambda w: w.times[9], False, 10),
    "the last time, inclusive": (lambda w: w.times[9], True, 8),
    "a time to come": (lambda w: w.times[9] + timedelta(seconds=30), True, 10),
}


# On a busy machine, a WebSocket handshake can take longer than the client waits.
# A retry before the attach does not change what a reader reads.
HANDSHAKE_RETRIES = {"retry_total": 5}

Readings = dict[str, list[int | None]]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def readings(sdks: dict[str, Sdk], variant: HubVariant) -> dict[str, Readings]:
    """The sequence numbers that each client reads from each position."""
    # One after the other: the asyncio client blocks the event loop of the hub while many readers
    # attach, and the blocking client waits a limited time for a WebSocket handshake.
    return {name: await read_all(sdk, variant) for name, sdk in sdks.items()}


async def read_all(sdk: Sdk, variant: HubVariant) -> Readings:
    """Read from each position, in a consumer group of its own."""
    clock = MovableClock(-600)
    # The blocking client spins while it attaches, so many of them are slow. It sends the same
    # filters as the asyncio client, so a third of the positions is enough.
    groups = list(enumerate(POSITIONS))[:: 3 if sdk.name == "sync" else 1]
    at_once = 5 if sdk.name == "sync" else len(groups)
    hub = variant.hub(clock=clock)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(hub))
        hub.create_hub("eh", 1, [f"g{number}" for number, _ in groups])
        eh = Entity(hub, "eh")
        producer = await stack.enter_async_context(sdk.producer(eh.connection))
        written = await write_pairs(sdk, eh, producer, clock)
        # "@latest" is the end at the time of attaching, and a restart would attach them again.
        hub.steady = True
        readers = []
        for few in (groups[at : at + at_once] for at in range(0, len(groups), at_once)):
            for number, name in few:
                start, inclusive, _ = POSITIONS[name]
                opened = sdk.read(
                    eh,
                    group=f"g{number}",
                    start=start(written),
                    starting_position_inclusive=inclusive,
                    client=HANDSHAKE_RETRIES,
                )
                readers.append(await stack.enter_async_context(opened))
            for number, _ in few:
                await eh.attached(group=f"g{number}")
        await producer.send_event(EventData(b"10"))
        for reader in readers:
            await until_sequence(reader, 10)
        await asyncio.gather(*(reader.close() for reader in readers))
    names = (name for _, name in groups)
    return dict(zip(names, (sequences(reader.events) for reader in readers), strict=True))


async def until_sequence(reader: Reader, number: int) -> None:
    await reader.until(
        lambda: reader.errors or (reader.events and reader.events[-1].sequence_number == number)
    )


async def write_pairs(sdk: Sdk, eh: Entity, producer: Any, clock: MovableClock) -> Written:
    async with sdk.read(eh) as reader:
        for pair in range(5):
            await producer.send_batch(numbered(2, 2 * pair))
            clock.advance(60)
        events = await reader.take(10)
        await reader.close()
    times = [event.enqueued_time for event in events if event.enqueued_time is not None]
    assert times[0] == times[1] < times[2]
    return Written([event.offset or "" for event in events], times)


@pytest.mark.parametrize("name", POSITIONS)
async def test_a_start_position(readings: dict[str, Readings], name: str) -> None:
    expected = list(range(POSITIONS[name][2], 11))
    assert readings["aio"][name] == expected
    assert readings["sync"].get(name, expected) == expected


@both_sdks
async def test_an_invalid_position_is_refused(sdk: Sdk, eh: Entity, refusals: Refusals) -> None:
    """Each in a partition of its own; the last one holds three events."""
    async with sdk.producer(eh.connection) as producer:
        await producer.send_batch(numbered(3), partition_id="3")
    last = eh.partition(3).log.last_offset
    cases: list[tuple[str | int, str]] = [
        ("0", "The supplied offset '0' is invalid. The last offset in the system is '-1'"),
        (
            1,
            "The supplied sequence number '1' is invalid. "
            "The last sequence number in the system is '-1'",
        ),
        ("soon", "The supplied filter 'amqp.annotation.x-opt-offset > 'soon'' is invalid."),
        (
            str(last + 1),
            f"The supplied offset '{last + 1}' is invalid. "
            f"The last offset in the system is '{last}'",
        ),
    ]

    async def check_refusal(partition: int, start: str | int, text: str) -> None:
        async with sdk.read(eh, str(partition), start=start) as reader:
            await refused(reader, refusals, "com.microsoft:argument-error", text)
        if sdk.reports_refusals:
            assert isinstance(reader.errors[0], ConnectError)

    await asyncio.gather(*(check_refusal(number, *case) for number, case in enumerate(cases)))


async def test_a_refused_asyncio_reader_reads_when_it_may(
    sdks: dict[str, Sdk], single: Entity, refusals: Refusals
) -> None:
    """It retries for ever, so it attaches as soon as the position is valid."""
    sdk = sdks["aio"]
    async with sdk.producer(single.connection) as producer, sdk.read(single, start=1) as reader:
        await eventually(lambda: refusals.errors)
        await producer.send_batch(numbered(5))
        assert sequences(await reader.take(3)) == [2, 3, 4]


@both_sdks
async def test_a_position_for_each_partition(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer:
        await asyncio.gather(
            *(producer.send_batch(numbered(5), partition_id=str(n)) for n in range(4))
        )
    starts = {"0": "-1", "1": 2, "2": 2, "3": "@latest"}
    async with sdk.read(
        eh,
        None,
        start=starts,
        starting_position_inclusive={"1": True, "2": False},
        batch=True,
    ) as reader:
        # "@latest" is the end at the time of attaching, so this reader attaches first.
        await eh.attached(number=3)
        eh.hub._call(lambda: append(eh, 3, b"late"))
        await reader.until(lambda: len(reader.events) >= 5 + 3 + 2 + 1)
    got = {str(n): list[int | None]() for n in range(4)}
    for context, events in zip(reader.contexts, reader.calls, strict=True):
        got[context.partition_id] += sequences(events)
    assert got == {"0": [0, 1, 2, 3, 4], "1": [2, 3, 4], "2": [3, 4], "3": [5]}


def append(eh: Entity, number: int, content: bytes) -> None:
    """Append an event to a partition without the SDK."""
    data = b"\x00\x53\x75\xa0" + bytes([len(content)]) + content
    eh.hub.namespace.publish(
        eh.partition(number), parse_payload(data, SINGLE_FORMAT), None, lambda failed: None
    )


# -- how much at a time ---------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def filled(sdks: dict[str, Sdk], make_shared_entity: Callable[[int], Entity]) -> Entity:
    """A partition with 1000 events, to which no test adds."""
    eh = make_shared_entity(1)
    async with sdks["sync"].producer(eh.connection) as producer:
        await producer.send_batch(numbered(1000))
    return eh


@both_sdks
async def test_one_event_at_a_time(sdk: Sdk, filled: Entity) -> None:
    group = filled.new_group()
    async with sdk.read(filled, group=group) as reader:
        assert sequences(await reader.take(5)) == [0, 1, 2, 3, 4]
    assert all(isinstance(call, EventData) for call in reader.calls)
    [context] = {id(context): context for context in reader.contexts}.values()
    assert context.partition_id == "0"
    assert context.eventhub_name == filled.name
    assert context.consumer_group == group
    assert context.fully_qualified_namespace == filled.address
    assert reader.opened == ["0"]


@both_sdks
async def test_batches_have_an_upper_bound(sdk: Sdk, filled: Entity) -> None:
    options: dict[str, Any] = {"batch": True, "max_batch_size": 30}
    async with sdk.read(filled, group=filled.new_group(), **options) as reader:
        assert sequences(await reader.take(100)) == list(range(100))
    assert max(len(call) for call in reader.calls) <= 30


@both_sdks
async def test_max_wait_time_calls_back_without_events(sdk: Sdk, single: Entity) -> None:
    async with (
        sdk.read(single, max_wait_time=0.1) as events,
        sdk.read(single, batch=True, max_wait_time=0.1) as batches,
    ):
        await events.until(lambda: len(events.calls) >= 2)
        await batches.until(lambda: len(batches.calls) >= 2)
    assert events.calls == [None] * len(events.calls)
    assert batches.calls == [[]] * len(batches.calls)


@both_sdks
async def test_events_do_not_wait_for_max_wait_time(sdk: Sdk, filled: Entity) -> None:
    options: dict[str, Any] = {"batch": True, "max_batch_size": 5, "max_wait_time": 3600}
    async with sdk.read(filled, group=filled.new_group(), **options) as reader:
        assert sequences(await reader.take(5)) == list(range(5))


@pytest.mark.parametrize("prefetch", [1, 7, 300, 5000])
@both_sdks
async def test_prefetch(sdk: Sdk, filled: Entity, prefetch: int) -> None:
    """The SDK grants new credit when the old one is used up; no event is lost in between."""
    # The asyncio client takes 50 ms for each prefetch, however small.
    count, group = min(1000, 10 * prefetch + 3), filled.new_group()
    async with sdk.read(filled, group=group, prefetch=prefetch, batch=True) as reader:
        assert sequences(await reader.take(count)) == list(range(count))
        [outlet] = filled.partition(0).readers[group]
        # The hub never has more credit than the prefetch.
        assert outlet.link.credit <= prefetch  # type: ignore[attr-defined]


@both_sdks
async def test_many_events_through_a_window(sdk: Sdk, single: Entity) -> None:
    """More than fit one write buffer; order and number hold."""
    async with sdk.producer(single.connection) as producer:
        for _ in range(8):
            batch = await producer.create_batch()
            with pytest.raises(ValueError, match="size limit"):
                fill(batch, b"x" * 2000)
            await producer.send_batch(batch)
    count = single.partition(0).log.next_sequence
    assert count > 4000
    async with sdk.read(single, prefetch=3000, batch=True) as reader:
        assert sequences(await reader.take(count)) == list(range(count))


# -- the end of the partition ---------------------------------------------------------------------


@both_sdks
async def test_last_enqueued_event_properties(sdk: Sdk, filled: Entity) -> None:
    options: dict[str, Any] = {"prefetch": 1, "track_last_enqueued_event_properties": True}
    async with (
        sdk.consumer(filled.connection) as consumer,
        sdk.read(filled, group=filled.new_group(), **options) as reader,
    ):
        last = await consumer.get_partition_properties("0")
        [event, *_] = await reader.take(3)
        # The context belongs to the partition and has the properties of the newest event.
        known = reader.contexts[0].last_enqueued_event_properties
    assert known is not None
    assert known["sequence_number"] == 999 == last["last_enqueued_sequence_number"]
    assert known["offset"] == last["last_enqueued_offset"]
    assert known["enqueued_time"] == last["last_enqueued_time_utc"]
    assert known["retrieval_time"] >= known["enqueued_time"]
    assert event.sequence_number == 0
    annotations = event.raw_amqp_message.delivery_annotations
    assert annotations is not None
    assert annotations[b"last_enqueued_sequence_number"] == 999
    assert sequences(reader.events[:3]) == [0, 1, 2]


async def test_untracked_events_carry_no_last_enqueued_properties(open_link: OpenLink) -> None:
    await open_link.producer.send_event(EventData(b""))
    [event] = await open_link.take(1)
    assert open_link.reader.contexts[0].last_enqueued_event_properties is None
    assert event.raw_amqp_message.delivery_annotations == {}


@both_sdks
async def test_tracking_a_large_event(sdk: Sdk, single: Entity) -> None:
    async with sdk.producer(single.connection) as producer:
        await producer.send_event(EventData(b"x" * 700_000))
        async with sdk.read(single, track_last_enqueued_event_properties=True) as reader:
            [event] = await reader.take(1)
            await producer.send_event(EventData(b"y"))
            await reader.take(2)
    assert len(body(event)) == 700_000
    known = reader.contexts[-1].last_enqueued_event_properties
    assert known is not None
    assert known["sequence_number"] == 1


# -- more than one reader -------------------------------------------------------------------------


@both_sdks
async def test_all_partitions_at_once(sdk: Sdk, eh: Entity) -> None:
    async with sdk.producer(eh.connection) as producer, sdk.read(eh, None, batch=True) as reader:
        for key in range(40):
            await producer.send_batch([EventData(str(key))], partition_key=str(key))
        await reader.take(40)
    assert sorted(bodies(reader.events)) == sorted(b"%d" % key for key in range(40))
    assert set(reader.opened) == {"0", "1", "2", "3"}


@both_sdks
async def test_each_group_gets_everything(sdk: Sdk, single: Entity) -> None:
    single.hub.create_group(single.name, "Other")
    async with (
        sdk.producer(single.connection) as producer,
        sdk.read(single) as one,
        # Group names are case-insensitive.
        sdk.read(single, group="oTHER") as other,
    ):
        await producer.send_batch(numbered(10))
        assert sequences(await one.take(10)) == sequences(await other.take(10)) == list(range(10))


@both_sdks
async def test_readers_of_one_group_get_everything_each(sdk: Sdk, single: Entity) -> None:
    async with (
        sdk.producer(single.connection) as producer,
        sdk.read(single) as one,
        sdk.read(single, start="@latest") as two,
    ):
        await single.attached(2)
        await producer.send_batch(numbered(10))
        assert sequences(await one.take(10)) == sequences(await two.take(10)) == list(range(10))


@both_sdks
async def test_reading_resumes_after_a_checkpoint(sdk: Sdk, single: Entity) -> None:
    store = STORES[sdk.name]()
    client = {"checkpoint_store": store}
    async with sdk.producer(single.connection) as producer:
        await producer.send_batch(numbered(5))
        async with sdk.read(single, client=client, checkpoint=True) as reader:
            await reader.take(5)
            await reader.close()
        await producer.send_batch(numbered(3, 5))
        async with sdk.read(single, client=client, checkpoint=True) as reader:
            assert sequences(await reader.take(3)) == [5, 6, 7]


@both_sdks
async def test_expired_events_are_skipped(sdk: Sdk, variant: HubVariant) -> None:
    clock = MovableClock(-3600)
    hub = variant.hub({"eh": 1}, clock=clock, retention=Retention(seconds=600))
    async with running(hub):
        eh = Entity(hub, "eh")
        async with sdk.producer(eh.connection) as producer:
            await producer.send_batch(numbered(5))
            offset = hub.namespace.hub("eh").partitions[0].log.last_offset
            clock.advance(500)
            await producer.send_batch(numbered(5, 5))
            clock.advance(200)
            hub._call(hub.namespace.expire)
            begins = [sdk.read(eh, start=start) for start in ("-1", 2, str(offset))]
            async with begins[0] as one, begins[1] as two, begins[2] as three:
                for reader in (one, two, three):
                    assert sequences(await reader.take(5)) == [5, 6, 7, 8, 9]
                await asyncio.gather(one.close(), two.close(), three.close())
