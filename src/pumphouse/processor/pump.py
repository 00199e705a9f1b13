"""Pump: serves one partition while it is ours, and reads its events.

    supervisor -> stamp the checkpoint -> choose the position -> serve -> write what is pending
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

* The checkpoint is stamped first. From then on an earlier owner can no longer move it, so the
  position read with it is final before the first event is requested.
* If the reader breaks, the next one starts after the last event received: events are contiguous.
* Events that are gone (retention, or a re-created hub) are reported before those after them are
  handed out; see checks/continuity.py.
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
from pumphouse.errors import (
    EventsExpired,
    OwnershipLost,
    PumphouseError,
    ReaderEvicted,
    StoreError,
)
from pumphouse.events import EARLIEST, Event
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.checks.continuity import Continuity, is_unknown_position
from pumphouse.processor.checks.gaps import contiguous
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.plan import start_position
from pumphouse.processor.prefetch_budget import PROCESS
from pumphouse.processor.term import Host, OwnershipTerm, Stopped, StopReason

CLOSE_S = 5.0  # to close a reader; a new owner need not wait: its higher epoch evicts the reader
STAMPS_MAX = 3  # attempts to stamp the checkpoint; a refused one raises our epoch
BEGINNING = "-1"  # the offset before the oldest event, in all clients
RAISES_MAX = 5  # epoch raises in one attempt to open a reader; then the refusal is reported

Serve = Callable[[PartitionClient], Awaitable[None]]


class Pump:
    """Moves the events of one partition to the code that serves it."""

    _writer: CheckpointWriter
    _continuity: Continuity
    _reader_options: ReaderOptions  # the reader to open next: its position and epoch change

    def __init__(
        self, host: Host, term: OwnershipTerm, accepted: EventsExpired | None = None
    ) -> None:
        self.host, self.term = host, term
        self._accepted = accepted  # a loss of events after which the partition was resumed
        self.stopped_by: EventsExpired | None = None  # the loss that stops the partition
        self.client: PartitionClient | None = None
        self._reader: Reader | None = None
        self._received: list[Event] = []  # received, but not handed out yet
        self._has_handed_out = False
        self._is_moved = False  # the checkpoint may have been moved by hand

    def __repr__(self) -> str:
        return f"<Pump {self.term.partition} | {self.term.reason or 'active'}>"

    async def run(self, serve: Serve, is_paused: Callable[[], bool] = lambda: False) -> None:
        """Serve the partition until its term ends; raises what the serving code raises.

        EventsExpired if events are gone and the policy stops the partition.
        """
        checkpoint = await self._stamp()
        self._log_move(checkpoint)
        self._continuity = Continuity(
            self.host,
            self.term.partition,
            self.host.options.on_expired,
            checkpoint,
            self._accepted,
        )
        self._reader_options = self._options_after(checkpoint)
        self.client = client = PartitionClient(self.host, self.term, self, self._writer, checkpoint)
        if is_paused():  # a later pause or resume finds the client
            client.pause()
        try:
            await self._serve(serve, client)
            if self.stopped_by is not None:
                raise self.stopped_by
        finally:
            if self._writer.is_fenced_off:
                self.term.moved_from = (
                    -1 if self._writer.sequence is None else self._writer.sequence
                )
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
        returned_early = client.reason is None
        await self._finish(client)
        if returned_early:
            raise PumphouseError(
                f"the code that serves partition {client.id} returned, though this host owns the "
                "partition; it is called again. Iterate over batches() until the loop ends"
            )

    async def _finish(self, client: PartitionClient) -> None:
        """Write the pending checkpoint, unless the lease has ended."""
        if not self.term.has_lease:
            return
        try:
            await client.finish(clean=self.term.is_clean or self._is_stopped(client))
        except OwnershipLost:
            pass  # the checkpoint was moved by hand; the row still decides who owns the partition
        except PumphouseError as error:
            self.host.reporter.failed("checkpoint_failed", self.term.partition, error)

    def _is_stopped(self, client: PartitionClient) -> bool:
        """Whether the partition is kept without being served, until it is resumed."""
        return client.poison is not None or self.stopped_by is not None

    def _log_move(self, checkpoint: Checkpoint) -> None:
        """Log that we follow a checkpoint that was moved by hand during our term."""
        moved_from, self.term.moved_from = self.term.moved_from, None
        if moved_from is not None:
            self.host.reporter.info(
                "checkpoint_moved",
                partition=self.term.partition,
                sequence=position_text(moved_from),
                to=position_text(checkpoint.sequence),
            )

    # -- stamping ---------------------------------------------------------------------------------

    async def _stamp(self) -> Checkpoint:
        """Fence earlier owners off, within a deadline; the checkpoint as it is then stored."""
        try:
            async with asyncio.timeout(STAMPS_MAX * self.host.options.store_s):
                return await self._stamp_as_owner()
        except TimeoutError:
            raise StoreError(
                f"the checkpoint of partition {self.term.partition} could not be taken over: the "
                "checkpoint store did not respond within "
                f"{STAMPS_MAX * self.host.options.store_s:g} s"
            ) from None

    async def _stamp_as_owner(self) -> Checkpoint:
        await self.term.settle_epoch()
        for attempt in range(STAMPS_MAX):
            self._writer = self._new_writer()
            try:
                return await self._writer.stamp()
            except OwnershipLost as fenced:
                # The row may have a lower epoch than the checkpoint, if an official SDK rewrote the
                # row without an epoch. The row decides who the owner is; only the owner raises it.
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

    def _options_after(self, checkpoint: Checkpoint) -> ReaderOptions:
        host, partition = self.host, self.term.partition
        return ReaderOptions(
            partition,
            host.group.name,
            start_position(checkpoint, host.options.start_of(partition)),
            self.term.epoch,
            host.options.prefetch,
            host.options.prefetch_bytes,
            host.name,
            bytes_limit=lambda: PROCESS.share(host.options.prefetch_bytes_total),
            detect_recreated=True,
        )

    async def receive(self, deadline_s: float) -> list[Event]:
        """The next batch; empty if the deadline passes. Raises if the reader fails.

        Raises Stopped if events are gone and the policy stops the partition, or if the hub was
        re-created: the next pump starts at the beginning of the hub.
        """
        try:
            if not self._received:
                self._received = await self._receive(deadline_s)
            if not self._received:
                return []
            await self._continuity.check(self._received[0])
        except EventsExpired as expired:
            self.stopped_by = expired
            # Reported here: an event processor is closed before the supervisor gets the exception.
            await self.host.reporter.expired(self.term.partition, expired)
            raise self._stop() from None
        size = contiguous(self._received)
        batch, rest = cut(self._received[:size], self.host.options.batch_bytes_max)
        self._received = [*rest, *self._received[size:]]
        self._continuity.handed_out(batch[-1])
        self._has_handed_out = True
        return batch

    async def _receive(self, deadline_s: float) -> list[Event]:
        reader = self._reader or await self._open()
        events_max = self.host.options.batch_events_max + self._continuity.is_comparing
        try:
            received = await reader.receive(events_max, deadline_s)
        except ReaderEvicted as evicted:
            # Another host has a higher epoch. A reader with our own epoch shows that an operator
            # has moved the checkpoint: see wake_owners in cli/checkpoints.py.
            self._is_moved = evicted.epoch == self._reader_options.epoch
            raise
        except PumphouseError as error:
            if not is_unknown_position(error):  # the hub was re-created
                raise
            await self._restart()
            return []
        new = self._continuity.compared(received)
        if new is None:
            await self._restart()
            return []
        if new:
            self._continue_after(new[-1])
        return new

    def _continue_after(self, event: Event) -> None:
        if event.sequence is None:
            raise PumphouseError(
                f"the hub sent an event without a sequence number (partition {self.term.partition})"
            )
        self._continuity.continue_after(event)

    def _stop(self) -> Stopped:
        """End this pump's client; the supervisor decides what follows."""
        if self.client is not None:
            self.client.end(StopReason.ERROR)
        return Stopped()

    async def _restart(self) -> None:
        """Read a re-created hub from its beginning.

        A pump that has handed out events of the old hub ends: the next one restarts.
        """
        await self.close()
        if self._has_handed_out:
            # Without a sequence number the next pump could not notice that the hub was re-created.
            if self._writer.sequence is None:
                await self._move_to_beginning()
            raise self._stop()
        await self._move_to_beginning()
        self._continuity.restart()
        self._reader_options = replace(self._reader_options, position=EARLIEST)

    async def _move_to_beginning(self) -> None:
        partition = await self._continuity.recreated()
        await self._writer.restart(partition.first_sequence - 1, BEGINNING)
        if self.client is not None:
            self.client.discard_pending()

    async def _open(self) -> Reader:
        """Open a reader after the last event; at the beginning if the hub was re-created.

        OwnershipLost if the checkpoint was moved by hand: the next pump starts there.
        """
        self._reader_options = replace(self._reader_options, epoch=await self._settled_epoch())
        if self._is_moved:
            await self._writer.confirm()
            self._is_moved = False
        self._reader_options = await self._continuity.before_open(self._reader_options)
        try:
            return await self._attach()
        except PumphouseError as error:
            if not is_unknown_position(error):
                raise
        await self._restart()
        return await self._attach()

    async def _attach(self) -> Reader:
        """Open a reader. If the hub refuses our epoch, raise it and retry."""
        for _ in range(RAISES_MAX):
            try:
                return await self._open_reader()
            except ReaderEvicted as refused:
                await self.raise_epoch_above(refused)
        return await self._open_reader()

    async def _open_reader(self) -> Reader:
        self._reader = await self.host.client.reader(self._reader_options)
        PROCESS.opened()
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

    @property
    def queued_events(self) -> int:
        """Events that were received and not handed out, with those that the driver buffers."""
        return len(self._received) + getattr(self._reader, "buffered_events", 0)

    async def close(self) -> None:
        """Close the reader. Events received and not handed out are read again by the next."""
        reader, self._reader = self._reader, None
        if reader is not None:
            PROCESS.closed()
            await reader.close()


def position_text(sequence: int | None) -> str:
    """The last handled event, for the log."""
    return "beginning" if sequence is None or sequence < 0 else str(sequence)


def cut(events: list[Event], bytes_max: int) -> tuple[list[Event], list[Event]]:
    """The first events, at least one, whose bodies are within the limit; and the rest."""
    size = 0
    for index, event in enumerate(events):
        size += len(event.body)
        if size > bytes_max and index:
            return events[:index], events[index:]
    return events, []
