"""`Sender.send` returns after the hub has acknowledged every event."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator

import pytest

from pumphouse.client.base import HubClient
from pumphouse.errors import ConnectionFailed, EventTooLarge, LocalProtocolError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.routing import partition_for
from tests.client.contract.support import (
    HASTY,
    DriverTarget,
    bodies,
    every_listener,
    numbered,
    read,
    running,
)


@every_listener
async def test_acknowledged_means_stored(client: HubClient, target: DriverTarget) -> None:
    sender = await client.sender("2")
    assert await sender.send(numbered(2500)) == 2500
    assert target.counts() == [0, 0, 2500, 0]
    assert sender.accepted == 2500
    assert await sender.send(numbered(1)) == 1
    assert sender.accepted == 2501


async def test_a_key_maps_to_the_partition_of_the_service(
    client: HubClient, target: DriverTarget
) -> None:
    keys = [f"home-{number}" for number in range(20)] + ["Straße", "温度", "😀"]
    sender = await client.sender()
    await sender.send([Event(key.encode(), partition_key=key) for key in keys * 2])
    for partition in range(4):
        own_bodies = [key.encode() for key in keys if partition_for(key, 4) == partition]
        events = await read(client, str(partition), 2 * len(own_bodies))
        assert sorted(bodies(events)) == sorted(own_bodies * 2)
        assert all((event.partition_key or "").encode() == event.body for event in events)
    assert sum(target.counts()) == 2 * len(keys)


async def test_events_of_a_key_keep_their_order(client: HubClient, target: DriverTarget) -> None:
    keys = [f"key-{number}" for number in range(3)]
    sender = await client.sender()
    sent = [Event(b"%d" % number, partition_key=keys[number % 3]) for number in range(600)]
    target.hub.faults.delay(0.3, hub=target.name, times=3)  # later batches must not overtake it
    assert await sender.send(sent, batch_events_max=5) == 600
    numbers_of: defaultdict[str | None, list[int]] = defaultdict(list)
    for partition, count in enumerate(target.counts()):
        for event in await read(client, str(partition), count):
            numbers_of[event.partition_key].append(int(event.body))
    assert {
        key: numbers == sorted(numbers) for key, numbers in numbers_of.items()
    } == dict.fromkeys(keys, True)
    assert sum(map(len, numbers_of.values())) == 600


@pytest.mark.parametrize("partition", [None, "0"])
async def test_a_list_that_changes_during_the_call_is_sent_as_it_was(
    client: HubClient, target: DriverTarget, partition: str | None
) -> None:
    """Before, events were skipped without an error."""
    sender = await client.sender(partition)
    sent = numbered(100)
    sending = asyncio.create_task(sender.send(sent, batch_events_max=5))
    while not sender.accepted:  # noqa: ASYNC110
        await asyncio.sleep(0)
    assert sender.accepted < 100
    del sent[:50]
    assert await sending == 100
    called = sender.send(sent)
    sent.clear()
    assert await called == 50
    assert sum(target.counts()) == 150


async def test_an_iterator_of_events_is_read_while_they_are_sent(client: HubClient) -> None:
    sender = await client.sender("0")
    accepted: list[int] = []

    def events() -> Iterator[Event]:
        for event in numbered(100):
            accepted.append(sender.accepted)
            yield event

    assert await sender.send(events(), batch_events_max=5) == 100
    assert accepted[0] == 0 < accepted[-1]


async def test_without_a_key_the_partitions_take_turns(
    client: HubClient, target: DriverTarget
) -> None:
    sender = await client.sender()
    assert await sender.send(numbered(80), batch_events_max=10) == 80
    assert target.counts() == [20, 20, 20, 20]


async def test_a_key_does_not_change_an_explicit_partition(
    client: HubClient, target: DriverTarget
) -> None:
    for partition in ("0", "1"):
        sender = await client.sender(partition)
        await sender.send(numbered(3, key="k"))
        assert {event.partition_key for event in await read(client, partition, 3)} == {"k"}
    assert target.counts() == [3, 3, 0, 0]


async def test_concurrent_sends_are_all_stored(client: HubClient, target: DriverTarget) -> None:
    sender, other = await client.sender("0"), await client.sender()
    sent = await asyncio.gather(
        *(sender.send(numbered(100, start=100 * number)) for number in range(10)),
        *(other.send(numbered(100, key=f"k{number}")) for number in range(10)),
    )
    assert sent == [100] * 20
    assert (sender.accepted, other.accepted) == (1000, 1000)
    assert sum(target.counts()) == 2000


async def test_an_empty_send_returns_zero(client: HubClient) -> None:
    sender = await client.sender()
    assert await sender.send([]) == 0
    assert sender.accepted == 0


async def test_events_of_an_iterator_are_sent(client: HubClient, target: DriverTarget) -> None:
    def made() -> Iterator[Event]:
        for number in range(30):
            yield Event(b"%d" % number)

    sender = await client.sender("0")
    assert await sender.send(made(), batch_events_max=7) == 30
    assert bodies(await read(client, "0", 30)) == bodies(numbered(30))


async def test_batches_respect_the_size_limit(client: HubClient, target: DriverTarget) -> None:
    large = [Event(bytes([number]) * 400_000) for number in range(6)]
    sender = await client.sender("0")
    assert await sender.send(large) == 6
    assert bodies(await read(client, "0", 6)) == [event.body for event in large]


async def test_a_small_size_limit_is_respected(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1}, message_bytes_max=5000)) as hub:
        target = DriverTarget(hub, "eh", driver)
        async with target.client() as client:
            sender = await client.sender()
            assert await sender.send([Event(b"x" * 900, partition_key="k")] * 50) == 50
            assert target.count() == 50
            with pytest.raises(EventTooLarge, match="5000 bytes"):
                await sender.send([Event(b"x" * 5001)])


async def test_an_event_that_is_too_large_is_refused(
    client: HubClient, target: DriverTarget
) -> None:
    sender = await client.sender("0")
    with pytest.raises(EventTooLarge, match="1048576 bytes"):
        await sender.send([Event(b"first"), Event(b"x" * 1_100_000)])
    assert target.count() == 0
    assert sender.accepted == 0
    assert await sender.send([Event(b"next")]) == 1
    assert bodies(await read(client, "0", 1)) == [b"next"]


async def test_a_busy_hub_is_retried(client: HubClient, target: DriverTarget) -> None:
    sender = await client.sender("0")
    target.hub.faults.throttle(hub=target.name, times=5)
    assert await sender.send(numbered(10)) == 10
    assert target.hub.faults.struck["throttle"] >= 5
    assert bodies(await read(client, "0", 10)) == bodies(numbered(10))


async def test_a_permanently_busy_hub_raises(target: DriverTarget) -> None:
    async with target.client(retry=HASTY) as client:
        sender = await client.sender("0")
        number = target.hub.faults.throttle(hub=target.name)
        with pytest.raises(ConnectionFailed, match="throttled"):
            await sender.send(numbered(10))
        assert (sender.accepted, target.count()) == (0, 0)
        target.hub.faults.cancel(number)
        assert await sender.send(numbered(10)) == 10


async def test_pending_batches_are_sent_again_after_a_break(
    client: HubClient, target: DriverTarget
) -> None:
    sender = await client.sender("0")
    await sender.send(numbered(1))
    before = target.hub.faults.struck["drop"]
    for number, times in enumerate((1, 3, 1, 2)):
        target.hub.faults.drop(on="send", hub=target.name, times=times)
        assert await sender.send(numbered(50, start=1 + 50 * number), batch_events_max=10) == 50
    # At least once: a batch whose acknowledgement was lost may be stored twice.
    events = await read(client, "0", target.count())
    first_seen = list(dict.fromkeys(int(event.body) for event in events))
    assert first_seen == list(range(201))
    assert target.hub.faults.struck["drop"] == before + 7


async def test_a_sender_survives_a_break_between_sends(
    client: HubClient, target: DriverTarget
) -> None:
    sender = await client.sender("0")
    for number in range(3):
        assert await sender.send(numbered(5, start=5 * number)) == 5
        target.hub.drop_connections()
    async with target.client() as another:
        assert bodies(await read(another, "0", 15)) == bodies(numbered(15))


async def test_a_detached_sender_attaches_again(client: HubClient, target: DriverTarget) -> None:
    sender = await client.sender("0")
    target.hub.faults.detach(on="send", hub=target.name, times=2)
    assert await sender.send(numbered(20), batch_events_max=5) == 20
    assert target.count() >= 20


async def test_a_closed_sender_raises(client: HubClient, target: DriverTarget) -> None:
    sender = await client.sender()
    await sender.send(numbered(1))
    await sender.close()
    await sender.close()
    with pytest.raises(LocalProtocolError, match="has been closed"):
        await sender.send(numbered(1))
    assert sum(target.counts()) == 1
