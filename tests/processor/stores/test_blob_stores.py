"""Processors with the blob stores, against Azurite."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest
from azure.storage.blob.aio import ContainerClient

from pumphouse import EventProcessorHost, EventProcessorOptions, FixedPartitionProcessor
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.blob.container import Container
from pumphouse.leases.stores.blob.store import BlobStore
from pumphouse.leases.strategies import parse_strategy
from pumphouse.processor.cycle import Cycle
from pumphouse.processor.host import PartitionContext
from pumphouse.processor.options import (
    CheckpointPolicy,
    PartitionManagerOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.azurite.fixtures import Storage
from tests.processor.support.bare_host import BareHost

HUB = "eh"


async def blobs(storage: Storage) -> dict[str, dict[str, Any]]:
    """Every blob by name: its JSON body, with its lease state and metadata."""
    blobs_by_name: dict[str, dict[str, Any]] = {}
    client = ContainerClient.from_connection_string(storage.direct, storage.container)
    async with client:
        async for blob in client.list_blobs(include=["metadata"]):
            body = await (await client.download_blob(blob.name)).readall()
            fields = json.loads(body) if body else {}
            blobs_by_name[blob.name] = fields | {
                "lease": blob.lease.state,
                "metadata": blob.metadata or {},
            }
    return blobs_by_name


async def send(connection: str, *bodies: str) -> None:
    async with open_client(connection) as client:
        for partition in (await client.properties()).partitions:
            await (await client.sender(partition)).send([Event(body.encode()) for body in bodies])


async def test_a_host_keeps_its_leases_in_blobs(storage: Storage) -> None:
    """Missing container and blobs are created; they hold owner, token, epoch and offset."""
    handled: list[str] = []
    done = asyncio.Event()

    async def on_message(context: PartitionContext, event: Event) -> None:
        await context.checkpoint()
        handled.append(context.partition_id)
        if len(handled) == 4:
            done.set()

    async with EmbeddedHub({HUB: 2}) as hub:
        connection = hub.connection_string(HUB)
        await send(connection, "a", "b")
        host = EventProcessorHost.from_connection_string(
            EventProcessorHost.create_host_name("vm"),
            storage.connection_string,
            storage.container,
            connection,
        )
        await host.start(on_message, options=EventProcessorOptions(max_batch_size=1))
        async with asyncio.timeout(100):
            await done.wait()
        made = await blobs(storage)
        rows = {name: made[name] for name in ("$Default/0", "$Default/1")}
        for row in rows.values():
            assert (row["Owner"], row["lease"]) == (host.host_name, "leased")
            assert row["metadata"]["OWNINGHOST"] == host.host_name
            assert row["Token"]
            assert (row["Epoch"], row["SequenceNumber"]) == (1, 1)
        await host.stop()
        released = await blobs(storage)
        for name in rows:
            assert (released[name]["Owner"], released[name]["Epoch"]) == ("", 1)
            assert released[name]["lease"] == "available"


async def test_replaced_partition_manager_options_change_the_leases_of_the_blobs(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They changed only the engine: the blobs' leases expired while the owner relied on them."""
    durations: list[float] = []
    acquire = Container.acquire

    async def recorded(self: Container, blob: str, token: str, lease_s: int, **more: Any) -> Any:
        durations.append(lease_s)
        return await acquire(self, blob, token, lease_s, **more)

    async def ignore(context: PartitionContext, event: Event) -> None: ...

    monkeypatch.setattr(Container, "acquire", recorded)
    async with EmbeddedHub({HUB: 1}) as hub:
        connection = hub.connection_string(HUB)
        host = EventProcessorHost.from_connection_string(
            "vm", storage.connection_string, storage.container, connection
        )
        host.partition_manager_options = PartitionManagerOptions(45, 15)
        await host.start(ignore)
        async with asyncio.timeout(100):
            while not host.owned:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await host.stop()
    assert durations == [45]


async def test_a_lease_that_azure_does_not_allow_is_refused_by_the_name_of_the_option() -> None:
    manager = PartitionManagerOptions(90, 30)
    with pytest.raises(OptionError, match="lease_duration_s must be 15 to 60 \\(got 90\\)"):
        EventProcessorHost.from_connection_string(
            "vm", "unused", "unused", "unused", partition_manager_options=manager
        )


