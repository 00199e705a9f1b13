"""Pump: serves one partition while it is ours, and reads its events.

    supervisor -> stamp the checkpoint -> choose the position -> serve -> write what is pending
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

* The checkpoint is stamped first. From then on an earlier owner can no longer move it, so the
  position read with it is final before the first event is requested.
* If the reader breaks, the next one starts behind the last event received: events are contiguous.
* If the hub refuses the reader because one with a higher epoch is attached, the owner raises its
  own epoch above it, in the row and in the checkpoint, and retries. Only the rightful owner can:
  the row is written by compare-and-set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from pumphouse.client.base import Reader, ReaderOptions
from pumphouse.errors import OwnershipLost, PumphouseError, ReaderEvicted, StoreError
from pumphouse.events import Event, Position
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import start_position
from pumphouse.processor.term import Host, OwnershipTerm, StopReason

CLOSE_S = 5.0  # to close a reader; a new owner need not wait: its higher epoch evicts the reader
STAMPS_MAX = 3  # attempts to stamp the checkpoint; a refused one raises our epoch
RAISES_MAX = 5  # epoch raises in one attempt to open a reader; then the refusal is reported

Serve = Callable[[PartitionClient], Awaitable[None]]


class Pump:
    """Moves the events of one partition to the code that serves it."""

    _writer: CheckpointWriter
    _reader_options: ReaderOptions  # the reader to open next: its position and epoch change

    def __init__(self, host: Host, term: OwnershipTerm) -> None:
        self.host, self.term = host, term
        self.client: PartitionClient | None = None
        self._reader: Reader | None = None
        self._received: list[Event] = []  # received, but beyond the byte limit of a batch

    def __repr__(self) -> str:
        return f"<Pump {self.term.partition} | {self.term.reason or 'active'}>"

    async def run(self, serve: Serve, is_paused: Callable[[], bool] = lambda: False) -> None:
        """Serve the partition until it ends here; raises what the serving code raises."""
        checkpoint = await self._stamp()
        self._reader_options = self._options_behind(checkpoint)
        self.client = client = PartitionClient(self.host, self.term, self, self._writer, checkpoint)
        if is_paused():  # a later pause or resume finds the client
            client.pause()
        try:
            await self._serve(serve, client)
        finally:
            client.end(StopReason.ERROR)
            with suppress(TimeoutError, PumphouseError):
                async with asyncio.timeout(CLOSE_S):
                    await self.close()

    async def _serve(self, serve: Serve, client: PartitionClient) -> None:
        """Events that were handled before the serving code raised are checkpointed too."""
        try:
            await serve(client)
        except Exception:
            await self._finish(client)
            raise
        await self._finish(client)

    async def _finish(self, client: PartitionClient) -> None:
        """Write the pending checkpoint, unless the lease has ended."""
        if not self.term.has_lease:
            return
        try:
            await client.flush()
        except OwnershipLost:
            pass  # the checkpoint was moved by hand; the row still decides who owns the partition
        except PumphouseError as error:
            self.host.reporter.failed("checkpoint_failed", self.term.partition, error)

    # -- stamping ---------------------------------------------------------------------------------

    async def _stamp(self) -> Checkpoint:
        """Fence earlier owners off, within a deadline; the checkpoint as it is then stored."""
        try:
            async with asyncio.timeout(STAMPS_MAX * self.host.options.store_s):
                return await self._stamp_as_owner()
        except TimeoutError:
            raise StoreError(
                f"the checkpoint of partition {self.term.partition} was not stamped within "
                f"{STAMPS_MAX * self.host.options.store_s:g} s"
            ) from None

    async def _stamp_as_owner(self) -> Checkpoint:
        await self.term.settle_epoch()
        for attempt in range(STAMPS_MAX):
            self._writer = self._new_writer()
            try:
                return await self._writer.stamp()
            except OwnershipLost as fenced:
                # The row may have a lower epoch than the checkpoint: an official SDK rewrote it
                # without one. The row decides who owns it, and only its owner can raise it.
                if attempt == STAMPS_MAX - 1 or not self.term.has_lease:
                    raise
                await self.term.raise_epoch(fenced.epoch)
        raise AssertionError("unreachable")

    def _new_writer(self) -> CheckpointWriter:
        host, term = self.host, self.term
        return CheckpointWriter(
            host.store, host.group, term.partition, term.epoch, lambda: term.has_lease
        )

    # -- reading ----------------------------------------------------------------------------------

    def _options_behind(self, checkpoint: Checkpoint) -> ReaderOptions:
        host, partition = self.host, self.term.partition
        return ReaderOptions(
            partition,
            host.group.name,
            start_position(checkpoint, host.options.start_of(partition)),
            self.term.epoch,
            host.options.prefetch,
            host.options.prefetch_bytes,
            host.name,
        )

    async def receive(self, deadline_s: float) -> list[Event]:
        """The next batch; empty if the deadline passes. Raises if the reader fails."""
        if not self._received:
            reader = self._reader or await self._open()
            received = await reader.receive(self.host.options.batch_events_max, deadline_s)
            self._received = received
            if received:
                self._continue_behind(received[-1])
        batch, self._received = cut(self._received, self.host.options.batch_bytes_max)
        return batch

    def _continue_behind(self, event: Event) -> None:
        if event.sequence is None:
            raise PumphouseError(
                f"the hub sent an event without a sequence number (partition {self.term.partition})"
            )
        position = Position("sequence", str(event.sequence))
        self._reader_options = replace(self._reader_options, position=position)

    async def _open(self) -> Reader:
        """Open a reader behind the last event. If the hub refuses our epoch, raise it and retry."""
        self._reader_options = replace(self._reader_options, epoch=await self._settled_epoch())
        for _ in range(RAISES_MAX):
            try:
                self._reader = await self.host.client.reader(self._reader_options)
                return self._reader
            except ReaderEvicted as refused:
                await self.raise_epoch_above(refused)
        self._reader = await self.host.client.reader(self._reader_options)
        return self._reader

    async def _settled_epoch(self) -> int:
        """The epoch that our row certainly has; the checkpoint is stamped with it first."""
        await self.term.settle_epoch()
        if self._writer.stamped_with != self.term.epoch:
            await self._writer.restamp(self.term.epoch)
        return self.term.epoch

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int:
        """Raise our epoch above the one that refused us; OwnershipLost if we may not."""
        our_epoch = self._reader_options.epoch or 0
        # If the hub does not report the epoch that refuses us, doubling ours soon passes it.
        above = 2 * our_epoch if refused.epoch is None else max(refused.epoch, our_epoch)
        await self.term.raise_epoch(above)
        epoch = await self._settled_epoch()
        self._reader_options = replace(self._reader_options, epoch=epoch)
        return epoch

    async def close(self) -> None:
        """Close the reader. Events received and not handed out are read again by the next."""
        reader, self._reader = self._reader, None
        if reader is not None:
            await reader.close()


def cut(events: list[Event], bytes_max: int) -> tuple[list[Event], list[Event]]:
    """The first events, at least one, whose bodies are within the limit; and the rest."""
    size = 0
    for index, event in enumerate(events):
        size += len(event.body)
        if size > bytes_max and index:
            return events[:index], events[index:]
    return events, []
