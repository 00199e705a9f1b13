"""The task that serves one partition while we own it.

    engine -> stamp the checkpoint -> choose the position -> serve -> write what is pending
              ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

The stamp comes first: once it is written, an owner before us can no longer move the checkpoint, so
the position read with it is final, and it is settled before the first event is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost, PumphouseError, StoreError
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint, Group
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.checkpointing import Checkpoints
from pumphouse.processor.feed import Feed
from pumphouse.processor.lease_table import Holdings
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import start_position
from pumphouse.processor.term import StopReason, Tenure

CLOSE_S = 5.0  # to leave a partition politely; the next owner's epoch does not wait for it
STAMPS_MAX = 3

Serve = Callable[[PartitionClient], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class House:
    """What all pumps of a host share."""

    client: HubClient
    store: CheckpointStore
    group: Group
    host: str
    options: ProcessorOptions
    clock: Clock
    rng: Random
    holdings: Holdings
    report: Callable[[str | None, Exception], None]


class Pump:
    """Moves the events of one partition to the code that serves it."""

    def __init__(self, house: House, tenure: Tenure) -> None:
        self.house, self.tenure = house, tenure
        self.client: PartitionClient | None = None

    def __repr__(self) -> str:
        return f"<Pump {self.tenure.partition} | {self.tenure.reason or 'runs'}>"

    async def run(self, serve: Serve, paused: Callable[[], bool] = lambda: False) -> None:
        """Serve the partition until it ends here; raises what the serving code raises."""
        writer, checkpoint = await self._stamp()
        feed = self._feed(checkpoint, writer)
        checkpoints = Checkpoints(
            writer,
            self.house.options,
            self.house.clock,
            lambda failed: self.house.report(self.tenure.partition, failed),
        )
        self.client = self._open(feed, checkpoints, checkpoint)
        if paused():  # from here on whoever pauses or resumes finds the client
            self.client.pause()
        try:
            await self._serve(serve, self.client, checkpoints)
        finally:
            self.client.end(StopReason.ERROR)
            with suppress(TimeoutError, PumphouseError):
                async with asyncio.timeout(CLOSE_S):
                    await feed.close()

    async def _serve(self, serve: Serve, client: PartitionClient, checkpoints: Checkpoints) -> None:
        """What was handled before the serving code raised is handled all the same."""
        try:
            await serve(client)
        except Exception:
            await self._finish(checkpoints)
            raise
        await self._finish(checkpoints)

    async def _stamp(self) -> tuple[CheckpointWriter, Checkpoint]:
        """Fence earlier owners off, within a deadline; the checkpoint as it then is."""
        try:
            async with asyncio.timeout(STAMPS_MAX * self.house.options.store_s):
                return await self._stamp_as_owner()
        except TimeoutError:
            partition = self.tenure.partition
            raise StoreError(f"the checkpoint of partition {partition} was not stamped") from None

    async def _stamp_as_owner(self) -> tuple[CheckpointWriter, Checkpoint]:
        await self.tenure.settle_epoch()
        for attempt in range(STAMPS_MAX):
            writer = self._writer()
            try:
                return writer, await writer.stamp()
            except OwnershipLost as fenced:
                # Our row may know less than the checkpoint: an official SDK rewrote it without
                # the epoch. Whose it is the row decides, and only its owner can raise it.
                if attempt == STAMPS_MAX - 1 or not self.tenure.binds:
                    raise
                await self.tenure.raise_epoch(fenced.epoch)
        raise AssertionError("unreachable")

    def _writer(self) -> CheckpointWriter:
        house, tenure = self.house, self.tenure
        return CheckpointWriter(
            house.store, house.group, tenure.partition, tenure.epoch, lambda: tenure.binds
        )

    def _feed(self, checkpoint: Checkpoint, writer: CheckpointWriter) -> Feed:
        house, partition = self.house, self.tenure.partition

        async def settled() -> int:
            await self.tenure.settle_epoch()
            if writer.stamped_with != self.tenure.epoch:
                await writer.restamp(self.tenure.epoch)
            return self.tenure.epoch

        async def raised(above: int) -> int:
            await self.tenure.raise_epoch(above)
            return await settled()

        reader = ReaderOptions(
            partition,
            house.group.name,
            start_position(checkpoint, house.options.start_of(partition)),
            self.tenure.epoch,
            house.options.prefetch,
            house.options.prefetch_bytes,
            house.host,
        )
        return Feed(house.client, reader, house.options, settled, raised)

    def _open(self, feed: Feed, checkpoints: Checkpoints, found: Checkpoint) -> PartitionClient:
        house = self.house
        return PartitionClient(
            self.tenure,
            feed,
            checkpoints,
            house.options,
            house.clock,
            house.rng,
            house.report,
            found,
        )

    async def _finish(self, checkpoints: Checkpoints) -> None:
        """Write what is pending, unless it is not ours to write any more."""
        if not self.tenure.binds:
            return
        try:
            await checkpoints.flush()
        except OwnershipLost:
            pass  # somebody has moved it by hand; whose the partition is, the row tells
        except PumphouseError as failed:
            self.house.report(self.tenure.partition, failed)
