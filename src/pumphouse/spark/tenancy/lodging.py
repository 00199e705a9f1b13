"""One stay of a query at a partition: from its claim until it has been left in good order.

The engine of the processors calls `stay` as it would call a handler. Nothing is read here: tasks of
Spark do that, in other processes. A stay knows how far batches were planned, waits until Spark has
committed them, writes the checkpoint, and only then lets the engine hand the partition over.

    engine -> Lodging.stay -> (planned, committed) -> checkpoint -> engine hands it over
              ^^^^^^^^^^^^ this module

Everything here happens in the loop of the tenant.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from pumphouse.errors import StoreError
from pumphouse.events import Event
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import StopReason
from pumphouse.spark.lag.known_positions import KnownPosition

log = logging.getLogger("pumphouse.spark")

CLEAN = (StopReason.HAND_OFF, StopReason.SHUTDOWN)
AGAIN_S = 1.0  # before a checkpoint is tried again that the store did not take


class Lodging:
    """A partition that is ours to plan."""

    def __init__(self, client: PartitionClient, *, checkpoints: bool = True) -> None:
        self.client = client
        self.position: int | None = None  # the next event that nobody has planned yet
        self.checkpoints = checkpoints
        self._busy = False  # a batch is being planned, or its commit has not been heard of
        self._pending: tuple[KnownPosition, int] | None = None  # handled, but not in the checkpoint
        self._writing = False
        self._closing = False  # no commit will be heard of any more
        self._woken = asyncio.Event()

    def __repr__(self) -> str:
        state = "leaves" if self.leaving else "stays"
        return f"<Lodging {self.partition} epoch {self.epoch} at {self.position} | {state}>"

    @property
    def partition(self) -> str:
        return self.client.id

    @property
    def epoch(self) -> int:
        return self.client.epoch

    @property
    def live(self) -> bool:
        """Whether we may still act as its owner."""
        return self.client.live

    @property
    def leaving(self) -> bool:
        """Whether nothing more of it may be planned."""
        return self.client.reason is not None or not self.live

    # -- what the planner says --------------------------------------------------------------------

    def plan(self) -> None:
        """A batch is being planned: until it is committed or dropped, it is not handed over."""
        self._busy = True

    def drop(self) -> None:
        """There is no batch of it under way."""
        self._busy = False
        self._woken.set()

    def handled(self, mark: KnownPosition | None, events: int) -> None:
        """Spark has committed its batch, of which this event was the last."""
        if mark is not None and self.checkpoints:
            self._pending = (mark, events + (self._pending[1] if self._pending else 0))
        self.drop()

    def note(self, before: KnownPosition) -> None:
        """Its place is to be written though nothing of it was handled yet."""
        self._pending = self._pending or (before, 0)
        self._woken.set()

    @property
    def unwritten(self) -> bool:
        """Whether something is handled that is not in the checkpoint, and we may still write it."""
        return self.live and (self._pending is not None or self._writing)

    def close(self) -> None:
        """Spark will say nothing more."""
        self._closing = True
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    # -- what the engine calls --------------------------------------------------------------------

    async def stay(self) -> None:
        """Until the partition ends here, and everything that was handled is in the checkpoint."""
        watching = asyncio.ensure_future(self._watch())
        try:
            await self._until_done()
        finally:
            watching.cancel()

    async def _watch(self) -> None:
        await self.client.wait_until_stopping()
        self._woken.set()

    async def _until_done(self) -> None:
        while not self._is_done():
            await self._woken.wait()
            self._woken.clear()
            if self._pending is not None and self.live:
                await self._write()

    def _is_done(self) -> bool:
        if self.client.reason is None:
            return False
        if self.client.reason not in CLEAN or not self.live:
            return True
        return self._pending is None and (self._closing or not self._busy)

    async def _write(self) -> None:
        """Write the checkpoint. A store that is away is asked again, for as long as we may."""
        assert self._pending is not None
        (mark, events), self._pending = self._pending, None
        last = Event(b"", sequence=mark.sequence, offset=mark.offset, enqueued_ms=mark.enqueued_ms)
        self._writing = True
        try:
            await self.client.write_checkpoint(last, events)
        except StoreError as failed:
            log.warning("checkpoint partition=%s not written: %s", self.partition, failed)
            self._pending = self._pending or (mark, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_S):
                    await self._woken.wait()
            self._woken.set()
        finally:
            self._writing = False
