"""Processors from environment variables."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pumphouse.client.base import HubClient
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.handling.event_processors import PartitionContext
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.hosting import environment
from pumphouse.processor.hosting.group import ProcessorGroup
from pumphouse.processor.options import PartitionManagerOptions, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor

SECRET = "c2VjcmV0LXNlY3JldA=="
KEYS = f"Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey={SECRET}"
COMPLETE = {"EVENT_HUB_CONN_STR": f"{KEYS};EntityPath=eh", "PUMPHOUSE_STORE": "memory:"}
LIMIT_S = 60.0


async def test_hosts_of_all_apis_from_the_environment(tmp_path: Path) -> None:
    handled: asyncio.Queue[str] = asyncio.Queue()

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            for event in batch:
                handled.put_nowait(f"pull {event.body.decode()}")

    async def on_message(context: PartitionContext, event: Event) -> None:
        handled.put_nowait(f"push {event.body.decode()}")

    async with EmbeddedHub({"orders": 1, "alarms": 1}) as hub:
        for group in ("readers", "audit"):
            hub.create_group("orders", group)
        environ = {
            "PUMPHOUSE_CONNECTION": hub.connection_string(),
            "EVENT_HUB_NAME": "orders",
            "PUMPHOUSE_GROUP": "readers",
            "PUMPHOUSE_HOST": "vm-1",
            "PUMPHOUSE_STORE": f"sqlite:///{tmp_path}/leases.db",
        }
        async with open_client(hub.connection_string("orders")) as client:
            await (await client.sender()).send([Event(b"1")])
        processor = Processor.from_env(environ=environ)
        host = EventProcessorHost.from_env(environ=environ, consumer_group="audit")
        together = ProcessorGroup.from_env(environ=environ)
        together.pull("orders", serve)
        assert {processor.host, host.host_name, together.host} == {"vm-1"}
        async with host, together, asyncio.timeout(LIMIT_S):
            await host.start(on_message)
            running = asyncio.create_task(processor.run(serve))
            bodies = [await handled.get() for _ in range(3)]
            await processor.stop()
            await running
        assert sorted(bodies) == ["pull 1", "pull 1", "push 1"]


@pytest.mark.parametrize("make", [Processor.from_env, EventProcessorHost.from_env])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"EVENT_HUB_CONN_STR": ""}, "PUMPHOUSE_CONNECTION, EVENT_HUB_CONN_STR and EVENT_HUB_HOST"),
        ({"EVENT_HUB_CONN_STR": KEYS}, "EVENT_HUB_NAME is not set"),
        ({"EVENT_HUB_CONN_STR": f"Endpoint=;{KEYS}"}, "EVENT_HUB_CONN_STR: the connection string"),
        ({"PUMPHOUSE_CONNECTION": "house"}, "PUMPHOUSE_CONNECTION: invalid connection string"),
        ({"PUMPHOUSE_STORE": ""}, "PUMPHOUSE_STORE is not set"),
        ({"PUMPHOUSE_STORE": "ftp://x"}, "PUMPHOUSE_STORE: unknown store ftp:"),
    ],
)
def test_an_error_names_the_variable(make: Any, change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        make(environ=COMPLETE | change)
    assert SECRET not in str(raised.value)


def test_an_error_of_the_lease_names_the_option() -> None:
    environ = COMPLETE | {"PUMPHOUSE_STORE": "bloblease://account/leases"}
    with pytest.raises(OptionError, match=r"lease_duration_s must be 15 to 60"):
        EventProcessorHost.from_env(
            environ=environ, partition_manager_options=PartitionManagerOptions(90, 30)
        )
    with pytest.raises(OptionError, match=r"lease_s must be 15 to 60"):
        Processor.from_env(environ=environ, options=ProcessorOptions(lease_s=90))


def test_arguments_take_precedence() -> None:
    store = MemoryStore()
    processor = Processor.from_env(
        environ={"EVENT_HUB_CONN_STR": f"{KEYS};EntityPath=eh"}, store=store, host="other"
    )
    assert processor.host == "other"
    assert EventProcessorHost.from_env(environ=COMPLETE).host_name.startswith("host-")


def test_the_identity_of_the_machine_takes_the_place_of_a_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[tuple[str, str, object]] = []

    def open_with(address: Any, hub: str, *, credential: object, ca_file: object) -> HubClient:
        opened.append((address.host, hub, credential))
        raise AssertionError("not connected in this test")

    monkeypatch.setattr(environment, "machine_identity", lambda: "identity")
    monkeypatch.setattr(environment, "open_client", open_with)
    settings = environment.read_environment(
        {"EVENT_HUB_HOSTNAME": "house.servicebus.windows.net", "EVENT_HUB_NAME": "sensors"}
    )
    with pytest.raises(AssertionError):
        settings.connect()
    assert opened == [("house.servicebus.windows.net", "sensors", "identity")]


def test_the_repr_of_the_environment_shows_no_secret() -> None:
    settings = environment.read_environment(COMPLETE | {"PUMPHOUSE_STORE": f"redis://:{SECRET}@h"})
    assert SECRET not in repr(settings)
