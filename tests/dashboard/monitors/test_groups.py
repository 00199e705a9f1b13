"""The monitor of a consumer group: what it reads, and in which order."""

from __future__ import annotations

from typing import cast

from pumphouse.client.base import HubClient, HubProperties, PartitionProperties
from pumphouse.clock import SystemClock
from pumphouse.dashboard.monitors.groups import GroupMonitor
from pumphouse.dashboard.monitors.host_processes import Fleet, HostProcess
from pumphouse.dashboard.options import WatchedGroup
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.leases.store import CheckpointStore


class BusyGroup:
    """The hub and the store of a group with one partition. Each request handles a new event."""

    namespace, hub, end = "localhost", "orders", 0

    def handle(self) -> int:
        self.end += 1
        return self.end

    async def properties(self) -> HubProperties:
        return HubProperties(self.hub, 0, ("0",))

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return PartitionProperties(self.hub, partition, 0, self.handle(), "0", 0, False)

    async def list_ownership(self, group: Group) -> Listing:
        self.handle()
        return Listing((Ownership("0", "anna", 1),))

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        return [Checkpoint(group, "0", self.handle(), "0", 1)]


async def test_a_checkpoint_that_moves_meanwhile_is_not_ahead_of_its_partition() -> None:
    busy = BusyGroup()
    watched = WatchedGroup("Endpoint=sb://localhost", "orders", "$Default", "memory:")
    monitor = GroupMonitor(watched, "orders", SystemClock(), None)
    await monitor.observe(cast(HubClient, busy), cast(CheckpointStore, busy))
    (partition,) = monitor.latest_json["lines"]
    assert partition["status"] == "ok"


class OneFailedHost:
    """A fleet whose only host has failed."""

    def hosts(self) -> tuple[HostProcess, ...]:
        return (HostProcess("host-1", 7, "failed", 1000, "no store"),)


def test_the_error_of_a_host_is_also_under_the_old_key() -> None:
    fleet = cast(Fleet, OneFailedHost())
    watched = WatchedGroup("Endpoint=sb://localhost", "orders", "$Default", "memory:", fleet=fleet)
    (host,) = GroupMonitor(watched, "orders", SystemClock(), None).hosts() or []
    assert host["error"] == host["said"] == "no store"
