"""Looks at consumer groups again and again: their hub, their store, what has changed.

    HubClient, CheckpointStore -> GroupMonitor -> overview, rates, changes -> streams
                                  ^^^^^^^^^^ this module

A hub or store that does not answer is asked again; meanwhile the page says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import AsyncExitStack, suppress
from typing import Any

from pumphouse.client.base import HubClient, PartitionProperties, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.clock import Clock, now_ms
from pumphouse.dashboard.monitors.update_signal import UpdateSignal
from pumphouse.dashboard.options import WatchedGroup
from pumphouse.dashboard.views.fleet import calmed, change_shown, group_shown, unreachable
from pumphouse.dashboard.views.ownership_history import Change, changes
from pumphouse.dashboard.views.rates import RateMeter
from pumphouse.errors import PumphouseError
from pumphouse.leases.model import Checkpoint, Group, Listing
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store
from pumphouse.processor.admin.overview import Overview, overview

ANSWER_S = 15.0  # what hub and store are given for one look
AGAIN_S = 2.0  # after a look that failed
# A checkpoint that did not move between two looks means nothing if they are seconds apart.
COMPARE_S = 30.0
CHANGES_MAX = 2000
LANES_MS = 15 * 60 * 1000  # how far back the lanes go


class GroupMonitor:
    """One consumer group, and what was seen of it."""

    def __init__(self, watched: WatchedGroup, key: str, clock: Clock, ca_file: str | None) -> None:
        self.group, self.key, self.clock, self.ca_file = watched, key, clock, ca_file
        self.shown = unreachable(key, watched.title, watched.hub, watched.group, "")
        self.shown["meaning"] = "it is being looked at for the first time"
        self.meter = RateMeter()
        self.changes: deque[tuple[int, Change]] = deque(maxlen=CHANGES_MAX)
        self.changed = 0  # how many changes there have been
        self._looks: deque[tuple[float, Overview]] = deque()
        self._before: tuple[float, Listing] | None = None

    async def run(self, look_s: float, updates: UpdateSignal) -> None:
        """Look until cancelled. What fails is shown, and tried again."""
        while True:
            try:
                await self._look_on(look_s, updates)
            except (PumphouseError, OSError, TimeoutError) as failed:
                self.failed(failed)
                updates.notify()
            await self.clock.sleep(AGAIN_S)

    async def _look_on(self, look_s: float, updates: UpdateSignal) -> None:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(ANSWER_S):
                client = await stack.enter_async_context(self._client())
                store = await stack.enter_async_context(open_store(self.group.store))
            while True:
                begun_s = self.clock.monotonic()
                async with asyncio.timeout(ANSWER_S):
                    await self.look(client, store)
                updates.notify()
                await self.clock.sleep(max(0.0, begun_s + look_s - self.clock.monotonic()))

    def _client(self) -> HubClient:
        retry = RetryOptions(attempts=1)
        watched = self.group
        return open_client(watched.connection, watched.hub, ca_file=self.ca_file, retry=retry)

    async def look(self, client: HubClient, store: CheckpointStore) -> None:
        """One look at everything, at once."""
        group = Group(client.namespace, client.hub, self.group.group)
        partitions, listing, marks = await asyncio.gather(
            all_partitions(client), store.list_ownership(group), store.list_checkpoints(group)
        )
        self.saw(client.hub, partitions, listing, marks)

    def saw(
        self,
        hub: str,
        partitions: list[PartitionProperties],
        listing: Listing,
        marks: list[Checkpoint],
    ) -> None:
        at_s, at_ms, lease_s = self.clock.monotonic(), now_ms(self.clock), self.group.lease_s
        before = self._looks[0][1] if self._looks and self._old_enough(at_s) else None
        found = overview(self.group.group, hub, partitions, listing, marks, lease_s, before)
        self._remember(at_s, found)
        self.meter.add(found, at_s, at_ms)
        self._compare(listing, at_s, at_ms)
        self.shown = group_shown(
            self.key,
            self.group.title,
            calmed(found),
            self.meter.rates(),
            self.meter.total(),
            lease_s,
        )

    def _old_enough(self, at_s: float) -> bool:
        return at_s - self._looks[0][0] >= COMPARE_S

    def _remember(self, at_s: float, found: Overview) -> None:
        self._looks.append((at_s, found))
        while len(self._looks) > 1 and at_s - self._looks[1][0] >= COMPARE_S:
            self._looks.popleft()

    def _compare(self, listing: Listing, at_s: float, at_ms: int) -> None:
        before_s, before = self._before or (at_s, Listing())
        took_s = at_s - before_s
        for change in changes(before, listing, self.group.lease_s, took_s, at_ms):
            self.changed += 1
            self.changes.append((self.changed, change))
        self._before = (at_s, listing)

    def failed(self, why: Exception) -> None:
        text = str(why) or type(why).__name__
        self.shown = {**self.shown, "trouble": text}

    # -- what a stream asks for -------------------------------------------------------------------

    def changes_after(self, number: int) -> list[dict[str, Any]]:
        oldest_ms = now_ms(self.clock) - LANES_MS
        return [
            change_shown(n, self.key, change)
            for n, change in self.changes
            if n > number and change.at_ms >= oldest_ms
        ]

    def owners_at_start(self) -> dict[str, str]:
        """Who owned what before the oldest change that is told."""
        owners: dict[str, str] = {}
        oldest_ms = now_ms(self.clock) - LANES_MS
        for _, change in self.changes:
            if change.at_ms < oldest_ms:
                owners[change.partition] = change.after
        return owners

    def hosts(self) -> list[dict[str, Any]] | None:
        """The processes of the group's fleet; None if there is none to control."""
        fleet = self.group.fleet
        if fleet is None:
            return None
        return [
            {
                "name": one.name,
                "pid": one.pid,
                "state": one.state,
                "since": one.since_ms,
                "said": one.said,
            }
            for one in fleet.hosts()
        ]


async def all_partitions(client: HubClient) -> list[PartitionProperties]:
    names = (await client.properties()).partitions
    return list(await asyncio.gather(*map(client.partition_properties, names)))


class HubRateMonitor:
    """How fast events are sent to a hub, from the ends of its partitions."""

    def __init__(self, connection: str, hub: str, clock: Clock, ca_file: str | None) -> None:
        self.connection, self.hub, self.clock, self.ca_file = connection, hub, clock, ca_file
        self.rate: float | None = None
        self.trouble = ""
        self._looks: deque[tuple[float, int]] = deque(maxlen=6)

    async def run(self, look_s: float) -> None:
        while True:
            try:
                async with self._client() as client:
                    while True:
                        async with asyncio.timeout(ANSWER_S):
                            self.saw(await all_partitions(client))
                        await self.clock.sleep(look_s)
            except (PumphouseError, OSError, TimeoutError) as failed:
                self.trouble = str(failed) or type(failed).__name__
                self.rate = None
            await self.clock.sleep(AGAIN_S)

    def _client(self) -> HubClient:
        retry = RetryOptions(attempts=1)
        return open_client(self.connection, self.hub, ca_file=self.ca_file, retry=retry)

    def saw(self, partitions: list[PartitionProperties]) -> None:
        self.trouble = ""
        total = sum(one.last_sequence + 1 for one in partitions)
        self._looks.append((self.clock.monotonic(), total))
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        with suppress(ZeroDivisionError):
            self.rate = max(0.0, (last - first) / (last_s - first_s))
