"""Breaks that pass by themselves are mended behind the caller's back; what does not is raised."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from pumphouse.client.base import HubClient, ReaderOptions, RetryOptions
from pumphouse.clock import MovableClock
from pumphouse.errors import AmqpError, ConnectionFailed, HubNotFound, ReaderEvicted
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.contract.support import (
    DEADLINE_S,
    HASTY,
    Place,
    bodies,
    eventually,
    every_door,
    fill,
    numbered,
    running,
    sequences,
    take,
)


@every_door
async def test_dropped_connections_leave_no_gap_and_no_repeat(
    client: HubClient, place: Place
) -> None:
    await fill(client, "0", 3000)
    reader = await client.reader(ReaderOptions("0", prefetch=100))
    events: list[Event] = []
    for _ in range(4):
        events += await take(reader, 450, at_once=7)
        assert place.hub.drop_connections() >= 1
    events += await take(reader, 3000 - len(events))
    assert sequences(events) == list(range(3000))
    assert await reader.receive(1, 0.05) == []


async def test_a_connection_that_breaks_while_events_are_sent(
    client: HubClient, place: Place
) -> None:
    await fill(client, "0", 500)
    reader = await client.reader(ReaderOptions("0", prefetch=20))
    before, events = place.hub.faults.struck["drop"], []
    for times in (1, 3, 2):
        place.hub.faults.drop(on="deliver", hub=place.name, times=times)
        events += await take(reader, 150)
    events += await take(reader, 50)
    assert sequences(events) == list(range(500))
    assert place.hub.faults.struck["drop"] == before + 6


async def test_a_break_while_nothing_is_read(client: HubClient, place: Place) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(1, 3600.0))
    await asyncio.sleep(0)
    place.hub.drop_connections()
    async with place.client() as another:
        await fill(another, "0", 1)
    async with asyncio.timeout(DEADLINE_S):
        assert sequences(await waiting) == [0]


@pytest.mark.parametrize(
    "condition", ["amqp:link:detach-forced", "com.microsoft:server-busy", "com.microsoft:timeout"]
)
async def test_a_detach_that_passes(client: HubClient, place: Place, condition: str) -> None:
    await fill(client, "0", 100)
    reader = await client.reader(ReaderOptions("0", prefetch=10))
    events = await take(reader, 20, at_once=5)
    place.hub.faults.detach(condition, hub=place.name, times=3)
    events += await take(reader, 80)
    assert sequences(events) == list(range(100))
    assert not place.hub.faults


async def test_a_refusal_that_passes(client: HubClient, place: Place) -> None:
    place.hub.faults.refuse("com.microsoft:server-busy", hub=place.name, times=2)
    await fill(client, "0", 3)
    reader = await client.reader(ReaderOptions("0"))
    assert len(await take(reader, 3)) == 3
    assert place.hub.faults.struck["refuse"] >= 2


async def test_a_detach_that_does_not_pass(client: HubClient, place: Place) -> None:
    await fill(client, "0", 1)
    place.hub.faults.detach("amqp:not-found", "It is gone.", hub=place.name)
    reader = await client.reader(ReaderOptions("0"))
    with pytest.raises(HubNotFound, match=r"It is gone\."):
        await reader.receive(1, DEADLINE_S)


async def test_the_epoch_is_kept_over_a_break(client: HubClient, place: Place) -> None:
    reader = await client.reader(ReaderOptions("0", epoch=3, name="host-a"))
    place.hub.drop_connections()
    await fill(client, "0", 1)
    assert len(await take(reader, 1)) == 1
    [outlet] = place.outlets()
    assert (outlet.reader.epoch, outlet.reader.name) == (3, "host-a")


async def test_one_who_was_replaced_during_a_break_is_evicted(
    client: HubClient, place: Place
) -> None:
    old = await client.reader(ReaderOptions("0", epoch=3))
    place.hub.faults.refuse(hub=place.name, times=3)
    place.hub.drop_connections()
    async with place.client() as another:
        await another.reader(ReaderOptions("0", epoch=4))
        with pytest.raises(ReaderEvicted) as evicted:
            await old.receive(1, DEADLINE_S)
        assert evicted.value.epoch == 4


async def test_a_token_that_has_run_out_is_put_again(driver: str) -> None:
    clock = MovableClock()
    async with running(EmbeddedHub({"eh": 1}, clock=clock)) as hub:
        place = Place(hub, "eh", driver)
        async with place.client() as client:
            reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
            clock.advance(3 * 3600)  # as if the machine had slept
            hub.tick()
            await place.empty()
            clock.advance(-3 * 3600)
            assert await sender.send(numbered(1)) == 1
            assert sequences(await take(reader, 1)) == [0]


async def test_patience_comes_to_an_end(place: Place) -> None:
    async with place.client(retry=HASTY) as client:
        reader = await client.reader(ReaderOptions("0"))
        place.hub.faults.refuse(hub=place.name)
        place.hub.drop_connections()
        with pytest.raises(ConnectionFailed, match=r"Refused on purpose\."):
            await reader.receive(1, DEADLINE_S)


async def test_a_deleted_hub(client: HubClient, place: Place) -> None:
    reader = await client.reader(ReaderOptions("0"))
    place.hub.delete_hub(place.name)
    with pytest.raises(HubNotFound, match=place.name):
        await reader.receive(1, DEADLINE_S)


# -- a hub that goes and comes back ---------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_hub_that_is_started_again(driver: str, tmp_path: Path) -> None:
    def make(port: int) -> EmbeddedHub:
        return EmbeddedHub({"eh": 1}, port=port, data=tmp_path / "events")

    async with running(make(0)) as hub:
        port = hub.port
        place = Place(hub, "eh", driver)
        client = await place.client().__aenter__()
        sender, reader = await client.sender("0"), await client.reader(ReaderOptions("0", epoch=1))
        await sender.send(numbered(50))
        events = await take(reader, 20, at_once=20)
    sending = asyncio.create_task(sender.send(numbered(50, start=50)))
    receiving = asyncio.create_task(take(reader, 80))
    async with running(make(port)):
        async with asyncio.timeout(DEADLINE_S):
            assert await sending == 50
            events += await receiving
        await client.__aexit__()
    assert bodies(events) == bodies(numbered(100))
    assert sequences(events) == list(range(100))


async def test_a_hub_that_has_forgotten_its_events(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1}, root_key="key")) as hub:
        port = hub.port
        client = await Place(hub, "eh", driver).client().__aenter__()
        await fill(client, "0", 5)
        reader = await client.reader(ReaderOptions("0"))
        assert len(await take(reader, 5)) == 5
    async with running(EmbeddedHub({"eh": 1}, root_key="key", port=port)):
        with pytest.raises(AmqpError, match="sequence number '4' is invalid"):
            await reader.receive(1, DEADLINE_S)
        await client.__aexit__()


async def test_a_hub_that_does_not_come_back(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1})) as hub:
        client = await Place(hub, "eh", driver).client(retry=HASTY).__aenter__()
        reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        await reader.receive(1, DEADLINE_S)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        await sender.send([Event(b"x")])
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        await client.properties()
    assert sender.accepted == 0
    await client.__aexit__()


async def test_nobody_there(place: Place) -> None:
    text = f"Endpoint=sb://127.0.0.1:{free_port()};SharedAccessKeyName=a;SharedAccessKey=b"
    retry = RetryOptions(attempts=1, first_s=0.01, most_s=0.01)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        async with place.client_with(
            f"{text};UseDevelopmentEmulator=true", "eh", retry=retry
        ) as client:
            await client.properties()


async def test_a_break_between_two_questions(client: HubClient, place: Place) -> None:
    assert (await client.properties()).name == place.name
    place.hub.drop_connections()
    await eventually(lambda: not place.outlets())
    assert (await client.properties()).name == place.name
