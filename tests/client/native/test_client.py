"""The native client with an embedded hub: sending, reading, managing, and losing the hub."""

from __future__ import annotations

import asyncio

import pytest

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.reader import NativeReader
from pumphouse.client.native.reconnect import MANAGEMENT
from pumphouse.client.sas import sign
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    HubExists,
    HubNotFound,
    LocalProtocolError,
    OptionError,
    ReaderEvicted,
)
from pumphouse.events import EARLIEST, LATEST, NEVER_MS, Event, Position
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.embedded import EmbeddedHub

DEADLINE_S = 10.0


async def read(reader: NativeReader, count: int) -> list[Event]:
    """Receive `count` events, or fail at the deadline."""
    events: list[Event] = []
    async with asyncio.timeout(DEADLINE_S):
        while len(events) < count:
            events += await reader.receive(count - len(events), DEADLINE_S)
    return events


async def bodies(client: NativeClient, partition: str, count: int) -> list[bytes]:
    reader = await client.reader(ReaderOptions(partition))
    received = [event.body for event in await read(reader, count)]
    await reader.close()
    return received


async def let_go(hub: EmbeddedHub) -> None:
    """Wait until the hub has no connections."""
    async with asyncio.timeout(DEADLINE_S):
        for talk in list(hub.server.connections):
            while talk in hub.server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0)


def numbered(count: int, key: str | None = None) -> list[Event]:
    return [Event(b"%d" % number, partition_key=key) for number in range(count)]


# -- sending --------------------------------------------------------------------------------------


async def test_events_to_a_partition_keep_their_order(client: NativeClient) -> None:
    sender = await client.sender("1")
    assert await sender.send(numbered(2500)) == 2500
    assert await bodies(client, "1", 2500) == [b"%d" % number for number in range(2500)]
    assert (await client.partition_properties("0")).empty
    assert repr(sender) == "<NativeSender eh/Partitions/1 2500 accepted>"


async def test_events_of_a_key_go_to_one_partition(client: NativeClient) -> None:
    await (await client.sender()).send(numbered(20, key="home-7") + numbered(1, key="home-7"))
    counts = {p: (await client.partition_properties(p)).last_sequence + 1 for p in ("0", "1")}
    assert sorted(counts.values()) == [0, 21]
    used_partition = next(partition for partition, count in counts.items() if count)
    reader = await client.reader(ReaderOptions(used_partition))
    assert {event.partition_key for event in await read(reader, 21)} == {"home-7"}


async def test_without_key_and_partition_the_partitions_take_turns(client: NativeClient) -> None:
    await (await client.sender()).send(numbered(40), batch_events_max=10)
    for partition in ("0", "1"):
        assert (await client.partition_properties(partition)).last_sequence == 19


async def test_more_batches_than_credit_are_all_sent(client: NativeClient) -> None:
    sender = await client.sender("0")
    assert await sender.send(numbered(1000), batch_events_max=1) == 1000
    assert await bodies(client, "0", 1000) == [b"%d" % number for number in range(1000)]


async def test_events_larger_than_a_frame_are_sent(client: NativeClient) -> None:
    large = [Event(bytes([number]) * 700_000) for number in range(3)]
    assert await (await client.sender("0")).send(large) == 3
    assert await bodies(client, "0", 3) == [event.body for event in large]


async def test_batches_respect_the_limit_of_the_hub() -> None:
    async with (
        EmbeddedHub({"eh": 1}, message_bytes_max=5000) as hub,
        NativeClient(hub.connection_string("eh")) as client,
    ):
        sender = await client.sender("0")
        assert sender.size_max == 5000
        assert await sender.send([Event(b"x" * 900, partition_key="k")] * 50) == 50
        with pytest.raises(OptionError, match="exceeds the limit of 5000 bytes"):
            await sender.send([Event(b"x"), Event(b"x" * 5000)])
        assert sender.accepted == 50, "nothing of its batch was sent"
        assert await sender.send([Event(b"x")]) == 1, "a refusal leaves the link as it was"


