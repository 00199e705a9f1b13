"""LagPoller: reads a hub and a store at an interval, and keeps the series of the last poll.

    HubClient, ObservedStore -> LagPoller -> series -> meter -> Prometheus
                                ^^^^^^^^^ this module

It needs no consumer: rows and checkpoints are in the store, the newest events in the hub. If one of
the two fails, the series that need it are absent until it responds again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from pumphouse.client.base import HubClient, PartitionProperties
from pumphouse.clock import Clock, SystemClock, now_ms
from pumphouse.errors import PumphouseError
from pumphouse.lag.enqueued_times import Sample, Samples, lag_s_of, with_sample
from pumphouse.lag.observed_store import ObservedStore
from pumphouse.lag.opened import Opened
from pumphouse.lag.options import LagOptions
from pumphouse.lag.readings import (
    GroupRows,
    StoreReading,
    client_of,
    read_groups,
    read_partitions,
)
from pumphouse.lag.series import GroupLag, Labels, Series, group_series, partition_series
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.admin.overview import Overview, overview
from pumphouse.telemetry.definitions import Metric

T = TypeVar("T")

RESPONSE_S = 15.0  # deadline for all requests of a poll to the hub, and for those to the store
# As in `groups describe --watch`: consumers write checkpoints every few seconds.
COMPARE_S = 30.0
HUB, STORE = "hub", "store"


class LagPoller:
    """Polls until it is cancelled.

    After each attempt `report` gets "hub" or "store", and a sentence if it failed. `polled` gets
    the duration of each poll.
    """

    def __init__(
        self,
        options: LagOptions,
        report: Callable[[str, str | None], None] = lambda part, failure: None,
        polled: Callable[[float], None] = lambda seconds: None,
        clock: Clock | None = None,
    ) -> None:
        self.options, self.report, self.polled = options, report, polled
        self.clock: Clock = clock or SystemClock()
        self._hub: Opened[HubClient] = Opened(partial(client_of, options), RESPONSE_S)
        self._store = Opened(partial(ObservedStore, options.store), RESPONSE_S)
        self._series: Series = {}  # replaced as a whole: the thread of a scrape reads it
        self._samples: dict[str, Samples] = {}  # by partition
        self._earlier: dict[str, deque[tuple[float, Overview]]] = {}  # by group

    def observe(self, metric: Metric) -> Iterable[tuple[float, Labels]]:
        return self._series.get(metric.name, ())

    async def run(self) -> None:
        """Poll at the interval. A poll that takes longer skips the times that have passed."""
        try:
            while True:
                started_s = self.clock.monotonic()
                await self.poll()
                took_s = self.clock.monotonic() - started_s
                self.polled(took_s)
                await self.clock.sleep(pause_s(took_s, self.options.interval_s))
        finally:
            await self._hub.close()
            await self._store.close()

    async def poll(self) -> None:
        # The store first: a checkpoint that is read later could lie beyond the newest event.
        stored = await self._read_store()
        began_ms = now_ms(self.clock)
        partitions = await self._read_hub()
        groups = stored.groups if stored is not None else ()
        self._add_samples(partitions or [], groups, began_ms)
        namespace = self.options.namespace
        lags = [self._lag(each, partitions) for each in groups] if partitions else []
        self._earlier = {name: self._earlier[name] for name in (lag.overview.group for lag in lags)}
        self._series = partition_series(namespace, partitions or []) | group_series(namespace, lags)

    async def _read_store(self) -> StoreReading | None:
        read = partial(read_groups, options=self.options)
        stored = await self._attempt(STORE, self._store.use(read))
        if stored is not None:
            self.report(STORE, stored.failure)
        return stored

    async def _read_hub(self) -> list[PartitionProperties] | None:
        partitions = await self._attempt(HUB, self._hub.use(read_partitions))
        if partitions is not None:
            self.report(HUB, None)
        return partitions

    async def _attempt(self, part: str, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except TimeoutError:
            self.report(part, f"no response within {RESPONSE_S:g} s")
        except (PumphouseError, OSError) as error:
            self.report(part, str(error) or type(error).__name__)
        return None

    # -- what is compared with earlier polls ------------------------------------------------------

    def _add_samples(
        self, partitions: Sequence[PartitionProperties], groups: Sequence[GroupRows], began_ms: int
    ) -> None:
        """Add the newest events to the tables, which are kept while the hub does not respond."""
        if partitions:
            existing = {each.partition for each in partitions}
            self._samples = {name: self._samples[name] for name in self._samples.keys() & existing}
        for each in partitions:
            if not each.empty:
                sample = Sample(each.last_sequence, each.last_enqueued_ms, began_ms)
                needed = lowest_next(each, groups)
                samples = self._samples.get(each.partition, ())
                self._samples[each.partition] = with_sample(samples, sample, needed)

    def _lag(self, rows: GroupRows, partitions: Sequence[PartitionProperties]) -> GroupLag:
        at_s, at_ms, options = self.clock.monotonic(), now_ms(self.clock), self.options
        earlier = self._earlier.setdefault(rows.group, deque())
        while len(earlier) > 1 and at_s - earlier[1][0] >= COMPARE_S:
            earlier.popleft()
        before = earlier[0][1] if earlier and at_s - earlier[0][0] >= COMPARE_S else None
        current = overview(
            rows.group,
            options.hub,
            partitions,
            rows.listing,
            rows.checkpoints.values(),
            options.lease_s,
            before,
        )
        earlier.append((at_s, current))
        seconds = {
            each.partition: self._lag_s(each, rows.checkpoints.get(each.partition), at_ms)
            for each in partitions
        }
        return GroupLag(current, seconds)

    def _lag_s(
        self, properties: PartitionProperties, checkpoint: Checkpoint | None, at_ms: int
    ) -> float | None:
        following = next_sequence(properties, checkpoint)
        if properties.empty:
            return 0.0
        if following is None:
            return None
        samples = self._samples.get(properties.partition, ())
        return lag_s_of(following, properties.last_sequence, samples, time_of(checkpoint), at_ms)


def next_sequence(properties: PartitionProperties, checkpoint: Checkpoint | None) -> int | None:
    """The first stored event that is not handled; None if the checkpoint has only an offset."""
    if checkpoint is None or not checkpoint.has_position:
        return properties.first_sequence
    if checkpoint.sequence is not None:
        return max(properties.first_sequence, checkpoint.sequence + 1)
    at_end = checkpoint.offset == properties.last_offset
    return properties.last_sequence + 1 if at_end else None


def time_of(checkpoint: Checkpoint | None) -> tuple[int, int] | None:
    """Sequence number and enqueued time; official SDKs do not store the time."""
    if checkpoint is None or checkpoint.sequence is None or checkpoint.enqueued_ms is None:
        return None
    return checkpoint.sequence, checkpoint.enqueued_ms


def lowest_next(properties: PartitionProperties, groups: Sequence[GroupRows]) -> int:
    """The lowest event that a group needs; the oldest one if no group could be read."""
    stored = (rows.checkpoints.get(properties.partition) for rows in groups)
    following = [next_sequence(properties, checkpoint) for checkpoint in stored]
    oldest = properties.first_sequence
    return min((oldest if each is None else each for each in following), default=oldest)


def pause_s(took_s: float, interval_s: float) -> float:
    """Until the next multiple of the interval after the start of a poll."""
    return interval_s - took_s % interval_s
