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
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from pumphouse.client.base import HubClient, PartitionProperties, ReaderOptions
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AuthError, ConnectionFailed, HubNotFound, PumphouseError
from pumphouse.events import LATEST, Position
from pumphouse.logs import line
from pumphouse.spark.advice import no_response_error, no_such_group_error, with_advice
from pumphouse.spark.driver.loop_thread import LoopThread
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import HubSnapshot

log = logging.getLogger("pumphouse.spark")

T = TypeVar("T")
REQUESTS_MAX = 32  # partitions whose properties are requested at the same time
UNRESPONSIVE_S = 10.0  # the wait for one partition under `skip`, and the pause before the next
CLOSE_S = 10.0


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
        self.epoch = epoch
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

    # -- called from other threads ----------------------------------------------------------------

    def refresh(self) -> HubSnapshot:
        """What the hub holds now."""
        if self._idle and self._snapshot is not None:
            self._pause(self._refreshed_s + self.options.refresh_s - self.clock.monotonic())
        snapshot = self.wait(self._read())
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
        return self.wait(self.find_sequence(partition, position))

    def close(self) -> None:
        if self._thread.is_open:
            self._thread.close(self._disconnect())

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop, no longer than `operationTimeout`."""
        identity = self.options.identity
        try:
            return self._thread.run(work, identity.operation_timeout_s)
        except TimeoutError:
            raise no_response_error(identity) from None
        except PumphouseError as failed:
            raise with_advice(failed, identity) from failed

    # -- in the event loop ------------------------------------------------------------------------

    async def _connect(self) -> HubClient:
        if self._client is None:
            client = open_hub(self.options.identity)
            await client.__aenter__()
            self._client = client
        return self._client

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        try:
            if client is not None:
                await client.__aexit__(None, None, None)
        finally:
            # A request that timed out may still be waiting for its response.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

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

        names = await self._partition_names(client)
        states = dict(zip(names, await asyncio.gather(*map(read, names)), strict=True))
        failures = {
            name: state for name, state in states.items() if isinstance(state, PumphouseError)
        }
        # If no partition responds, the hub itself is unavailable.
        if failures and len(failures) == len(states):
            raise next(iter(failures.values()))
        available = {
            name: state for name, state in states.items() if isinstance(state, PartitionProperties)
        }
        return HubSnapshot(available, tuple(failures))

    async def _check_group(self, client: HubClient) -> None:
        """Raise if the consumer group does not exist, before a task fails for it.

        A reader without an epoch evicts no other. If other readers make the hub refuse it, the
        group exists; if the partition is unavailable, the tasks report it.
        """
        partition = (await self._partition_names(client))[0]
        options = ReaderOptions(partition, self.options.group, LATEST, prefetch=1)
        try:
            async with asyncio.timeout(UNRESPONSIVE_S):
                await (await client.reader(options)).close()
        except HubNotFound as failed:
            group, hub = self.options.group, self.options.identity.hub
            raise no_such_group_error(group, hub, failed) from None
        except AuthError:
            raise
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

    async def find_sequence(
        self, partition: str, position: Position, epoch: int | None = None
    ) -> int:
        """As `resolve`, in the event loop; `epoch` is that of the reader."""
        client = await self._connect()
        state = await client.partition_properties(partition)
        if state.ends_before(position):
            return state.last_sequence + 1
        options = ReaderOptions(
            partition, self.options.group, position, epoch=epoch or self.epoch, prefetch=1
        )
        reader = await client.reader(options)
        try:
            # An event that exists arrives at once; if none arrives, all lie before the position.
            events = await reader.receive(1, self.options.reading.receiver_timeout_s)
        finally:
            await reader.close()
        if not events or events[0].sequence is None:
            return state.last_sequence + 1
        return events[0].sequence
