"""Observes a consumer group: reads its hub and its store, and records ownership changes.

    HubClient, CheckpointStore -> GroupMonitor -> overview, rates, changes -> streams
                                  ^^^^^^^^^^^^ this module

If the hub or the store does not respond, the monitor retries and the page shows the error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack
from typing import Any

from pumphouse.client.base import HubClient, PartitionProperties, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, now_ms
from pumphouse.dashboard.monitors.hub_rate import all_partitions
from pumphouse.dashboard.monitors.readiness import Source
from pumphouse.dashboard.monitors.update_signal import UpdateSignal
from pumphouse.dashboard.options import WatchedGroup
from pumphouse.dashboard.views.fleet import (
    change_json,
    group_json,
    unreachable,
    without_short_lags,
)
from pumphouse.dashboard.views.ownership_history import Change, changes
from pumphouse.dashboard.views.rates import RateMeter
from pumphouse.errors import PumphouseError
from pumphouse.leases.model import Checkpoint, Group, Listing
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store
from pumphouse.processor.admin.overview import Overview, overview

RESPONSE_S = 15.0  # deadline for the hub and the store
RETRY_S = 2.0  # after a failure
# Age of the overview that the current one is compared with. It is longer than usual checkpoint
# intervals, so a checkpoint that has not moved since then is stuck.
COMPARE_S = 30.0
CHANGES_MAX = 2000
TIMELINE_MS = 15 * 60 * 1000  # older changes are not sent to the page, which draws ten minutes


class GroupMonitor:
    """The state and the recent history of one consumer group."""

    def __init__(self, watched: WatchedGroup, key: str, clock: Clock, ca_file: str | None) -> None:
        self.group, self.key, self.clock, self.ca_file = watched, key, clock, ca_file
        self.latest_json = unreachable(key, watched.title, watched.hub, watched.group, "")
        self.latest_json["meaning"] = "waiting for the first data"
        self.meter = RateMeter()
        self.changes: deque[tuple[int, Change]] = deque(maxlen=CHANGES_MAX)
        self.change_count = 0  # all changes so far
        self._overviews: deque[tuple[float, Overview]] = deque()
        self._listing: tuple[float, Listing] | None = None

    async def run(self, interval_s: float, updates: UpdateSignal) -> None:
        """Observe the group until cancelled. An error is shown on the page and retried."""
        while True:
            try:
                await self._observe_repeatedly(interval_s, updates)
            except (PumphouseError, OSError, TimeoutError) as error:
                self.show_trouble(error)
                updates.notify()
            await self.clock.sleep(RETRY_S)

    async def _observe_repeatedly(self, interval_s: float, updates: UpdateSignal) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(RESPONSE_S):
                client = await stack.enter_async_context(self._client())
                store = await stack.enter_async_context(open_store(self.group.store))
            while True:
                started_s = self.clock.monotonic()
                async with asyncio.timeout(RESPONSE_S):
                    await self.observe(client, store)
                updates.notify()
                await self.clock.sleep(max(0.0, started_s + interval_s - self.clock.monotonic()))

    def _client(self) -> HubClient:
        retry = RetryOptions(attempts=1)
        watched = self.group
        return open_client(watched.connection, watched.hub, ca_file=self.ca_file, retry=retry)

    async def observe(self, client: HubClient, store: CheckpointStore) -> None:
        """Read ownerships, checkpoints and partitions, and update the state."""
        group = Group(client.namespace, client.hub, self.group.group)
        listing, checkpoints = await asyncio.gather(
            store.list_ownership(group), store.list_checkpoints(group)
        )
        # The partitions are read last: if a partition is read before its checkpoint, the checkpoint
        # could be beyond the end of the partition.
        partitions = await all_partitions(client)
        self.update(client.hub, partitions, listing, checkpoints)

    def update(
        self,
        hub: str,
        partitions: list[PartitionProperties],
        listing: Listing,
        checkpoints: list[Checkpoint],
    ) -> None:
        at_s, at_ms, lease_s = self.clock.monotonic(), now_ms(self.clock), self.group.lease_s
        before = self._overviews[0][1] if self._overviews and self._old_enough(at_s) else None
        current = overview(self.group.group, hub, partitions, listing, checkpoints, lease_s, before)
        self._remember(at_s, current)
        self.meter.add(current, at_s, at_ms)
        self._record_changes(listing, at_s, at_ms)
        self.latest_json = group_json(
            self.key,
            self.group.title,
            without_short_lags(current),
            self.meter.rates(),
            self.meter.total(),
            lease_s,
        )

    def _old_enough(self, at_s: float) -> bool:
        return at_s - self._overviews[0][0] >= COMPARE_S

    def _remember(self, at_s: float, current: Overview) -> None:
        self._overviews.append((at_s, current))
        while len(self._overviews) > 1 and at_s - self._overviews[1][0] >= COMPARE_S:
            self._overviews.popleft()

    def _record_changes(self, listing: Listing, at_s: float, at_ms: int) -> None:
        before_s, before = self._listing or (at_s, Listing())
        elapsed_s = at_s - before_s
        for change in changes(before, listing, self.group.lease_s, elapsed_s, at_ms):
            self.change_count += 1
            self.changes.append((self.change_count, change))
        self._listing = (at_s, listing)

    def source(self) -> Source:
        """Its hub and store, for the readiness of the page."""
        responded_s = self._overviews[-1][0] if self._overviews else None
        name = f"group {self.group.group}"
        return Source(name, self.latest_json.get("trouble") or "", responded_s)

    def show_trouble(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        self.latest_json = {**self.latest_json, "trouble": text}

    # -- for the streams ---------------------------------------------------------------------------

    def changes_after(self, number: int) -> list[dict[str, Any]]:
        """The changes in the timeline that are numbered above `number`."""
        oldest_ms = now_ms(self.clock) - TIMELINE_MS
        return [
            change_json(n, self.key, change)
            for n, change in self.changes
            if n > number and change.at_ms >= oldest_ms
        ]

    def owners_at_start(self) -> dict[str, str]:
        """The owner of each partition before the oldest change in the timeline."""
        owners: dict[str, str] = {}
        oldest_ms = now_ms(self.clock) - TIMELINE_MS
        for _, change in self.changes:
            if change.at_ms < oldest_ms:
                owners[change.partition] = change.after
        return owners

    def hosts(self) -> list[dict[str, Any]] | None:
        """The host processes of the fleet; None if the page controls no fleet."""
        fleet = self.group.fleet
        if fleet is None:
            return None
        return [
            {
                "name": host.name,
                "pid": host.pid,
                "state": host.state,
                "since": host.since_ms,
                "error": host.error,
                "said": host.error,  # deprecated
            }
            for host in fleet.hosts()
        ]