async def test_a_fixed_processor_with_a_blob_store_from_the_environment(storage: Storage) -> None:
    done = asyncio.Event()
    async with EmbeddedHub({HUB: 2}) as hub:
        connection = hub.connection_string(HUB)
        await send(connection, "a")
        environ = {
            "STORAGE_CONNSTRING": storage.connection_string,
            "STORAGE_CONTAINER_NAME": storage.container,
            "INBOUND_EVENTHUB_CONNSTRING": connection,
            "INBOUND_EVENTHUB_CONSUMER_GROUP": "$Default",
            "ASSIGN_TO_X_PARTITIONS": "1",
            "LEASE_FOR_X_SEC": "30",
            "RENEW_EVERY_X_SEC": "10",
        }
        processor = FixedPartitionProcessor.from_env(environ=environ)

        @processor.on_batch
        async def handle(partition: PartitionClient, batch: list[Event]) -> None:
            done.set()

        async with processor, asyncio.timeout(100):
            await done.wait()
            made = await blobs(storage)
            owners = sorted(made[f"$Default/{partition}"]["Owner"] for partition in "01")
            assert owners == ["", processor.host]


@pytest.mark.parametrize("strategy", ["steady", "greedy", "eph_js"])
async def test_no_cycle_makes_more_store_calls_than_the_processor_notes_allow(
    storage: Storage, strategy: str
) -> None:
    """I10: one listing, two writes per partition and one upload per new partition at the most.

    At a cold start, when a host joins, when the fleet is settled, and after a crash.
    """
    asked, options = storage.proxy.requests, ProcessorOptions()
    async with EmbeddedHub({HUB: 6}) as hub, AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(hub.connection_string(HUB)))
        store = BlobStore.from_connection_string(
            storage.connection_string,
            storage.container,
            create_container=True,
            clock=storage.azurite.clock,
            timeout_s=60,
        )
        await stack.enter_async_context(store)
        storage.proxy.reset_counts()
        group, clock = Group(client.namespace, HUB), storage.azurite.clock

        def cycle_of(host: str) -> Cycle:
            bare = BareHost(host, client, store, group, options, clock)
            return Cycle(bare, parse_strategy(strategy), tuple("012345"))

        async def once(cycle: Cycle) -> None:
            await cycle.once(set())
            assert asked["list"] == 1
            assert asked["set metadata"] <= 2 * 6
            assert asked["put blob"] <= 6
            assert set(asked) <= {"list", "set metadata", "put blob"}
            for lease in list(cycle.host.leases.held.values()):
                if lease.row.successor:  # as the engine does when the pump has ended
                    await cycle.host.leases.give_up(lease.partition)
            storage.proxy.reset_counts()

        a, b = cycle_of("a"), cycle_of("b")
        for cycle in (a, a, a, b, b, a, b, a, b, a, b):
            await once(cycle)
        assert [len(each.host.leases.held) for each in (a, b)] == [3, 3]
        for _ in range(6):  # a has crashed
            storage.azurite.advance(options.renew_s)
            await once(b)
        assert len(b.host.leases.held) == 6


async def test_a_settled_cycle_is_one_list_call_and_the_renewals(storage: Storage) -> None:
    """I10, by the calls that the storage account received."""
    options = ProcessorOptions(
        interval_s=1, renew_s=1, lease_s=30, checkpoints=CheckpointPolicy(every_events=1)
    )
    store = BlobStore.from_connection_string(
        storage.connection_string, storage.container, create_container=True
    )
    async with EmbeddedHub({HUB: 4}) as hub:
        processor = Processor(hub.connection_string(HUB), store=store, options=options)
        async with processor, asyncio.timeout(100):
            while not (processor.settled and len(processor.owned) == 4):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            storage.proxy.reset_counts()
            while storage.proxy.requests["list"] < 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            asked = dict(storage.proxy.requests)
    lists, renewals = asked.pop("list"), asked.pop("set metadata")
    assert asked == {}  # no other calls
    assert renewals <= 4 * (lists + 1)