async def test_a_refused_batch_raises_and_accepted_counts_the_others(client: NativeClient) -> None:
    sender = await client.sender()
    events = [*numbered(5, key="good"), Event(b"x", partition_key="k" * 129)]
    with pytest.raises(AmqpError, match="at most 128 characters") as refused:
        await sender.send(events)
    assert refused.value.condition == "com.microsoft:argument-error"
    assert sender.accepted == 5


async def test_an_empty_send_returns_at_once(client: NativeClient) -> None:
    assert await (await client.sender()).send([]) == 0


async def test_a_cancelled_send_leaves_the_client_usable(client: NativeClient) -> None:
    sender = await client.sender("0")
    sending = asyncio.create_task(sender.send(numbered(5000), batch_events_max=1))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert await (await client.sender("1")).send(numbered(3)) == 3


# -- reading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("position", "first"),
    [
        (EARLIEST, 0),
        (Position("sequence", "4"), 5),
        (Position("sequence", "4", inclusive=True), 4),
        (Position("offset", "offset of 6"), 7),
        (Position("offset", "offset of 6", inclusive=True), 6),
        (Position("time", "0"), 0),
        (LATEST, 10),
    ],
    ids=str,
)
async def test_a_reader_starts_at_its_position(
    client: NativeClient, position: Position, first: int
) -> None:
    sender = await client.sender("0")
    await sender.send(numbered(10))
    if position.kind == "offset":
        reader = await client.reader(ReaderOptions("0"))
        sixth = (await read(reader, 10))[6].offset
        position = Position("offset", str(sixth), position.inclusive)
    reader = await client.reader(ReaderOptions("0", position=position))
    await sender.send([Event(b"10")])
    assert (await read(reader, 1))[0].sequence == first


async def test_a_received_event_has_its_position(client: NativeClient) -> None:
    await (await client.sender("1")).send([Event(b"x", {"kind": "listener", "n": 7})])
    event = (await read(await client.reader(ReaderOptions("1")), 1))[0]
    properties = await client.partition_properties("1")
    assert event.properties == {"kind": "listener", "n": 7}
    assert (event.partition, event.sequence) == ("1", properties.last_sequence)
    assert event.offset == properties.last_offset
    assert event.enqueued_ms == properties.last_enqueued_ms
    assert type(event.enqueued_ms) is int


async def test_receive_returns_nothing_at_its_deadline(client: NativeClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    async with asyncio.timeout(DEADLINE_S):
        assert await reader.receive(10, 0.01) == []


async def test_receive_returns_as_soon_as_there_is_an_event(client: NativeClient) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(100, 60.0))
    await (await client.sender("0")).send([Event(b"x")])
    async with asyncio.timeout(DEADLINE_S):
        assert [event.body for event in await waiting] == [b"x"]


async def test_buffered_events_are_limited(client: NativeClient, hub: EmbeddedHub) -> None:
    await (await client.sender("0")).send(numbered(1000))
    reader = await client.reader(ReaderOptions("0", prefetch=10))
    seen = []
    for _ in range(200):
        assert reader.link is not None
        assert len(reader._buffer) + reader.link.credit <= 10
        seen += await read(reader, 5)
    assert [event.sequence for event in seen] == list(range(1000))


def test_a_prefetch_of_zero_is_refused() -> None:
    with pytest.raises(OptionError, match="prefetch must be at least 1"):
        ReaderOptions("0", prefetch=0)


async def test_an_evicted_reader_returns_its_buffered_events_first(
    client: NativeClient, hub: EmbeddedHub
) -> None:
    old = await client.reader(ReaderOptions("0", epoch=1))
    await (await client.sender("0")).send(numbered(3))
    await read(old, 1)
    new = await client.reader(ReaderOptions("0", epoch=2))
    assert len(await read(old, 2)) == 2
    with pytest.raises(ReaderEvicted) as evicted:
        await old.receive(1, DEADLINE_S)
    assert (evicted.value.condition, evicted.value.epoch) == ("amqp:link:stolen", 2)
    with pytest.raises(ReaderEvicted, match="higher epoch '2' already exists") as refused:
        await client.reader(ReaderOptions("0", epoch=1))
    assert refused.value.epoch == 2
    assert len(await read(new, 3)) == 3


