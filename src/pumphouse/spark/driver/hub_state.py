"""What the hub holds, for a planner that asks a hundred times a second.

Spark's callbacks are plain functions, and our clients are asyncio: a thread with an event loop
holds the one connection of the driver. `refresh` always asks the hub, so that `processAllAvailable`
sees every event. While nothing new arrives it first waits until `metadataRefreshInterval` has
passed, so that an idle query does not load the hub.

    Planner <- HubState.refresh, HubState.resolve <- HubClient
               ^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from random import Random
from secrets import token_hex
from typing import Any, TypeVar

from pumphouse.client.base import HubClient, PartitionProperties, Reader, ReaderOptions
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AuthError, ConnectionFailed, HubNotFound, PumphouseError, ReaderEvicted
from pumphouse.events import LATEST, Event, Position
from pumphouse.logs import line
from pumphouse.spark.advice import no_response_error, no_such_group_error, with_advice
from pumphouse.spark.driver.epochs import epoch_above
from pumphouse.spark.driver.loop_thread import LoopThread
from pumphouse.spark.identity import open_hub
from pumphouse.spark.offsets import order
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.outages import WAITS, Outage, pause_s
from pumphouse.spark.planner import HubSnapshot
from pumphouse.spark.read.siblings import probe_name

log = logging.getLogger("pumphouse.spark")

T = TypeVar("T")
RNG = Random()
REQUESTS_MAX = 32  # partitions whose properties are requested at the same time
# With unavailablePartitions=skip: the time-out for one partition, and the pause before its retry.
UNRESPONSIVE_S = 10.0
FROZEN_S = 60.0  # the pause before a partition that returned no events is tried again
PROBE = 50  # events that are read to learn their size
NO_EPOCHS: Mapping[str, int] = {}
CLOSE_S = 10.0


def mean_event_bytes(probes: Mapping[str, Sequence[Event]], snapshot: HubSnapshot) -> float | None:
    """The mean size of events: of some that were read, or of all by their offsets if it is larger.

    Offsets are positions in bytes, except in namespaces with geo-replication.
    """
    sizes = [len(event.body) + text_bytes(event) for events in probes.values() for event in events]
    if not sizes:
        return None
    by_offset = [
        bytes_by_offset(events[0], snapshot.partitions[name])
        for name, events in probes.items()
        if events and name in snapshot.partitions
    ]
    return max(sum(sizes) / len(sizes), *by_offset, 0.0)


def bytes_by_offset(first: Event, state: PartitionProperties) -> float:
    """The mean size from this event to the newest one; 0 if it is not known."""
    offset, count = first.offset or "", state.last_sequence - (first.sequence or 0)
    if count < 1 or not (offset.isdecimal() and state.last_offset.isdecimal()):
        return 0.0
    return (int(state.last_offset) - int(offset)) / count


def text_bytes(event: Event) -> int:
    """The approximate size of the properties of an event."""
    return sum(len(str(name)) + len(str(value)) for name, value in event.properties.items())


class HubAway(Exception):
    """The hub cannot be reached now; the query waits for it."""


class HubState:
    """The state of one hub, for code that cannot await."""

    def __init__(
        self,
        options: SourceOptions,
        *,
        epoch: int | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        self.epoch = epoch  # of the readers; raised if an older query has a higher one
        self.reader_name = probe_name(token_hex(4))
        self.clock: Clock = clock or SystemClock()
        self.sleep = sleep
        self._thread = LoopThread("hub state", CLOSE_S)
        self._client: HubClient | None = None
        self._partitions: tuple[str, ...] = ()
        self._discovered_s = float("-inf")
        self._snapshot: HubSnapshot | None = None
        self._refreshed_s = float("-inf")
        self._idle = False  # the last refresh found nothing new
        self._group_checked = False
        self._retry_s: dict[str, float] = {}  # when to retry a partition that did not respond
        self.outage = Outage(options.outage_s)

    # -- called from other threads ----------------------------------------------------------------

    def refresh(self, *, wait_max_s: float | None = None) -> HubSnapshot:
        """What the hub holds now.

        During an outage this waits up to `outageTimeout`, or raises HubAway after `wait_max_s`.
        """
        if self._idle and self._snapshot is not None:
            self._pause(self._refreshed_s + self.options.refresh_s - self.clock.monotonic())
        snapshot = self.wait_patiently(self._read, wait_max_s)
        self._idle = snapshot == self._snapshot
        self._snapshot, self._refreshed_s = snapshot, self.clock.monotonic()
        return snapshot

    def snapshot(self) -> HubSnapshot:
        """What the hub held at the last refresh."""
        return self._snapshot if self._snapshot is not None else self.refresh()

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self.sleep(seconds)

    def resolve(self, partition: str, position: Position) -> int:
        """The sequence number of the first event at a position; the end if none follows."""
        return self.wait_patiently(lambda: self.find_sequence(partition, position))

    def close(self) -> None:
        if self._thread.is_open:
            self._thread.close(self._disconnect())

    def wait_patiently(
        self, work: Callable[[], Coroutine[Any, Any, T]], wait_max_s: float | None = None
    ) -> T:
        """As `wait`, but `work` is tried again while the hub cannot be reached."""
        until_s = None if wait_max_s is None else self.clock.monotonic() + wait_max_s
        while True:
            try:
                value = self.wait(work())
            except PumphouseError as failed:
                now_s = self.clock.monotonic()
                if not self.outage.failed(failed, now_s):
                    raise
                self._log_outage(failed)
                if until_s is not None and now_s >= until_s:
                    raise HubAway from failed
                self.sleep(pause_s(self.outage.failures, RNG))
            else:
                self._log_recovery()
                self.outage.succeeded()
                return value

    def _log_outage(self, failed: PumphouseError) -> None:
        if self.outage.is_logged():
            log.warning(
                "%s",
                line(
                    "hub_unreachable", hub=self.options.identity.hub, group=self.options.group,
                    error=failed, count=self.outage.failures, todo=WAITS,
                ),
            )  # fmt: skip

    def _log_recovery(self) -> None:
        if self.outage.failures:
            after_s = self.clock.monotonic() - self.outage.since_s
            hub, count = self.options.identity.hub, self.outage.failures
            log.warning("%s", line("hub_reached", hub=hub, failures=count, after_s=after_s))

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop, no longer than `operationTimeout`."""
        identity = self.options.identity
        try:
            return self._thread.run(work, identity.operation_timeout_s)
        except TimeoutError:
            raise no_response_error(identity) from None
        except PumphouseError as failed:
            raise with_advice(failed, identity) from failed

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` in the event loop, without waiting for it."""
        return asyncio.run_coroutine_threadsafe(work, self._thread.loop)

    # -- in the event loop ------------------------------------------------------------------------

    async def _connect(self) -> HubClient:
        if self._client is None:
            client = open_hub(self.options.identity)
            await client.__aenter__()
            self._client = client
        return self._client

    async def open_reader(self, options: ReaderOptions) -> Reader:
        return await (await self._connect()).reader(options)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.__aexit__(None, None, None)

    async def _read(self) -> HubSnapshot:
        client = await self._connect()
        if not self._group_checked:
            await self._check_group(client)
        slots = asyncio.Semaphore(REQUESTS_MAX)

        async def read(partition: str) -> PartitionProperties | PumphouseError:
            async with slots:
                if self.options.skip_unavailable:
                    return await self._read_or_skip(client, partition)
                return await client.partition_properties(partition)

        # The creation time shows whether the hub was re-created since the last request.
        names = await self._partition_names(client)
        hub, answers = await asyncio.gather(client.properties(), asyncio.gather(*map(read, names)))
        states = dict(zip(names, answers, strict=True))
        failures = {
            name: state for name, state in states.items() if isinstance(state, PumphouseError)
        }
        # If no partition responds, the hub itself is unavailable.
        if failures and len(failures) == len(states):
            raise next(iter(failures.values()))
        available = {
            name: state for name, state in states.items() if isinstance(state, PartitionProperties)
        }
        return HubSnapshot(available, tuple(failures), hub.created_ms)

    async def _check_group(self, client: HubClient) -> None:
        """Raise if the consumer group does not exist, before a task fails because of it.

        A reader without an epoch evicts no other. If other readers make the hub refuse it, the
        group exists; if the partition is unavailable, the tasks report it. A reader with an epoch
        is of an older query: its guard reads the first partition.
        """
        names = await self._partition_names(client)
        read = [name for name in names if name in self.options.partitions] or names
        partition = min(read, key=order)
        options = ReaderOptions(partition, self.options.group, LATEST, prefetch=1)
        try:
            async with asyncio.timeout(UNRESPONSIVE_S):
                await (await client.reader(options)).close()
        except HubNotFound as failed:
            group, hub = self.options.group, self.options.identity.hub
            raise no_such_group_error(group, hub, failed) from None
        except AuthError:
            raise
        except ReaderEvicted as refused:
            if self.epoch is not None:
                self.epoch = epoch_above(self.epoch, refused.epoch)
        except (PumphouseError, TimeoutError) as failed:
            log.debug("%s", line("group_not_checked", group=self.options.group, error=failed))
        self._group_checked = True

    async def _read_or_skip(
        self, client: HubClient, partition: str
    ) -> PartitionProperties | PumphouseError:
        """The state of a partition, or an error: one that does not respond delays no other."""
        if self._retry_s.get(partition, 0.0) > self.clock.monotonic():
            return ConnectionFailed(
                f"partition {partition} did not respond; it is retried after {UNRESPONSIVE_S:g} s"
            )
        try:
            async with asyncio.timeout(UNRESPONSIVE_S):
                state = await client.partition_properties(partition)
        except (PumphouseError, TimeoutError) as failed:
            error = str(failed) or "no response"
            log.warning(
                "%s",
                line(
                    "partition_skipped", partition=partition, error=error,
                    todo="check the hub; the partition is read when it responds again",
                ),
            )  # fmt: skip
            self._retry_s[partition] = self.clock.monotonic() + UNRESPONSIVE_S
            return ConnectionFailed(f"partition {partition} does not respond: {error}")
        self._retry_s.pop(partition, None)
        return state

    async def _partition_names(self, client: HubClient) -> tuple[str, ...]:
        """The partitions of the hub; listed again after `discovery_s`, since some may be added."""
        now_s = self.clock.monotonic()
        stale = self.options.discovery and now_s - self._discovered_s > self.options.discovery_s
        if not self._partitions or stale:
            self._partitions = (await client.properties()).partitions
            self._discovered_s = now_s
        return self._partitions

    # -- reading a few events ---------------------------------------------------------------------

    def event_bytes(
        self, starts: Mapping[str, int], epochs: Mapping[str, int] = NO_EPOCHS
    ) -> float | None:
        """The mean size of the events from these positions on; None if there are none."""

        async def probe() -> dict[str, list[Event]]:
            names = sorted(starts)[:REQUESTS_MAX]
            reads = (self.first_events(each, starts[each], epochs.get(each)) for each in names)
            return dict(zip(names, await asyncio.gather(*reads), strict=True))

        events = self.wait_patiently(probe)
        return mean_event_bytes(events, self.snapshot())

    async def first_events(self, partition: str, start: int, epoch: int | None) -> list[Event]:
        """Some events from a position on; none if the partition does not return any in time."""
        position = Position("sequence", str(start), inclusive=True)
        reader = await self.open_reader(self._reader_options(partition, position, epoch, PROBE))
        try:
            return await reader.receive(PROBE, UNRESPONSIVE_S)
        finally:
            await reader.close()

    def _reader_options(
        self, partition: str, position: Position, epoch: int | None, prefetch: int
    ) -> ReaderOptions:
        return ReaderOptions(
            partition,
            self.options.group,
            position,
            epoch=epoch or self.epoch,
            prefetch=prefetch,
            name=self.reader_name,
        )

    def without_frozen(self, snapshot: HubSnapshot, starts: Mapping[str, int]) -> HubSnapshot:
        """With unavailablePartitions=skip: the partitions that return their next event.

        A partition may answer requests and return no events. If a batch with it were planned, its
        task would fail, and so would every repetition.
        """
        if not self.options.skip_unavailable:
            return snapshot
        waiting = {
            name: starts[name]
            for name, state in snapshot.partitions.items()
            if name in starts and starts[name] <= state.last_sequence and not state.empty
        }
        frozen = self.wait_patiently(lambda: self._find_frozen(waiting))
        partitions = {
            name: state for name, state in snapshot.partitions.items() if name not in frozen
        }
        self._snapshot = replace(
            snapshot, partitions=partitions, unavailable=(*snapshot.unavailable, *frozen)
        )
        return self._snapshot

    async def _find_frozen(self, starts: Mapping[str, int]) -> tuple[str, ...]:
        names = sorted(starts)
        returned = await asyncio.gather(*(self._returns(name, starts[name]) for name in names))
        frozen = [
            name for name, is_returned in zip(names, returned, strict=True) if not is_returned
        ]
        for name in frozen:
            self._retry_s[name] = self.clock.monotonic() + FROZEN_S
            log.warning(
                "%s",
                line(
                    "partition_skipped", partition=name, error="it returns no events",
                    todo="check the hub; the partition is read when it returns events again",
                ),
            )  # fmt: skip
        return tuple(frozen)

    async def _returns(self, partition: str, start: int) -> bool:
        try:
            return bool(await self.first_events(partition, start, None))
        except ReaderEvicted:
            return True  # another reader has it, and so it is not frozen
        except PumphouseError:
            return False

    async def find_sequence(
        self, partition: str, position: Position, epoch: int | None = None
    ) -> int:
        """As `resolve`, but called in the event loop. `epoch` is the epoch of the reader."""
        client = await self._connect()
        state = await client.partition_properties(partition)
        if state.ends_before(position):
            return state.last_sequence + 1
        reader = await client.reader(self._reader_options(partition, position, epoch, 1))
        try:
            # An event that exists arrives at once. If none arrives, every event is before the
            # position.
            events = await reader.receive(1, self.options.reading.receiver_timeout_s)
        finally:
            await reader.close()
        if not events or events[0].sequence is None:
            return state.last_sequence + 1
        return events[0].sequence
