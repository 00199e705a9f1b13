"""Transient failures are retried without the caller noticing; permanent ones are raised."""

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
    DriverTarget,
    bodies,
    eventually,
    every_listener,
    fill,
    numbered,
    running,
    sequences,
    take,
)


@every_listener
async def test_dropped_connections_leave_no_gap_and_no_duplicate(
    client: HubClient, target: DriverTarget
) -> None:
    await fill(client, "0", 3000)
    reader = await client.reader(ReaderOptions("0", prefetch=100))
    events: list[Event] = []
    for _ in range(4):
        events += await take(reader, 450, at_once=7)
        assert target.hub.drop_connections() >= 1
    events += await take(reader, 3000 - len(events))
    assert sequences(events) == list(range(3000))
    assert await reader.receive(1, 0.05) == []


async def test_a_connection_that_breaks_during_delivery_leaves_no_gap(
    client: HubClient, target: DriverTarget
) -> None:
    await fill(client, "0", 500)
    reader = await client.reader(ReaderOptions("0", prefetch=20))
    before, events = target.hub.faults.struck["drop"], []
    for times in (1, 3, 2):
        target.hub.faults.drop(on="deliver", hub=target.name, times=times)
        events += await take(reader, 150)
    events += await take(reader, 50)
    assert sequences(events) == list(range(500))
    assert target.hub.faults.struck["drop"] == before + 6


async def test_a_reader_survives_a_break_while_idle(
    client: HubClient, target: DriverTarget
) -> None:
    reader = await client.reader(ReaderOptions("0"))
    waiting = asyncio.create_task(reader.receive(1, 3600.0))
    await asyncio.sleep(0)
    target.hub.drop_connections()
    async with target.client() as another:
        await fill(another, "0", 1)
    async with asyncio.timeout(DEADLINE_S):
        assert sequences(await waiting) == [0]


@pytest.mark.parametrize(
    "condition", ["amqp:link:detach-forced", "com.microsoft:server-busy", "com.microsoft:timeout"]
)
async def test_a_transient_detach_is_retried(
    client: HubClient, target: DriverTarget, condition: str
) -> None:
    await fill(client, "0", 100)
    reader = await client.reader(ReaderOptions("0", prefetch=10))
    events = await take(reader, 20, at_once=5)
    target.hub.faults.detach(condition, hub=target.name, times=3)
    events += await take(reader, 80)
    assert sequences(events) == list(range(100))
    assert not target.hub.faults


async def test_a_transient_refusal_is_retried(client: HubClient, target: DriverTarget) -> None:
    target.hub.faults.refuse("com.microsoft:server-busy", hub=target.name, times=2)
    await fill(client, "0", 3)
    reader = await client.reader(ReaderOptions("0"))
    assert len(await take(reader, 3)) == 3
    assert target.hub.faults.struck["refuse"] >= 2


async def test_a_permanent_detach_is_raised(client: HubClient, target: DriverTarget) -> None:
    await fill(client, "0", 1)
    target.hub.faults.detach("amqp:not-found", "It is gone.", hub=target.name)
    reader = await client.reader(ReaderOptions("0"))
    with pytest.raises(HubNotFound, match=r"It is gone\."):
        await reader.receive(1, DEADLINE_S)


async def test_the_epoch_is_kept_after_a_reconnect(client: HubClient, target: DriverTarget) -> None:
    reader = await client.reader(ReaderOptions("0", epoch=3, name="host-a"))
    target.hub.drop_connections()
    await fill(client, "0", 1)
    assert len(await take(reader, 1)) == 1
    [consumer] = target.consumer_links()
    assert (consumer.reader.epoch, consumer.reader.name) == (3, "host-a")


