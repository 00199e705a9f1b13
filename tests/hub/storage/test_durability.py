"""A durable hub: it is killed repeatedly while a client sends, and keeps its hubs and keys."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.eventhub import EventData, EventHubConsumerClient, EventHubProducerClient
from azure.eventhub.exceptions import EventHubError

from pumphouse import EmbeddedHub
from pumphouse.client.base import ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import DataDirectoryError, OptionError
from pumphouse.hub.storage.data_directory import DataDirectory
from pumphouse.hub.storage.records import HubRecord, NamespaceRecord

# The official client leaves the socket of a broken connection to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    """Collect them here, not in a later test."""
    yield
    gc.collect()


@contextmanager
def running(data: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`pumphouse up` on a data directory: the process, and a connection string."""
    options = ["--hubs", "sensors:2", "--port", "0", "--data", str(data), "-o", "json"]
    command = [str(PUMPHOUSE), "up", *options]
    up = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert up.stdout is not None
    try:
        yield up, json.loads(up.stdout.readline())["connection_strings"]["sensors"]
    finally:
        if up.poll() is None:
            up.kill()
        up.wait(10)
        up.stdout.close()


def read_all(connection: str) -> list[tuple[int, str]]:
    """Sequence number and body of every event in partition 0."""
    consumer = EventHubConsumerClient.from_connection_string(connection, "$Default", retry_total=0)
    last = consumer.get_partition_properties("0")["last_enqueued_sequence_number"]
    events_read: list[tuple[int, str]] = []

    def on_batch(partition, events) -> None:  # type: ignore[no-untyped-def]
        events_read.extend((event.sequence_number, event.body_as_str()) for event in events)
        if events_read and events_read[-1][0] == last:
            consumer.close()

    if last >= 0:
        consumer.receive_batch(on_batch, partition_id="0", starting_position="-1", prefetch=3000)
    consumer.close()
    return events_read


def test_an_acknowledged_event_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(11)
    acknowledged: list[str] = []
    attempted: list[str] = []
    for _ in range(4):
        with running(tmp_path) as (up, connection):
            producer = EventHubProducerClient.from_connection_string(connection, retry_total=0)
            killed_at = rng.randrange(3, 60)
            try:
                for number in range(200):
                    bodies = [f"{len(attempted) + n}" for n in range(rng.randrange(1, 5))]
                    attempted += bodies
                    if number == killed_at:
                        os.kill(up.pid, signal.SIGKILL)
                    producer.send_batch([EventData(body) for body in bodies], partition_id="0")
                    acknowledged += bodies
            except EventHubError:
                pass
            finally:
                producer.close()
    with running(tmp_path) as (_, connection):
        stored = read_all(connection)
    assert [sequence for sequence, _ in stored] == list(range(len(stored)))
    bodies = [body for _, body in stored]
    assert len(set(bodies)) == len(bodies), "no duplicates"
    assert bodies == sorted(bodies, key=int), "in order"
    assert set(acknowledged) <= set(bodies) <= set(attempted)
    assert len(acknowledged) > 20


def test_hubs_groups_and_keys_survive_a_restart(tmp_path: Path) -> None:
    with EmbeddedHub(hubs={"sensors": 2}, data=tmp_path) as hub:
        first = hub.connection_string()
        hub.create_hub("orders", 3, ["archive"])
        hub.delete_hub("sensors")
    with EmbeddedHub(data=tmp_path) as hub:
        assert hub.hubs == {"orders": 3}
        assert hub.groups("orders") == ["$Default", "archive"]
        assert hub.connection_string().split(";")[1:] == first.split(";")[1:]


async def open_reader(connection: str, group: str) -> None:
    async with open_client(connection) as client:
        await (await client.reader(ReaderOptions("0", group))).close()


def test_a_stored_group_with_a_slash_is_kept_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Earlier versions accepted such names. Event Hubs does not."""
    directory = DataDirectory(tmp_path)
    sensors = HubRecord("0" * 32, "sensors", 1, 0, ("$Default", "b/c"))
    directory.save(NamespaceRecord((sensors,)))
    directory.close()
    entity = {"Name": "sensors", "PartitionCount": 1, "ConsumerGroups": [{"Name": "b/c"}]}
    namespace = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": [entity]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"UserConfig": {"NamespaceConfig": [namespace]}}))
    with EmbeddedHub(data=tmp_path, config=config) as hub:
        assert hub.groups("sensors") == ["$Default", "b/c"]
        asyncio.run(open_reader(hub.connection_string("sensors"), "b/c"))
        with pytest.raises(OptionError, match="invalid name 'd/e' for a consumer group"):
            hub.create_group("sensors", "d/e")
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert [text.partition(" todo")[0] for text in warnings] == [
        "group_name_invalid hub=sensors group=b/c"
    ]


def test_a_deleted_hub_leaves_no_events_for_a_new_one_of_its_name(tmp_path: Path) -> None:
    with EmbeddedHub(hubs={"sensors": 1}, data=tmp_path) as hub:
        with EventHubProducerClient.from_connection_string(
            hub.connection_string("sensors")
        ) as producer:
            producer.send_event(EventData("old"), partition_id="0")
            hub.delete_hub("sensors")
            hub.create_hub("sensors", 1)
        assert read_all(hub.connection_string("sensors")) == []
    assert len(list((tmp_path / "hubs").iterdir())) <= 1


def test_a_data_directory_is_used_by_one_process(tmp_path: Path) -> None:
    with running(tmp_path), pytest.raises(DataDirectoryError, match="in use by process"):
        EmbeddedHub(data=tmp_path).__enter__()
