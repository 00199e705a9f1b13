"""What the hub holds, for a planner that is asked a hundred times a second.

Spark's callbacks are plain functions, and our clients are asyncio: a thread with a loop of its own
holds the one connection of the driver. A fresh look is always fresh, so that `processAllAvailable`
means what it says; while nothing new comes, the answer is held back until `metadataRefreshInterval`
has passed since the last one, so that an idle query does not ask the hub without end.

    Planner <- Outlook.view, Outlook.resolve <- HubClient
               ^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from pumphouse.client.base import HubClient, PartitionProperties, ReaderOptions
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AuthError, ConnectionFailed, HubNotFound, PumphouseError
from pumphouse.events import LATEST, Position
from pumphouse.spark.advice import no_response_error, no_such_group_error, with_advice
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import SourceOptions
from pumphouse.spark.planner import HubSnapshot

log = logging.getLogger("pumphouse.spark")

T = TypeVar("T")
ASKED_AT_ONCE = 32  # partitions whose properties are asked for together
SILENT_S = 10.0  # how long a partition may think, if others need not wait for it; and is left alone
CLOSE_S = 10.0


class HubState:
    """A look at one hub, from code that cannot wait in asyncio."""

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
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="hub outlook", daemon=True
        )
        self._thread.start()
        self._client: HubClient | None = None
        self._names: tuple[str, ...] = ()
        self._named_s = float("-inf")
        self._view: HubSnapshot | None = None
        self._seen_s = float("-inf")
        self._idle = False  # whether the last look found nothing new
        self._group_found = False
        self._silent: dict[str, float] = {}  # partitions that did not answer: when to ask again

    # -- from plain code --------------------------------------------------------------------------

    def fresh(self) -> HubSnapshot:
        """What the hub holds now."""
        if self._idle and self._view is not None:
            self.pause(self._seen_s + self.options.refresh_s - self.clock.monotonic())
        seen = self.wait(self.look())
        self._idle = seen == self._view
        self._view, self._seen_s = seen, self.clock.monotonic()
        return seen

    def view(self) -> HubSnapshot:
        """What the hub held when it was last looked at."""
        return self._view if self._view is not None else self.fresh()

    def pause(self, seconds: float) -> None:
        if seconds > 0:
            self.sleep(seconds)

    def resolve(self, partition: str, position: Position) -> int:
        """The sequence number of the first event at a position; the end if there is none."""
        return self.wait(self.find(partition, position))

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        with suppress(TimeoutError, PumphouseError):  # the connection dies with the process
            asyncio.run_coroutine_threadsafe(self.hang_up(), self._loop).result(CLOSE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it in the loop, and wait for it no longer than `operationTimeout`."""
        identity = self.options.identity
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(identity.operation_timeout_s)
        except TimeoutError:
            future.cancel()
            raise no_response_error(identity) from None
        except PumphouseError as failed:
            raise with_advice(failed, identity) from failed

    # -- in the loop ------------------------------------------------------------------------------

    async def client(self) -> HubClient:
        if self._client is None:
            client = open_hub(self.options.identity)
            await client.__aenter__()
            self._client = client
        return self._client

    async def hang_up(self) -> None:
        client, self._client = self._client, None
        try:
            if client is not None:
                await client.__aexit__(None, None, None)
        finally:
            # Of what was given up something may still be under way: a call that nobody answers.
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for one in others:
                one.cancel()
            await asyncio.gather(*others, return_exceptions=True)

    async def look(self) -> HubSnapshot:
        client = await self.client()
        if not self._group_found:
            await self.find_group(client)
        gate = asyncio.Semaphore(ASKED_AT_ONCE)

        async def ask(partition: str) -> PartitionProperties | PumphouseError:
            async with gate:
                if self.options.skip_unavailable:
                    return await self.ask_briefly(client, partition)
                return await client.partition_properties(partition)

        names = await self.names(client)
        found = dict(zip(names, await asyncio.gather(*map(ask, names)), strict=True))
        silent = {one: why for one, why in found.items() if isinstance(why, PumphouseError)}
        # If none answers it is not the partitions that are unavailable.
        if silent and len(silent) == len(found):
            raise next(iter(silent.values()))
        there = {one: it for one, it in found.items() if isinstance(it, PartitionProperties)}
        return HubSnapshot(there, tuple(silent))

    async def find_group(self, client: HubClient) -> None:
        """Whether there is such a consumer group: better said now than by the first task.

        A reader without an epoch takes nothing away from others. If it is refused because of them,
        there is one; if a partition is not to be had, another look will tell.
        """
        partition = (await self.names(client))[0]
        place = ReaderOptions(partition, self.options.group, LATEST, prefetch=1)
        try:
            async with asyncio.timeout(SILENT_S):
                await (await client.reader(place)).close()
        except HubNotFound as failed:
            raise no_such_group_error(
                self.options.group, self.options.identity.hub, failed
            ) from None
        except AuthError:
            raise
        except (PumphouseError, TimeoutError) as failed:
            log.debug("group=%s not looked at: %s", self.options.group, failed)
        self._group_found = True

    async def ask_briefly(
        self, client: HubClient, partition: str
    ) -> PartitionProperties | PumphouseError:
        """What a partition holds, or why that is not known: one that is silent holds nobody up."""
        if self._silent.get(partition, 0.0) > self.clock.monotonic():
            return ConnectionFailed(f"partition {partition} did not answer a moment ago")
        try:
            async with asyncio.timeout(SILENT_S):
                found = await client.partition_properties(partition)
        except (PumphouseError, TimeoutError) as failed:
            log.warning("skip partition=%s: %s", partition, str(failed) or "no answer")
            self._silent[partition] = self.clock.monotonic() + SILENT_S
            return ConnectionFailed(f"partition {partition} does not answer: {failed}")
        self._silent.pop(partition, None)
        return found

    async def names(self, client: HubClient) -> tuple[str, ...]:
        """The partitions of the hub; looked up again from time to time, since there may be more."""
        now_s = self.clock.monotonic()
        stale = self.options.discovery and now_s - self._named_s > self.options.discovery_s
        if not self._names or stale:
            self._names = (await client.properties()).partitions
            self._named_s = now_s
        return self._names

    async def find(self, partition: str, position: Position, epoch: int | None = None) -> int:
        client = await self.client()
        found = await client.partition_properties(partition)
        if found.ends_before(position):
            return found.last_sequence + 1
        options = ReaderOptions(
            partition, self.options.group, position, epoch=epoch or self.epoch, prefetch=1
        )
        reader = await client.reader(options)
        try:
            # An event that is there comes at once; if none comes, all lie before the position.
            events = await reader.receive(1, self.options.reading.receiver_timeout_s)
        finally:
            await reader.close()
        if not events or events[0].sequence is None:
            return found.last_sequence + 1
        return events[0].sequence
