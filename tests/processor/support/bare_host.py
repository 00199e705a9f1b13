"""A host without pumps, for tests of the lease table and of the cycle."""

from __future__ import annotations

from random import Random

from pumphouse.client.base import HubClient
from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.handling.cancellation import OwnedTasks
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease
from pumphouse.processor.reporting import Reporter


class BareHost:
    """What a cycle needs of an engine. It records what the lease table reports."""

    def __init__(
        self,
        name: str,
        client: HubClient,
        store: CheckpointStore,
        group: Group,
        options: ProcessorOptions,
        clock: Clock,
    ) -> None:
        self.name, self.client, self.store, self.group = name, client, store, group
        self.options, self.clock, self.rng = options, clock, Random(name)
        self.tasks = OwnedTasks()
        self.listener = RecordingListener()
        self.reporter = Reporter(name, on_error=self.listener.failed)
        self.leases = LeaseTable(store, group, options, clock, self.listener, self.reporter)


class RecordingListener:
    """Records the calls of a lease table and of its reporter."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.states: dict[str, str] = {}

    def gained(self, lease: Lease) -> None:
        self.calls.append(("gained", lease.partition))

    def renewed(self, lease: Lease) -> None:
        self.calls.append(("renewed", lease.partition))

    def epoch_raised(self, lease: Lease) -> None:
        self.calls.append(("raised", str(lease.row.epoch)))

    def requested(self, lease: Lease) -> None:
        self.calls.append(("requested", lease.row.successor))

    def state(self, partition: str) -> str:
        return self.states.get(partition, "")

    def resumed(self, lease: Lease) -> None:
        self.calls.append(("resumed", lease.partition))

    def lost(self, partition: str, error: OwnershipLost) -> None:
        self.calls.append(("lost", error.owner))

    def failed(self, partition: str | None, error: Exception) -> None:
        self.calls.append(("failed", type(error).__name__))
