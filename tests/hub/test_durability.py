"""A hub on disk, seen from outside: it is killed again and again while a client sends."""

from __future__ import annotations

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
from pumphouse.errors import DataDirectoryError

# The official client leaves the socket of a broken connection to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PUMPHOUSE = Path(sys.executable).with_name("pumphouse")


@pytest.fixture(autouse=True)
def collect_sockets() -> Iterator[None]:
    """Let them be collected here, not in somebody else's test."""
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
    found: list[tuple[int, str]] = []

    def on_batch(partition, events) -> None:  # type: ignore[no-untyped-def]
        found.extend((event.sequence_number, event.body_as_str()) for event in events)
        if found and found[-1][0] == last:
            consumer.close()

    if last >= 0:
        consumer.receive_batch(on_batch, partition_id="0", starting_position="-1", prefetch=3000)
    consumer.close()
    return found


def test_an_acknowledged_event_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    rng = random.Random(11)
    acknowledged: list[str] = []
    attempted: list[str] = []
    for _ in range(4):
        with running(tmp_path) as (up, connection):
            producer = EventHubProducerClient.from_connection_string(connection, retry_total=0)
            deadly = rng.randrange(3, 60)
            try:
                for number in range(200):
                    bodies = [f"{len(attempted) + place}" for place in range(rng.randrange(1, 5))]
                    attempted += bodies
                    if number == deadly:
                        os.kill(up.pid, signal.SIGKILL)
                    producer.send_batch([EventData(body) for body in bodies], partition_id="0")
                    acknowledged += bodies
            except EventHubError:
                pass
            finally:
                producer.close()
    with running(tmp_path) as (_, connection):
        found = read_all(connection)
    assert [sequence for sequence, _ in found] == list(range(len(found)))
    bodies = [body for _, body in found]
    assert len(set(bodies)) == len(bodies), "nothing is doubled"
    assert bodies == sorted(bodies, key=int), "nothing is reordered"
    assert set(acknowledged) <= set(bodies) <= set(attempted)
    assert len(acknowledged) > 20


def test_hubs_groups_and_keys_are_kept(tmp_path: Path) -> None:
    with EmbeddedHub(hubs={"sensors": 2}, data=tmp_path) as hub:
        first = hub.connection_string()
        hub.create_hub("orders", 3, ["archive"])
        hub.delete_hub("sensors")
    with EmbeddedHub(data=tmp_path) as hub:
        assert hub.hubs == {"orders": 3}
        assert hub.groups("orders") == ["$Default", "archive"]
        assert hub.connection_string().split(";")[1:] == first.split(";")[1:]


def test_a_deleted_hub_leaves_no_events_for_its_namesake(tmp_path: Path) -> None:
    with EmbeddedHub(hubs={"sensors": 1}, data=tmp_path) as hub:
        with EventHubProducerClient.from_connection_string(
            hub.connection_string("sensors")
        ) as producer:
            producer.send_event(EventData("old"), partition_id="0")
            hub.delete_hub("sensors")
            hub.create_hub("sensors", 1)
        assert read_all(hub.connection_string("sensors")) == []
    assert len(list((tmp_path / "hubs").iterdir())) <= 1


def test_one_process_holds_a_data_directory(tmp_path: Path) -> None:
    with running(tmp_path), pytest.raises(DataDirectoryError, match="in use by process"):
        EmbeddedHub(data=tmp_path).__enter__()
