"""The metrics of a hub, compared with what clients have done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pumphouse.client.base import ReaderOptions, RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import PumphouseError, ReaderEvicted
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.telemetry.definitions import METRICS
from pumphouse.telemetry.prometheus import metric_name
from tests.hub.peer import eventually
from tests.telemetry.page import recording, scrape


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[EmbeddedHub]:
    with recording():
        async with EmbeddedHub({"doors": 2}, data=tmp_path, tls_port=0) as hub:
            yield hub


@pytest.fixture
async def client(hub: EmbeddedHub) -> AsyncIterator[NativeClient]:
    async with NativeClient(hub.connection_string("doors")) as client:
        yield client


def value(name: str, **labels: str) -> float:
    (number,) = scrape(f"pumphouse_hub_{name}", **labels).values()
    return number


async def send(client: NativeClient, *sizes: int, partition: str = "0") -> None:
    sender = await client.sender(partition)
    await sender.send([Event(bytes(size)) for size in sizes])
    await sender.close()


async def receive(client: NativeClient, count: int, group: str = "$Default") -> None:
    reader = await client.reader(ReaderOptions("0", group))
    received = 0
    while received < count:
        received += len(await reader.receive(deadline_s=30))
    await reader.close()


async def test_events_and_bytes_of_partitions(client: NativeClient) -> None:
    await send(client, 1000, 1000, 1000)
    await send(client, 10, partition="1")
    assert value("received_events_total", hub="doors", partition="0") == 3
    assert value("received_events_total", hub="doors", partition="1") == 1
    assert 3000 <= value("received_bytes_total", hub="doors", partition="0") < 3500
    assert value("sent_events_total", hub="doors", partition="0") == 0
    await receive(client, 3)
    assert value("sent_events_total", hub="doors", partition="0") == 3
    assert 3000 <= value("sent_bytes_total", hub="doors", partition="0") < 4000
    assert value("partition_begin_sequence", hub="doors", partition="0") == 0
    assert value("partition_end_sequence", hub="doors", partition="0") == 2
    assert value("log_bytes", hub="doors") > 3000
    assert value("append_seconds_count", hub="doors") == 2
    assert value("sync_seconds_count") >= 2


async def test_rejected_and_throttled_sends(hub: EmbeddedHub) -> None:
    hub.faults.throttle(hub="doors", times=1)
    once = RetryOptions(attempts=0)
    async with NativeClient(hub.connection_string("doors"), retry=once) as client:
        with pytest.raises(PumphouseError):
            await send(client, 10)
        with pytest.raises(PumphouseError):
            await send(client, 2_000_000)
    assert value("rejected_sends_total", condition="com.microsoft:server-busy") == 1
    assert value("throttled_total", hub="doors") == 1


async def test_readers_and_evictions(hub: EmbeddedHub, client: NativeClient) -> None:
    hub.create_group("doors", "Watch")
    first = await client.reader(ReaderOptions("0", "watch", epoch=1))
    assert value("readers", group="Watch") == 1
    assert value("readers", group="$Default") == 0
    second = await client.reader(ReaderOptions("0", "watch", epoch=2))
    with pytest.raises(ReaderEvicted):
        await first.receive(deadline_s=30)
    assert value("epoch_evictions_total", group="Watch") == 1
    await second.close()
    await eventually(lambda: value("readers", group="Watch") == 0)


async def test_connections_by_listener(hub: EmbeddedHub, client: NativeClient) -> None:
    await client.properties()
    connection = hub.connection_string("doors", tls=True)
    async with NativeClient(connection, ca_file=hub.ca_file) as secure:
        await secure.properties()
        assert value("connections", listener="amqp") == 1
        assert value("connections", listener="tls") == 1


async def test_the_series_of_a_deleted_hub_vanish(hub: EmbeddedHub) -> None:
    hub.create_hub("windows", 1)
    assert scrape("pumphouse_hub_", hub="windows")
    hub.delete_hub("windows")
    assert not scrape("pumphouse_hub_", hub="windows")


async def test_every_series_ends_with_the_hub(tmp_path: Path) -> None:
    with recording():
        async with EmbeddedHub({"doors": 2}, data=tmp_path) as hub:
            async with NativeClient(hub.connection_string("doors")) as client:
                await send(client, 10)
            names = {name for name, _ in scrape("pumphouse_hub_")}
    defined = {
        metric_name(each) for name, each in METRICS.items() if name.startswith("pumphouse.hub")
    }
    seen = {each for each in defined if any(name.startswith(each) for name in names)}
    assert defined - seen <= {"pumphouse_hub_rejected_sends", "pumphouse_hub_connections"}
    assert not scrape("pumphouse_hub_")


async def test_without_metrics_nothing_is_measured() -> None:
    async with EmbeddedHub({"doors": 1}) as hub:
        assert hub.namespace.on_append is None
        await asyncio.sleep(0)
        assert not scrape("pumphouse_hub_")