async def test_an_epoch_of_zero_is_an_epoch(client: NativeClient) -> None:
    await client.reader(ReaderOptions("0", epoch=0))
    with pytest.raises(ReaderEvicted, match="non-epoch receiver is not allowed") as refused:
        await client.reader(ReaderOptions("0"))
    assert refused.value.epoch == 0


async def test_a_closed_reader_frees_its_place(client: NativeClient) -> None:
    readers = [await client.reader(ReaderOptions("0")) for _ in range(5)]
    with pytest.raises(AmqpError, match="maximum number of allowed receivers"):
        await client.reader(ReaderOptions("0"))
    await readers[0].close()
    await client.reader(ReaderOptions("0"))


# -- management -----------------------------------------------------------------------------------


async def test_properties_of_hub_and_partition(client: NativeClient) -> None:
    properties = await client.properties()
    assert (properties.name, properties.partitions) == ("eh", ("0", "1"))
    empty = await client.partition_properties("1")
    assert empty.empty
    assert (empty.last_sequence, empty.last_offset, empty.last_enqueued_ms) == (-1, "-1", NEVER_MS)
    with pytest.raises(AmqpError, match="between 0 and 1"):
        await client.partition_properties("2")


async def test_concurrent_requests_are_limited(client: NativeClient) -> None:
    await client.properties()
    authorized = await client.connection.connect()
    calls, same = await asyncio.gather(
        authorized.request_client(MANAGEMENT), authorized.request_client(MANAGEMENT)
    )
    assert calls is same
    async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(client.partition_properties("0")) for _ in range(200)]
        peak = 0
        while not asked[0].done():
            peak = max(peak, len(calls._pending))
            await asyncio.sleep(0)
    assert peak == 50


async def test_hubs_and_groups_are_created_and_deleted(hub: EmbeddedHub) -> None:
    async with NativeClient(hub.connection_string()) as client:
        ask = await client.management()
        assert (await ask.create_hub("new", 3)).partitions == ("0", "1", "2")
        assert [properties.name for properties in await ask.hubs()] == ["eh", "new"]
        await ask.create_group("new", "archive")
        assert await ask.groups("new") == ["$Default", "archive"]
        with pytest.raises(HubExists, match="'archive' already exists"):
            await ask.create_group("new", "archive")
        await ask.delete_group("new", "archive")
        await ask.delete_hub("new")
        with pytest.raises(HubNotFound, match="hub 'new' not found"):
            await ask.delete_hub("new")
        with pytest.raises(AmqpError, match="1 to 2000 partitions"):
            await ask.create_hub("new", 0)


async def test_a_client_of_the_namespace_has_no_hub(hub: EmbeddedHub) -> None:
    async with NativeClient(hub.connection_string()) as client:
        with pytest.raises(OptionError, match="no hub is named"):
            await client.sender()
        assert repr(client) == f"<NativeClient 127.0.0.1:{hub.port} namespace>"


# -- keys -----------------------------------------------------------------------------------------


async def test_a_wrong_key_is_refused_and_not_shown(hub: EmbeddedHub) -> None:
    text = hub.connection_string("eh").replace("SharedAccessKey=", "SharedAccessKey=hush")
    async with NativeClient(text) as client:
        with pytest.raises(AuthError, match="does not accept the key of 'RootManage") as refused:
            await client.sender()
    assert "hush" not in str(refused.value)


async def test_a_listen_key_cannot_send(hub: EmbeddedHub) -> None:
    hub.create_rule("ear", [Claim.LISTEN])
    async with NativeClient(hub.connection_string("eh", "ear")) as client:
        await client.reader(ReaderOptions("0"))
        with pytest.raises(AuthError, match=r"'Send' claim\(s\) are required"):
            await client.sender()
        with pytest.raises(AuthError, match=r"'Manage' claim\(s\) are required"):
            await (await client.management()).hubs()


async def test_a_given_signature_is_accepted(hub: EmbeddedHub) -> None:
    key = hub.find_rule("RootManageSharedAccessKey", None).key
    resource = f"sb://127.0.0.1:{hub.port}/eh"
    token = sign(resource, "RootManageSharedAccessKey", key, 4_000_000_000)
    text = f"Endpoint={resource[:-3]};SharedAccessSignature={token};UseDevelopmentEmulator=true"
    async with NativeClient(text, "eh") as client:
        assert await (await client.sender()).send([Event(b"x")]) == 1
        with pytest.raises(AuthError, match="does not accept the SharedAccessSignature"):
            await (await client.management()).hubs()