async def test_a_reader_replaced_during_a_break_is_evicted(
    client: HubClient, target: DriverTarget
) -> None:
    old = await client.reader(ReaderOptions("0", epoch=3))
    target.hub.faults.refuse(hub=target.name, times=3)
    target.hub.drop_connections()
    async with target.client() as another:
        await another.reader(ReaderOptions("0", epoch=4))
        with pytest.raises(ReaderEvicted) as evicted:
            await old.receive(1, DEADLINE_S)
        assert evicted.value.epoch == 4


async def test_an_expired_token_is_put_again(driver: str) -> None:
    clock = MovableClock()
    async with running(EmbeddedHub({"eh": 1}, clock=clock)) as hub:
        target = DriverTarget(hub, "eh", driver)
        async with target.client() as client:
            reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
            clock.advance(3 * 3600)  # as if the machine had slept
            hub.tick()
            await target.empty()
            clock.advance(-3 * 3600)
            assert await sender.send(numbered(1)) == 1
            assert sequences(await take(reader, 1)) == [0]


async def test_exhausted_retries_raise(target: DriverTarget) -> None:
    async with target.client(retry=HASTY) as client:
        reader = await client.reader(ReaderOptions("0"))
        target.hub.faults.refuse(hub=target.name)
        target.hub.drop_connections()
        with pytest.raises(ConnectionFailed, match=r"Refused on purpose\."):
            await reader.receive(1, DEADLINE_S)


async def test_a_deleted_hub_ends_reader_and_sender(
    client: HubClient, target: DriverTarget
) -> None:
    reader = await client.reader(ReaderOptions("0"))
    target.hub.delete_hub(target.name)
    with pytest.raises(HubNotFound, match=target.name):
        await reader.receive(1, DEADLINE_S)


# -- restarts of the hub --------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_reader_and_sender_survive_a_restart_of_the_hub(driver: str, tmp_path: Path) -> None:
    def make(port: int) -> EmbeddedHub:
        return EmbeddedHub({"eh": 1}, port=port, data=tmp_path / "events")

    async with running(make(0)) as hub:
        port = hub.port
        target = DriverTarget(hub, "eh", driver)
        client = await target.client().__aenter__()
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


async def test_a_restarted_hub_without_its_events_is_an_error(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1}, root_key="key")) as hub:
        port = hub.port
        client = await DriverTarget(hub, "eh", driver).client().__aenter__()
        await fill(client, "0", 5)
        reader = await client.reader(ReaderOptions("0"))
        assert len(await take(reader, 5)) == 5
    async with running(EmbeddedHub({"eh": 1}, root_key="key", port=port)):
        with pytest.raises(AmqpError, match="sequence number '4' is invalid"):
            await reader.receive(1, DEADLINE_S)
        await client.__aexit__()


async def test_a_hub_that_stays_down_raises_connection_failed(driver: str) -> None:
    async with running(EmbeddedHub({"eh": 1})) as hub:
        client = await DriverTarget(hub, "eh", driver).client(retry=HASTY).__aenter__()
        reader, sender = await client.reader(ReaderOptions("0")), await client.sender("0")
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        await reader.receive(1, DEADLINE_S)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        await sender.send([Event(b"x")])
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        await client.properties()
    assert sender.accepted == 0
    await client.__aexit__()


async def test_an_unreachable_hub_raises_connection_failed(target: DriverTarget) -> None:
    text = f"Endpoint=sb://127.0.0.1:{free_port()};SharedAccessKeyName=a;SharedAccessKey=b"
    retry = RetryOptions(attempts=1, first_s=0.01, most_s=0.01)
    with pytest.raises(ConnectionFailed, match=r"127\.0\.0\.1"):
        async with target.client_with(
            f"{text};UseDevelopmentEmulator=true", "eh", retry=retry
        ) as client:
            await client.properties()


async def test_properties_survive_a_break(client: HubClient, target: DriverTarget) -> None:
    assert (await client.properties()).name == target.name
    target.hub.drop_connections()
    await eventually(lambda: not target.consumer_links())
    assert (await client.properties()).name == target.name
