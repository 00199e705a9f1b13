"""PartitionClient: a partition as its handler sees it, with its batches and its checkpoint.

    async for batch in partition.batches():     # ends when the partition is lost, moved or stopped
        ...
        await partition.checkpoint()

    Pump, OwnershipTerm, CheckpointWriter -> PartitionClient -> your code
                                             ^^^^^^^^^^^^^^^ this module

* Requesting the next batch means that the one before is handled. A clean move waits for that: the
  next owner starts behind it, and nothing is handled twice.
* The lease is checked right before a batch is handed out: an owner whose lease has expired hands
  out nothing, even if it has received events.
* Checkpoints that the policy asks for are written between batches, and when the partition is left
  cleanly. One write is under way at a time, always the newest.
* An owner that reads by other means (tasks of Spark, in other processes) does not call `batches`.
  It starts behind `start_checkpoint`, awaits `wait_until_stopping()`, and records what was handled
  elsewhere with `write_checkpoint()`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Protocol

from pumphouse.errors import (
    AmqpError,
    OptionError,
    OwnershipLost,
    PumphouseError,
    ReaderEvicted,
    StoreError,
)
from pumphouse.events import Event
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.plan import Pending, add_pending, backoff, checkpoint_due_in, sequence_of
from pumphouse.processor.term import Host, OwnershipTerm, Stopped, StopReason

RECEIVE_S = 60.0  # one wait for events; it ends early when there is anything to do
RETRY_S = 1.0  # after a checkpoint of the policy could not be written


class EventSource(Protocol):
    """What a partition client needs of its pump."""

    async def receive(self, deadline_s: float) -> list[Event]: ...

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int: ...

    async def close(self) -> None: ...


class PartitionClient:
    """One partition that is ours, from its claim until it is lost, handed over or stopped."""

    def __init__(
        self,
        host: Host,
        term: OwnershipTerm,
        source: EventSource,
        writer: CheckpointWriter,
        start_checkpoint: Checkpoint,
    ) -> None:
        self.start_checkpoint = start_checkpoint  # as stored at the start, stamped by us
        self.batches_handed_out = 0
        self._host, self._term, self._source, self._writer = host, term, source, writer
        self._clock, self._options = host.clock, host.options
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self._last: Event | None = None  # the last event that was handed out
        self._in_hand: Event | None = None  # the last event of those in hand now
        self._in_hand_s: float | None = None  # since when a batch is being handled
        self._handled = -1  # the last handled sequence number of the batch in hand
        self._iterating = False  # `batches` is being iterated
        self._left = asyncio.Event()  # the iteration has ended
        self._failures = 0
        self._ended: StopReason | None = None  # for this client, though the term may continue
        self._pending: Pending | None = None  # handled, but not in the checkpoint
        self._requested: Event | None = None  # the furthest checkpoint that was requested
        self._retry_s = -math.inf  # the policy writes no checkpoint before this, after a failure
        self._write_lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<PartitionClient {self.id} | epoch {self.epoch} | {self.reason or 'open'}>"

    @property
    def id(self) -> str:
        return self._term.partition

    @property
    def epoch(self) -> int:
        return self._term.epoch

    @property
    def reason(self) -> StopReason | None:
        """Why it ends: shutdown, lost, hand-off or error; None while it is active."""
        return self._term.reason or self._ended

    @property
    def live(self) -> bool:
        """Whether this host may still handle events of this partition."""
        return self._term.has_lease

    @property
    def paused(self) -> bool:
        return not self._unpaused.is_set()

    @property
    def last(self) -> Event | None:
        """The last event that was handed out."""
        return self._last

    def in_hand_for_s(self) -> float:
        """How long the current batch has been in hand; 0 if there is none."""
        return 0.0 if self._in_hand_s is None else self._clock.monotonic() - self._in_hand_s

    # -- what your code calls ---------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """Batches in order, until the partition ends here. Only one iteration at a time."""
        if self._iterating:
            raise OptionError(
                f"the batches of partition {self.id} are being read already: use one loop at a time"
            )
        self._iterating = True
        try:
            while (batch := await self._next()) is not None:
                self._in_hand_s = self._clock.monotonic()
                yield batch
                self._in_hand_s = None
                self.mark_handled(batch)
                self._host.reporter.recovered("pump_failed", self.id)
        finally:
            self._in_hand_s = None
            self._iterating = False
            self._left.set()

    async def checkpoint(self, event: Event | None = None) -> None:
        """Record that everything up to this event (or the end of the batch in hand) is handled.

        OwnershipLost if the partition is no longer ours: another host handles its events now.
        """
        event = event if event is not None else self._in_hand
        if event is None:
            return  # nothing was handed out yet
        if self._last is None or sequence_of(event) > sequence_of(self._last):
            raise OptionError(
                f"cannot checkpoint event {event.sequence} of partition {self.id}: "
                "it was not handed out yet"
            )
        await self._write_or_end(event)

    def set_in_hand(self, batch: list[Event]) -> None:
        """Narrow what is in hand to these events: a failed batch is retried event by event."""
        self._in_hand = batch[-1] if batch else self._in_hand

    def mark_handled(self, batch: list[Event]) -> None:
        """Mark these events as handled, even if the rest of the batch fails.

        After a move or a stop, reading continues behind them. Requesting the next batch marks the
        whole previous one.
        """
        handled = self._handled
        self._handled = max(handled, sequence_of(batch[-1]) if batch else -1)
        unmarked = batch
        if batch and sequence_of(batch[0]) <= handled:
            unmarked = [event for event in batch if sequence_of(event) > handled]
        self._term.count(len(unmarked))
        self._add_pending(unmarked)

    async def sleep(self, seconds: float) -> bool:
        """Wait, or less if the partition stops; True if it is still active."""
        try:
            await self._term.unless_stopped(self._clock.sleep(seconds))
        except Stopped:
            return False
        return self._term.is_active

    async def wait_until_left(self) -> None:
        """Until no batch is in hand and none will follow. For partitions given to other tasks."""
        try:
            await self._term.unless_stopped(self._left.wait())
        except Stopped:
            if self._iterating and self._in_hand_s is not None:
                await self._left.wait()

    # -- for owners that read by other means ------------------------------------------------------

    async def wait_until_stopping(self) -> None:
        """Until the partition is to stop here; `reason` is set then."""
        with suppress(Stopped):
            await self._term.unless_stopped(asyncio.Event().wait())

    async def write_checkpoint(self, last: Event, events: int = 0) -> None:
        """Record that everything up to this event was handled, though not through `batches`.

        OwnershipLost if the partition is no longer ours: another host handles its events now.
        """
        self._term.count(events)
        await self._write_or_end(last)

    async def confirm(self) -> bool:
        """Ask the store whether the partition is still ours."""
        await self._term.confirm()
        return self.live

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int:
        """Raise our epoch above that of a reader which refuses ours; the new epoch.

        OwnershipLost if the other reader belongs to the rightful owner: the row is written by
        compare-and-set.
        """
        return await self._source.raise_epoch_above(refused)

    # -- for the pump and its supervisor ----------------------------------------------------------

    def end(self, reason: StopReason) -> None:
        """Hand out no more batches from this client."""
        if self._ended is None:
            self._ended = reason
            self._term.wake()  # a wait for a batch would not end otherwise

    def pause(self) -> None:
        """Hand out no more batches; the partition stays ours."""
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()

    # -- the next batch ---------------------------------------------------------------------------

    async def _next(self) -> list[Event] | None:
        """The next batch that may be handed out; None when the partition ends."""
        requested_s = self._clock.monotonic()
        while self._is_active:
            try:
                batch = await self._receive(requested_s)
                if self.paused:
                    await self._term.unless_stopped(self._unpaused.wait())
            except Stopped:
                break
            except OwnershipLost:
                await self._fenced_off()
            except ReaderEvicted as evicted:
                await self._term.confirm()
                await self._reopen(evicted)
            except PumphouseError as error:
                if is_unknown_position(error):  # a new pump reads the checkpoint again
                    self._failed("receive_failed", error)
                    self.end(StopReason.ERROR)
                else:
                    await self._reopen(error)
            else:
                if self._failures:
                    self._failures = 0
                    self._host.reporter.recovered("receive_failed", self.id)
                if (batch or self._waited_enough(requested_s)) and self._is_active:
                    self._last = self._in_hand = batch[-1] if batch else self._last
                    self._handled = -1
                    self.batches_handed_out += 1
                    return batch
        return None

    @property
    def _is_active(self) -> bool:
        return self._term.is_active and self._ended is None

    async def _receive(self, requested_s: float) -> list[Event]:
        await self._write_if_due()
        wait_s = min(RECEIVE_S, self._checkpoint_due_in_s)
        if self._options.max_wait_s is not None:
            remaining_s = requested_s + self._options.max_wait_s - self._clock.monotonic()
            wait_s = min(wait_s, max(0.0, remaining_s))
        return await self._term.unless_stopped(self._source.receive(wait_s))

    def _waited_enough(self, requested_s: float) -> bool:
        max_wait_s = self._options.max_wait_s
        return max_wait_s is not None and self._clock.monotonic() >= requested_s + max_wait_s

    async def _fenced_off(self) -> None:
        """A later owner has stamped the checkpoint, or it was moved by hand.

        The row decides who owns the partition. If it is still ours, a new pump starts from the
        checkpoint that is stored now.
        """
        self.end(StopReason.LOST)
        await self._term.confirm()

    async def _reopen(self, error: PumphouseError) -> None:
        """Report, close the reader and wait; the next one starts behind the last event."""
        if not self._term.is_active:
            return
        self._failures += 1
        self._failed("receive_failed", error)
        await self._source.close()
        await self.sleep(backoff(self._failures, self._options, self._host.rng))

    # -- the checkpoint ---------------------------------------------------------------------------

    def _add_pending(self, batch: list[Event]) -> None:
        if batch and self._options.checkpoints.on:
            self._pending = add_pending(self._pending, batch, self._clock.monotonic())

    @property
    def _checkpoint_due_in_s(self) -> float:
        now_s = self._clock.monotonic()
        due_s = checkpoint_due_in(self._options.checkpoints, self._pending, now_s)
        return max(due_s, self._retry_s - now_s)

    async def _write_if_due(self) -> None:
        """Write the pending checkpoint if it is due. A failing store does not block reading."""
        if self._checkpoint_due_in_s > 0:
            return
        try:
            await self.flush()
        except StoreError as error:
            self._retry_s = self._clock.monotonic() + RETRY_S
            self._failed("checkpoint_failed", error)

    async def flush(self) -> None:
        """Write the pending checkpoint."""
        if self._pending is not None:
            await self._write(self._pending.last)

    async def _write_or_end(self, event: Event) -> None:
        try:
            await self._write(event)
        except OwnershipLost:
            await self._fenced_off()
            raise

    async def _write(self, event: Event) -> None:
        """Write the checkpoint at this event. OwnershipLost if we may not.

        A batch that is handled again requests its checkpoints again: the furthest one counts.
        """
        async with self._write_lock:
            if self._requested is not None and sequence_of(event) < sequence_of(self._requested):
                event = self._requested
            self._requested = event
            await self._advance(event)
        self._host.reporter.recovered("checkpoint_failed", self.id)
        if self._pending is not None and sequence_of(self._pending.last) <= sequence_of(event):
            self._pending = None

    async def _advance(self, event: Event) -> None:
        deadline_s = self._options.store_s
        try:
            async with asyncio.timeout(deadline_s):
                await self._writer.advance(sequence_of(event), event.offset, event.enqueued_ms)
        except TimeoutError:
            raise StoreError(
                f"the checkpoint of partition {self.id} was not written within {deadline_s:g} s"
            ) from None

    def _failed(self, event: str, error: Exception) -> None:
        self._host.reporter.failed(event, self.id, error)


def is_unknown_position(error: PumphouseError) -> bool:
    """Whether the hub does not know the position: it was re-created, and we are ahead of it."""
    return isinstance(error, AmqpError) and error.condition == "com.microsoft:argument-error"