# -- losing the hub -------------------------------------------------------------------------------


async def test_unknown_names_are_reported(hub: EmbeddedHub) -> None:
    async with NativeClient(hub.connection_string(), "nowhere") as client:
        with pytest.raises(HubNotFound, match="/nowhere' could not be found"):
            await client.sender()
        with pytest.raises(HubNotFound, match="hub 'nowhere' not found"):
            await client.properties()
    async with NativeClient(hub.connection_string("eh")) as client:
        with pytest.raises(HubNotFound, match="ConsumerGroups/nobody' could not be found"):
            await client.reader(ReaderOptions("0", group="nobody"))


async def test_a_deleted_hub_ends_its_readers_and_senders(
    client: NativeClient, hub: EmbeddedHub
) -> None:
    reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
    hub.delete_hub("eh")
    with pytest.raises(HubNotFound, match="has been deleted"):
        await reader.receive(1, DEADLINE_S)
    with pytest.raises(HubNotFound, match=r"/eh.* could not be found"):
        await sender.send([Event(b"x")])


async def test_readers_and_senders_raise_when_the_hub_stops(hub: EmbeddedHub) -> None:
    async with NativeClient(
        hub.connection_string("eh"), retry=RetryOptions(1, 0.01, 0.01)
    ) as client:
        # From two partitions, so that the sent events are not received.
        reader, sender = await client.reader(ReaderOptions("0")), await client.sender("1")
        address = f"127.0.0.1:{hub.port}"
        receiving = asyncio.create_task(reader.receive(1, DEADLINE_S))
        sending = asyncio.create_task(sender.send(numbered(10_000), batch_events_max=1))
        await asyncio.sleep(0)
        await hub.stop()
        for task in (receiving, sending):
            with pytest.raises(ConnectionFailed, match=address):
                await task
        for call in (client.properties(), client.sender(), client.reader(ReaderOptions("0"))):
            with pytest.raises(ConnectionFailed, match=address):
                await call
        await reader.close()
        await sender.close()


async def test_closed_objects_raise(hub: EmbeddedHub) -> None:
    async with NativeClient(hub.connection_string("eh")) as client:
        reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
        await reader.close()
        await sender.close()
        with pytest.raises(LocalProtocolError, match=r"reader of eh/.*/0 has been closed"):
            await reader.receive(1, DEADLINE_S)
        with pytest.raises(LocalProtocolError, match="sender to eh/Partitions/0 has been closed"):
            await sender.send([Event(b"x")])
        assert (await client.properties()).name == "eh", "the others are not disturbed"
    with pytest.raises(LocalProtocolError, match=r"client of 127\.0\.0\.1:\d+ has been closed"):
        await client.properties()


async def test_a_closed_client_leaves_no_task(hub: EmbeddedHub) -> None:
    before = asyncio.all_tasks()
    async with NativeClient(hub.connection_string("eh")) as client:
        await client.properties()
    assert asyncio.all_tasks() == before
    await let_go(hub)


async def test_a_client_is_closed_when_its_task_is_cancelled(hub: EmbeddedHub) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with NativeClient(hub.connection_string("eh")) as client:
            reader = await client.reader(ReaderOptions("0"))
            inside.set()
            await reader.receive(1, 60)

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await let_go(hub)


async def test_requests_that_start_at_the_same_time_are_sent_at_once(
    client: NativeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.partition_properties("0")  # opens the links
    authorized = client.connection.current
    assert authorized is not None
    connection, flushes = authorized.connection, list[int]()
    flush = connection.flush

    def count_and_flush() -> None:
        flushes.append(1)
        flush()

    monkeypatch.setattr(connection, "flush", count_and_flush)
    states = await asyncio.gather(*(client.partition_properties("0") for _ in range(20)))
    assert len(states) == 20
    assert len(flushes) < 10  # also one for each read of replies
