"""A real Prometheus scrapes the exporter, and its queries return the lag."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Checkpoint, Granted, Group
from pumphouse.leases.stores.sqlite.store import SqliteStore
from tests.azurite.server import Azurite
from tests.cli.conftest import Program
from tests.lag.exporter_process import Exporter, exporter
from tests.lag.prometheus_server import Prometheus
from tests.leases.stores.blob import official_stores

pytestmark = pytest.mark.xdist_group("prometheus")

LAG = "eventhub_consumergroup_group_lag"
HANDLER = "def handle(partition, batch):\n    raise ValueError('poison')\n"


@pytest.fixture(scope="module")
def hub() -> Iterator[EmbeddedHub]:
    """The hubs `orders` and `doors` of two partitions each, one for each store."""
    with EmbeddedHub() as hub:
        hub.create_hub("orders", 2, ["counters", "poisoned"])
        hub.create_hub("doors", 2, ["readers"])
        yield hub


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store") / "leases.db"


@pytest.fixture(scope="module")
def container() -> str:
    return f"c-{uuid.uuid4()}"


@pytest.fixture(scope="module")
def exporters(
    hub: EmbeddedHub, file: Path, azurite: Azurite, container: str
) -> Iterator[list[Exporter]]:
    blobs = f"{azurite.connection_string()};Container={container}"
    with (
        exporter("--store", str(file), connection=hub.connection_string("orders")) as first,
        exporter("--store", blobs, connection=hub.connection_string("doors")) as second,
    ):
        yield [first, second]


@pytest.fixture(scope="module")
def prometheus(
    exporters: list[Exporter], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    targets = [each.target for each in exporters]
    with Prometheus(tmp_path_factory.mktemp("prometheus"), targets) as server:
        yield server


async def send(hub: EmbeddedHub, name: str, partition: str, count: int) -> None:
    async with open_client(hub.connection_string(name)) as client:
        sender = await client.sender(partition)
        await sender.send([Event(b"%d" % number) for number in range(count)])


async def write_checkpoint(path: Path, group: Group, partition: str, sequence: int) -> None:
    async with SqliteStore(path) as store:
        stored = {each.partition: each for each in await store.list_checkpoints(group)}
        etag = stored[partition].etag if partition in stored else ""
        row = Checkpoint(group, partition, sequence, str(sequence), 1, etag)
        assert isinstance(await store.update_checkpoint(row), Granted)


async def test_the_lag_of_a_sqlite_store(
    hub: EmbeddedHub, file: Path, prometheus: Prometheus, tmp_path: Path
) -> None:
    group = Group(hub.authority, "orders", "counters")
    of_group = f'{{namespace="{hub.authority}",eventhub="orders",group="counters"}}'

    def until(query: str, expected: dict[tuple[str, ...], float], *labels: str) -> None:
        prometheus.until(query.replace("{}", of_group), expected, *labels)

    await send(hub, "orders", "0", 10)
    await send(hub, "orders", "1", 4)
    await write_checkpoint(file, group, "0", 6)
    until(LAG + "{}", {("0",): 3, ("1",): 4}, "partition")
    until("eventhub_consumergroup_group_sum_lag{}", {(): 14 - 7})
    until("eventhub_consumergroup_group_max_lag{}", {(): 4})
    until(f"max({LAG}{{}}) - max(eventhub_consumergroup_group_max_lag{{}})", {(): 0})
    until(
        'eventhub_partition_latest_offset{eventhub="orders"}', {("0",): 9, ("1",): 3}, "partition"
    )
    # A group that has stopped: its lag grows in events and in seconds.
    await send(hub, "orders", "0", 5)
    until(LAG + "{}", {("0",): 8, ("1",): 4}, "partition")
    until("eventhub_consumergroup_group_sum_lag{}", {(): 12})
    until("count(eventhub_consumergroup_group_max_lag_seconds{} > 1)", {(): 1})
    until("eventhub_consumergroup_status{}", {("0", ""): 3, ("1", ""): 3}, "partition", "owner")
    await write_checkpoint(file, group, "0", 14)
    await write_checkpoint(file, group, "1", 3)
    until("eventhub_consumergroup_group_sum_lag{}", {(): 0})
    until("eventhub_consumergroup_group_lag_seconds{}", {("0",): 0, ("1",): 0}, "partition")

    with closing(sqlite3.connect(file)) as db, db:  # the group is removed
        db.execute("DELETE FROM checkpoint WHERE consumer_group = 'counters'")
    until('count({__name__=~"eventhub_consumergroup_.*",group="counters"})', {})


async def test_an_event_that_stops_a_partition(
    hub: EmbeddedHub, file: Path, prometheus: Prometheus, tmp_path: Path
) -> None:
    await send(hub, "orders", "0", 1)
    (tmp_path / "poison_app.py").write_text(HANDLER)
    command = ("process", "poison_app:handle", "--host", "anna", "--retries", "0", "-o", "json")
    prefix = ("env", "-C", str(tmp_path))
    host = Program(
        *(*command, "--group", "poisoned", "--store", str(file)),
        connection=hub.connection_string("orders"),
        prefix=prefix,
    )
    try:
        while json.loads(await asyncio.to_thread(host.line))["event"] != "error":
            pass
        query = 'eventhub_consumergroup_status{group="poisoned",partition="0"}'
        prometheus.until(query, {("anna",): 4}, "owner")
    finally:
        host.dispose()


async def test_checkpoints_of_the_official_store(
    hub: EmbeddedHub, azurite: Azurite, container: str, prometheus: Prometheus
) -> None:
    group, storage = Group(hub.authority, "doors", "readers"), azurite.connection_string()
    await send(hub, "doors", "0", 6)
    async with (
        official_stores.raw_container(storage, container) as raw,
        BlobCheckpointStore.from_connection_string(storage, container) as store,
    ):
        await store.claim_ownership([official_stores.ownership(group, "0", "owner-1")])
        await store.update_checkpoint(official_stores.checkpoint(group, "0", 1, "1"))
        of_group = '{eventhub="doors",group="readers"}'
        lags: dict[tuple[str, ...], float] = {("0", "owner-1"): 4, ("1", ""): 0}
        prometheus.until(LAG + of_group, lags, "partition", "owner")
        prometheus.until(f"eventhub_consumergroup_group_sum_lag{of_group}", {(): 4})
        await store.update_checkpoint(official_stores.checkpoint(group, "0", 5, "5"))
        prometheus.until(f"eventhub_consumergroup_group_sum_lag{of_group}", {(): 0})
        # The hub is created again with one partition: the other vanishes.
        hub.delete_hub("doors")
        hub.create_hub("doors", 1, ["readers"])
        latest = 'eventhub_partition_latest_offset{eventhub="doors"}'
        prometheus.until(latest, {("0",): -1}, "partition")
        prometheus.until(LAG + of_group, {("0",): 0}, "partition")
        prometheus.until(f"eventhub_consumergroup_status{of_group}", {("0",): 3}, "partition")
        async for blob in raw.list_blobs():
            await raw.delete_blob(blob.name)
        prometheus.until(f"count({LAG}{of_group})", {})
