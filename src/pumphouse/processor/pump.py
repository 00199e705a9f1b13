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
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import start_position
from pumphouse.processor.term import OwnershipTerm, StopReason

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
    leases: LeaseTable
    report: Callable[[str | None, Exception], None]


class Pump:
    """Moves the events of one partition to the code that serves it."""

    def __init__(self, house: House, term: OwnershipTerm) -> None:
        self.house, self.term = house, term
        self.client: PartitionClient | None = None

    def __repr__(self) -> str:
        return f"<Pump {self.term.partition} | {self.term.reason or 'runs'}>"

    async def run(self, serve: Serve, paused: Callable[[], bool] = lambda: False) -> None:
        """Serve the partition until it ends here; raises what the serving code raises."""
        writer, checkpoint = await self._stamp()
        feed = self._feed(checkpoint, writer)
        checkpoints = Checkpoints(
            writer,
            self.house.options,
            self.house.clock,
            lambda failed: self.house.report(self.term.partition, failed),
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
            partition = self.term.partition
            raise StoreError(f"the checkpoint of partition {partition} was not stamped") from None

    async def _stamp_as_owner(self) -> tuple[CheckpointWriter, Checkpoint]:
        await self.term.settle_epoch()
        for attempt in range(STAMPS_MAX):
            writer = self._writer()
            try:
                return writer, await writer.stamp()
            except OwnershipLost as fenced:
                # Our row may know less than the checkpoint: an official SDK rewrote it without
                # the epoch. Whose it is the row decides, and only its owner can raise it.
                if attempt == STAMPS_MAX - 1 or not self.term.binds:
                    raise
                await self.term.raise_epoch(fenced.epoch)
        raise AssertionError("unreachable")

    def _writer(self) -> CheckpointWriter:
        house, term = self.house, self.term
        return CheckpointWriter(
            house.store, house.group, term.partition, term.epoch, lambda: term.binds
        )

    def _feed(self, checkpoint: Checkpoint, writer: CheckpointWriter) -> Feed:
        house, partition = self.house, self.term.partition

        async def settled() -> int:
            await self.term.settle_epoch()
            if writer.stamped_with != self.term.epoch:
                await writer.restamp(self.term.epoch)
            return self.term.epoch

        async def raised(above: int) -> int:
            await self.term.raise_epoch(above)
            return await settled()

        reader = ReaderOptions(
            partition,
            house.group.name,
            start_position(checkpoint, house.options.start_of(partition)),
            self.term.epoch,
            house.options.prefetch,
            house.options.prefetch_bytes,
            house.host,
        )
        return Feed(house.client, reader, house.options, settled, raised)

    def _open(self, feed: Feed, checkpoints: Checkpoints, found: Checkpoint) -> PartitionClient:
        house = self.house
        return PartitionClient(
            self.term,
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
        if not self.term.binds:
            return
        try:
            await checkpoints.flush()
        except OwnershipLost:
            pass  # somebody has moved it by hand; whose the partition is, the row tells
        except PumphouseError as failed:
            self.house.report(self.term.partition, failed)
