"""A sender's `send` returns when the hub has acknowledged every event."""

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
    Place,
    bodies,
    every_door,
    numbered,
    read,
    running,
)


@every_door
async def test_acknowledged_means_stored(client: HubClient, place: Place) -> None:
    sender = await client.sender("2")
    assert await sender.send(numbered(2500)) == 2500
    assert place.counts() == [0, 0, 2500, 0]
    assert sender.accepted == 2500
    assert await sender.send(numbered(1)) == 1
    assert sender.accepted == 2501


async def test_a_key_goes_where_the_service_would_put_it(client: HubClient, place: Place) -> None:
    keys = [f"home-{number}" for number in range(20)] + ["Straße", "温度", "😀"]
    sender = await client.sender()
    await sender.send([Event(key.encode(), partition_key=key) for key in keys * 2])
    for partition in range(4):
        wanted = [key.encode() for key in keys if partition_for(key, 4) == partition]
        events = await read(client, str(partition), 2 * len(wanted))
        assert sorted(bodies(events)) == sorted(wanted * 2)
        assert all((event.partition_key or "").encode() == event.body for event in events)
    assert sum(place.counts()) == 2 * len(keys)


async def test_events_of_a_key_keep_their_order(client: HubClient, place: Place) -> None:
    keys = [f"key-{number}" for number in range(3)]
    sender = await client.sender()
    sent = [Event(b"%d" % number, partition_key=keys[number % 3]) for number in range(600)]
    place.hub.faults.delay(0.3, hub=place.name, times=3)  # those who follow must not overtake
    assert await sender.send(sent, batch_events_max=5) == 600
    found: defaultdict[str | None, list[int]] = defaultdict(list)
    for partition, count in enumerate(place.counts()):
        for event in await read(client, str(partition), count):
            found[event.partition_key].append(int(event.body))
    assert {key: numbers == sorted(numbers) for key, numbers in found.items()} == dict.fromkeys(
        keys, True
    )
    assert sum(map(len, found.values())) == 600


async def test_without_a_key_the_partitions_take_turns(client: HubClient, place: Place) -> None:
    sender = await client.sender()
    assert await sender.send(numbered(80), batch_events_max=10) == 80
    assert place.counts() == [20, 20, 20, 20]


async def test_a_key_on_the_way_to_a_partition_is_only_kept(
    client: HubClient, place: Place
) -> None:
    for partition in ("0", "1"):
        sender = await client.sender(partition)
        await sender.send(numbered(3, key="k"))
        assert {event.partition_key for event in await read(client, partition, 3)} == {"k"}
    assert place.counts() == [3, 3, 0, 0]


async def test_several_sends_at_once(client: HubClient, place: Place) -> None:
    sender, other = await client.sender("0"), await client.sender()
    sent = await asyncio.gather(
        *(sender.send(numbered(100, start=100 * number)) for number in range(10)),
        *(other.send(numbered(100, key=f"k{number}")) for number in range(10)),
    )
    assert sent == [100] * 20
    assert (sender.accepted, other.accepted) == (1000, 1000)
    assert sum(place.counts()) == 2000


async def test_nothing_to_send(client: HubClient) -> None:
    sender = await client.sender()
    assert await sender.send([]) == 0
    assert sender.accepted == 0


async def test_events_out_of_an_iterator(client: HubClient, place: Place) -> None:
    def made() -> Iterator[Event]:
        for number in range(30):
            yield Event(b"%d" % number)

    sender = await client.sender("0")
    assert await sender.send(made(), batch_events_max=7) == 30
    assert bodies(await read(client, "0", 30)) == bodies(numbered(30))


async def test_batches_do_not_pass_what_the_hub_allows(client: HubClient, place: Place) -> None:
    large = [Event(bytes([number]) * 400_000) for number in range(6)]
    sender = await client.sender("0")
    assert await sender.send(large) == 6
    assert bodies(await read(client, "0", 6)) == [event.body for event in large]


async def test_a_hub_that_allows_little(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1}, message_bytes_max=5000)) as hub:
        place = Place(hub, "eh", driver)
        async with place.client() as client:
            sender = await client.sender()
            assert await sender.send([Event(b"x" * 900, partition_key="k")] * 50) == 50
            assert place.count() == 50
            with pytest.raises(EventTooLarge, match="5000 bytes"):
                await sender.send([Event(b"x" * 5001)])


async def test_an_event_that_is_too_large(client: HubClient, place: Place) -> None:
    sender = await client.sender("0")
    with pytest.raises(EventTooLarge, match="1048576 bytes"):
        await sender.send([Event(b"first"), Event(b"x" * 1_100_000)])
    assert place.count() == 0
    assert sender.accepted == 0
    assert await sender.send([Event(b"next")]) == 1
    assert bodies(await read(client, "0", 1)) == [b"next"]


async def test_a_busy_hub_is_tried_again(client: HubClient, place: Place) -> None:
    sender = await client.sender("0")
    place.hub.faults.throttle(hub=place.name, times=5)
    assert await sender.send(numbered(10)) == 10
    assert place.hub.faults.struck["throttle"] >= 5
    assert bodies(await read(client, "0", 10)) == bodies(numbered(10))


async def test_a_hub_that_stays_busy(place: Place) -> None:
    async with place.client(retry=HASTY) as client:
        sender = await client.sender("0")
        number = place.hub.faults.throttle(hub=place.name)
        with pytest.raises(ConnectionFailed, match="throttled"):
            await sender.send(numbered(10))
        assert (sender.accepted, place.count()) == (0, 0)
        place.hub.faults.cancel(number)
        assert await sender.send(numbered(10)) == 10


async def test_what_is_under_way_when_a_connection_breaks_is_sent_again(
    client: HubClient, place: Place
) -> None:
    sender = await client.sender("0")
    await sender.send(numbered(1))
    before = place.hub.faults.struck["drop"]
    for number, times in enumerate((1, 3, 1, 2)):
        place.hub.faults.drop(on="send", hub=place.name, times=times)
        assert await sender.send(numbered(50, start=1 + 50 * number), batch_events_max=10) == 50
    # At least once: what was acknowledged and lost on the way back may be there again.
    events = await read(client, "0", place.count())
    first_seen = list(dict.fromkeys(int(event.body) for event in events))
    assert first_seen == list(range(201))
    assert place.hub.faults.struck["drop"] == before + 7


async def test_a_break_between_two_sends(client: HubClient, place: Place) -> None:
    sender = await client.sender("0")
    for number in range(3):
        assert await sender.send(numbered(5, start=5 * number)) == 5
        place.hub.drop_connections()
    async with place.client() as another:
        assert bodies(await read(another, "0", 15)) == bodies(numbered(15))


async def test_a_detached_sender_attaches_again(client: HubClient, place: Place) -> None:
    sender = await client.sender("0")
    place.hub.faults.detach(on="send", hub=place.name, times=2)
    assert await sender.send(numbered(20), batch_events_max=5) == 20
    assert place.count() >= 20


async def test_a_closed_sender_sends_no_more(client: HubClient, place: Place) -> None:
    sender = await client.sender()
    await sender.send(numbered(1))
    await sender.close()
    await sender.close()
    with pytest.raises(LocalProtocolError, match="has been closed"):
        await sender.send(numbered(1))
    assert sum(place.counts()) == 1
