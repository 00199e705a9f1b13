"""ProcessorGroup: one store, one client per hub, one start, one end and one health answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable

import pytest

from pumphouse.client.base import HubClient
from pumphouse.client.factory import open_client
from pumphouse.errors import HubNotFound, OptionError, PermanentFailure
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.model import Group
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.handling.event_processors import PartitionContext
from pumphouse.processor.hosting.group import ProcessorGroup
from pumphouse.processor.options import (
    EventProcessorOptions,
    PartitionManagerOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.telemetry.health import CHECKS, LIVE, READY

HUBS = {"orders": 2, "alarms": 2, "doors": 2}
QUICK = ProcessorOptions(interval_s=0.1, renew_s=0.5, lease_s=20, give_up_s=0.2)
LEASES = PartitionManagerOptions(lease_duration_s=20, renew_interval_s=0.5)
LIMIT_S = 60.0


class Site:
    """A namespace with three hubs, a store, and what the handlers have got."""

    def __init__(self, hub: EmbeddedHub) -> None:
        self.hub, self.store = hub, MemoryStore()
        self.handled: Counter[str] = Counter()
        self.opened: list[str] = []

    def connect(self, hub: str) -> HubClient:
        self.opened.append(hub)
        return open_client(self.hub.connection_string(hub))

    async def serve(self, partition: PartitionClient) -> None:
        async for batch in partition.batches():
            self.handled["pull"] += len(batch)
            await partition.checkpoint()

    async def on_message(self, context: PartitionContext, event: Event) -> None:
        self.handled["push"] += 1

    async def on_batch(self, partition: PartitionClient, batch: list[Event]) -> None:
        self.handled["fixed"] += len(batch)

    async def send(self, *hubs: str) -> None:
        for hub in hubs:
            async with open_client(self.hub.connection_string(hub)) as client:
                await (await client.sender("0")).send([Event(b"x"), Event(b"y")])

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(LIMIT_S):
            while not condition():  # noqa: ASYNC110 (a condition of several objects)
                await asyncio.sleep(0.02)

    async def owners(self, hub: str, group: str = "$Default") -> set[str]:
        async with open_client(self.hub.connection_string(hub)) as client:
            namespace = client.namespace
        listing = await self.store.list_ownership(Group(namespace, hub, group))
        return {row.owner for row in listing.ownerships}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with EmbeddedHub(HUBS) as hub:
        hub.create_group("orders", "audit")
        yield Site(hub)


def owns_all(group: ProcessorGroup) -> bool:
    return all(len(member.owned) == 2 for member in group.members.values())


def all_three(site: Site, **options: bool) -> ProcessorGroup:
    group = ProcessorGroup(site.connect, store=site.store, host="vm-1", **options)
    group.pull("orders", site.serve, options=QUICK)
    group.push("alarms", on_message=site.on_message, partition_manager_options=LEASES)
    group.fixed("doors", site.on_batch, partitions=2)
    return group


async def test_members_of_every_api_share_store_name_and_health(site: Site) -> None:
    group = all_three(site)
    await site.send(*HUBS)
    running = asyncio.create_task(group.run())
    await site.until(lambda: site.handled == {"pull": 2, "push": 2, "fixed": 2})
    await site.until(lambda: not group.not_ready())
    assert CHECKS.failures(READY) == {}
    for hub in HUBS:
        assert "vm-1" in await site.owners(hub)
    await group.stop()
    await running
    assert group.not_ready() == "the group stops"
    assert not [name for kind in (LIVE, READY) for name in CHECKS.failures(kind)]
    for hub in HUBS:
        assert await site.owners(hub) == {""}


async def test_groups_of_one_hub_share_its_client(site: Site) -> None:
    group = ProcessorGroup(site.connect, store=site.store)
    for name in ("$Default", "audit"):
        group.pull("orders", site.serve, name, options=QUICK)
    await site.send("orders")
    async with group:
        await site.until(lambda: site.handled["pull"] == 4)
        assert site.opened == ["orders"]
    assert list(group.members) == ["orders/$Default", "orders/audit"]


async def test_a_connection_string_of_the_namespace_is_enough(site: Site) -> None:
    group = ProcessorGroup(site.hub.connection_string(), store=site.store)
    group.pull("orders", site.serve, options=QUICK)
    await site.send("orders")
    async with group:
        await site.until(lambda: site.handled["pull"] == 2)


async def test_a_member_that_cannot_start_stops_the_others(site: Site) -> None:
    group = all_three(site)
    group.pull("missing", site.serve, options=QUICK)
    with pytest.raises(HubNotFound) as raised:
        await group.run()
    assert raised.value.__notes__ == ["of the processor missing/$Default"]
    for hub in HUBS:
        assert await site.owners(hub) <= {""}
    assert CHECKS.failures(READY) == {}
    assert not [task for task in asyncio.all_tasks() if "/$Default" in task.get_name()]


async def test_a_member_that_fails_stops_the_others_and_its_error_is_raised(site: Site) -> None:
    group = all_three(site)
    running = asyncio.create_task(group.run())
    await site.until(lambda: owns_all(group))
    site.hub.delete_hub("orders")
    with pytest.raises(PermanentFailure) as raised:
        await asyncio.wait_for(running, LIMIT_S)
    assert "of the processor orders/$Default" in raised.value.__notes__
    for hub in ("alarms", "doors"):
        assert await site.owners(hub) == {""}


async def test_with_keep_going_the_others_continue_and_the_process_is_not_ready(
    site: Site,
) -> None:
    group = all_three(site, keep_going=True)
    running = asyncio.create_task(group.run())
    await site.until(lambda: owns_all(group))
    site.hub.delete_hub("orders")
    failed = "orders/$Default: it has failed: PermanentFailure"
    await site.until(lambda: failed in (group.not_ready() or ""))
    assert list(CHECKS.failures(READY)) == ["processor group vm-1"]
    assert CHECKS.failures(LIVE) == {}
    await site.send("alarms")
    await site.until(lambda: site.handled["push"] == 2)
    assert not running.done()
    with pytest.raises(PermanentFailure):
        await group.stop()
    with pytest.raises(PermanentFailure):
        await running


async def test_cancelling_run_stops_all_members(site: Site) -> None:
    group = all_three(site)
    running = asyncio.create_task(group.run())
    await site.until(lambda: owns_all(group))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    for hub in HUBS:
        assert await site.owners(hub) == {""}


async def test_misuse_is_refused(site: Site) -> None:
    group = ProcessorGroup(site.connect, store=site.store)
    with pytest.raises(OptionError, match="no members"):
        await group.start()
    with pytest.raises(OptionError, match="not to its members"):
        group.pull("orders", site.serve, host="other")
    with pytest.raises(OptionError, match="factory or on_message"):
        group.push("orders", event_processor_options=EventProcessorOptions())
    group.pull("orders", site.serve, options=QUICK)
    with pytest.raises(OptionError, match="in the group already"):
        group.fixed("Orders", site.on_batch, partitions=1)
    async with group:
        with pytest.raises(OptionError, match="started already"):
            await group.start()
        with pytest.raises(OptionError, match="has started"):
            group.pull("doors", site.serve)


async def test_a_group_pauses_and_resumes_its_members(site: Site) -> None:
    """Also before they have started."""
    group = all_three(site)
    group.pause()
    await site.send(*HUBS)
    running = asyncio.create_task(group.run())
    await site.until(lambda: owns_all(group))
    group.resume("orders/$Default")
    await site.until(lambda: site.handled["pull"] == 2)
    assert site.handled == {"pull": 2}
    group.resume()
    await site.until(lambda: site.handled == {"pull": 2, "push": 2, "fixed": 2})
    group.pause("alarms/$Default")
    await site.send(*HUBS)
    await site.until(lambda: site.handled == {"pull": 4, "push": 2, "fixed": 4})
    with pytest.raises(OptionError, match=r"no member 'orders': did you mean orders/\$Default"):
        group.pause("orders")
    await group.stop()
    await running


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
async def test_stop_ends_a_group_that_is_starting(site: Site, turns: int) -> None:
    """At whatever moment: as after a SIGTERM that comes during the start."""
    group = all_three(site)
    running = asyncio.create_task(group.run())
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT_S):
        await asyncio.gather(group.stop(), group.stop())
        await running
    assert not CHECKS.failures(READY)
    for hub in HUBS:
        assert await site.owners(hub) <= {""}
    await site.send(*HUBS)
    assert site.handled.total() == 0


async def test_stop_ends_a_group_whose_hub_does_not_respond(site: Site) -> None:
    connects = asyncio.Event()

    def connect(hub: str) -> HubClient:
        connects.set()
        keys = "SharedAccessKeyName=a;SharedAccessKey=b"
        return open_client(f"Endpoint=sb://127.0.0.1:1;{keys};EntityPath={hub}")

    group = ProcessorGroup(connect, store=site.store, host="vm-1")
    group.pull("orders", site.serve, options=QUICK)
    running = asyncio.create_task(group.run())
    async with asyncio.timeout(LIMIT_S):
        await connects.wait()
        await group.stop()
        await running


async def test_a_handler_can_stop_its_group(site: Site) -> None:
    """It would wait for itself, until `stop_s` is over."""
    patient = ProcessorOptions(interval_s=0.1, renew_s=0.5, lease_s=20, stop_s=600)
    group = ProcessorGroup(site.connect, store=site.store, host="vm-1")

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            site.handled["pull"] += len(batch)
            await partition.checkpoint()
            await group.stop()

    async def on_message(context: PartitionContext, event: Event) -> None:
        site.handled["push"] += 1
        await group.stop()

    group.pull("orders", serve, options=patient)
    group.push(
        "alarms",
        on_message=on_message,
        event_processor_options=EventProcessorOptions(stop_s=600),
        partition_manager_options=LEASES,
    )
    await site.send("orders", "alarms")
    async with asyncio.timeout(LIMIT_S):
        await group.run()
    assert site.handled
    for hub in ("orders", "alarms"):
        assert await site.owners(hub) <= {""}
