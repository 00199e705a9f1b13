"""Clients of a worker process: opened one time, reused by later tasks, closed after a failure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.client.factory import open_client
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import ConnectionFailed
from pumphouse.events import Event
from pumphouse.homes.namespace import HomesNamespace
from pumphouse.homes.sift.delivery import OutgoingEvents, delivery_to
from pumphouse.homes.sift.open_hubs import OpenHubs
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.spark.options import HubIdentity, SinkOptions, read_sink
from tests.homes.streams import read_all

HUBS = ("alerts", "activity", "deadletter")


@pytest.fixture
def namespace() -> Iterator[HomesNamespace]:
    with EmbeddedHub(hubs=dict.fromkeys(HUBS, 4)) as hub:
        yield HomesNamespace(hub.connection_string())


class Connections:
    """Opens clients, and counts them by hub."""

    def __init__(self) -> None:
        self.opened: list[str] = []
        self.hubs = OpenHubs(self.connect)

    def connect(self, identity: HubIdentity) -> NativeClient:
        self.opened.append(identity.hub)
        client = open_client(identity.connection, identity.hub)
        assert isinstance(client, NativeClient)
        return client


@pytest.fixture
def connections() -> Iterator[Connections]:
    connections = Connections()
    try:
        yield connections
    finally:
        connections.hubs.close()


def task_of(number: int) -> OutgoingEvents:
    events = [Event(b"%d" % number, partition_key=f"h00000{home}") for home in range(8)]
    return OutgoingEvents(events[:1], events, events[:2])


def test_tasks_of_a_process_share_connections(
    namespace: HomesNamespace, connections: Connections
) -> None:
    deliver = delivery_to(*map(namespace.hub_options, HUBS))
    for number in range(3):
        deliver(task_of(number), connections.hubs)
    assert sorted(connections.opened) == sorted(HUBS)
    counts = [len(read_all(namespace, hub)) for hub in HUBS]
    assert counts == [3, 24, 6]


def test_the_client_of_a_task_that_failed_is_not_used_again(
    namespace: HomesNamespace, connections: Connections
) -> None:
    options = read_sink(namespace.hub_options("activity"))
    with pytest.raises(ConnectionFailed, match="as a test"):
        connections.hubs.run(fail(connections.hubs, options))
    deliver = delivery_to(*map(namespace.hub_options, HUBS))
    deliver(OutgoingEvents(activities=task_of(0).activities), connections.hubs)
    assert connections.opened == ["activity", "activity"]


async def fail(hubs: OpenHubs, options: SinkOptions) -> None:
    async with hubs.borrow(options.identity):
        raise ConnectionFailed("as a test")
