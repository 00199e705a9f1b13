"""A partition as its handler sees it: batches to go through, and a checkpoint to set.

    async for batch in partition.batches():     # ends when the partition is lost, moved or stopped
        ...
        await partition.checkpoint()

    Feed, Checkpoints, OwnershipTerm -> PartitionClient -> your code
                                 ^^^^^^^^^^^^^^^ this module

* Asking for the next batch says that the one before is handled. A clean move waits for that, so
  the next owner starts behind it, and nothing is handled twice.
* Right before a batch is handed out it is asked once more whether we may: an owner whose lease ran
  out hands out nothing, whatever it has received.
* An owner that reads by other means (tasks of Spark, in other processes) does not call `batches`.
  It starts behind `start_checkpoint`, awaits `wait_until_stopping()`, and records what was handled
  elsewhere with `write_checkpoint()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from random import Random

from pumphouse.clock import Clock
from pumphouse.errors import AmqpError, OptionError, OwnershipLost, PumphouseError, ReaderEvicted
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.checkpointing import Checkpoints, sequence_of
from pumphouse.processor.feed import Feed
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import backoff
from pumphouse.processor.term import OwnershipTerm, Stopped, StopReason

PATIENCE_S = 60.0  # of one wait for events; it ends early when there is anything to do


class PartitionClient:
    """One partition that is ours, from its claim until it is lost, handed over or stopped."""

    def __init__(
        self,
        term: OwnershipTerm,
        feed: Feed,
        checkpoints: Checkpoints,
        options: ProcessorOptions,
        clock: Clock,
        rng: Random,
        report: Callable[[str, Exception], None],
        found: Checkpoint,
    ) -> None:
        self.start_checkpoint = (
            found  # the checkpoint when we took the partition: under our epoch by now
        )
        self._term, self._feed, self._checkpoints = term, feed, checkpoints
        self._options, self._clock, self._rng, self._report = options, clock, rng, report
        self._going = asyncio.Event()  # not paused
        self._going.set()
        self._last: Event | None = None  # the last event that was handed out
        self._at: Event | None = None  # the last of those that are in hand now
        self._done = -1  # the last sequence number of the batch in hand that was handled
        self._in_hand_s: float | None = None  # since when a batch is being handled
        self._open = False  # somebody goes through the batches
        self._left = asyncio.Event()  # nobody does any more
        self._failures = 0
        self._ended: StopReason | None = None  # for this client, though the term may go on
        self.batches_handed_out = 0

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
        """Why it ends: shutdown, lost, hand-off or error; None while it goes on."""
        return self._term.reason or self._ended

    @property
    def live(self) -> bool:
        """Whether this host may still handle events of this partition."""
        return self._term.binds

    @property
    def paused(self) -> bool:
        return not self._going.is_set()

    @property
    def last(self) -> Event | None:
        """The last event that was handed out."""
        return self._last

    def in_hand_for_s(self) -> float:
        """How long the present batch has been in hand; 0 if there is none."""
        return 0.0 if self._in_hand_s is None else self._clock.monotonic() - self._in_hand_s

    # -- what your code calls ---------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[list[Event], None]:
        """Batches in order, until the partition ends here. Only one may go through them at once."""
        if self._open:
            raise OptionError(f"the batches of partition {self.id} are being read already")
        self._open = True
        try:
            while (batch := await self._next()) is not None:
                self._in_hand_s = self._clock.monotonic()
                yield batch
                self._in_hand_s = None
                self.handled(batch)
        finally:
            self._in_hand_s = None
            self._open = False
            self._left.set()

    async def checkpoint(self, event: Event | None = None) -> None:
        """Say that everything up to this event (or the end of the batch in hand) is handled.

        OwnershipLost if the partition is no longer ours: somebody else handles its events now.
        """
        event = event if event is not None else self._at
        if event is None:
            return  # nothing was handed out yet
        if self._last is None or sequence_of(event) > sequence_of(self._last):
            raise OptionError(
                f"event {event.sequence} of partition {self.id} was not handed out yet"
            )
        try:
            await self._checkpoints.write(event)
        except OwnershipLost:
            await self._fenced_off()
            raise

    def in_hand(self, batch: list[Event]) -> None:
        """Only these are in hand: a batch may be tried again event by event."""
        self._at = batch[-1] if batch else self._at

    def handled(self, batch: list[Event]) -> None:
        """These are handled, whatever becomes of the rest: a move or a stop now begins behind them.

        For whoever goes through a batch event by event; of a whole batch it is said by asking for
        the next.
        """
        done, self._done = self._done, max(self._done, sequence_of(batch[-1]) if batch else -1)
        new = batch
        if batch and sequence_of(batch[0]) <= done:
            new = [event for event in batch if sequence_of(event) > done]
        self._term.count(len(new))
        self._checkpoints.handled(new)

    async def sleep(self, seconds: float) -> bool:
        """Wait, unless the partition ends here meanwhile; whether it goes on."""
        try:
            await self._term.unless_stopped(self._clock.sleep(seconds))
        except Stopped:
            return False
        return self._term.goes_on

    async def wait_until_left(self) -> None:
        """Until nobody handles anything of it: for whoever hands partitions to other tasks."""
        try:
            await self._term.unless_stopped(self._left.wait())
        except Stopped:
            if self._open and self._in_hand_s is not None:
                await self._left.wait()

    # -- for owners that read by other means ------------------------------------------------------

    async def wait_until_stopping(self) -> None:
        """Until the partition is to end here; `reason` says why."""
        with suppress(Stopped):
            await self._term.unless_stopped(asyncio.Event().wait())

    async def write_checkpoint(self, last: Event, events: int = 0) -> None:
        """Say that everything up to this event was handled, though not by way of `batches`.

        OwnershipLost if the partition is no longer ours: somebody else handles its events now.
        """
        self._term.count(events)
        try:
            await self._checkpoints.write(last)
        except OwnershipLost:
            await self._fenced_off()
            raise

    async def confirm(self) -> bool:
        """Ask the store whether the partition is still ours."""
        await self._term.confirm()
        return self.live

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int:
        """An epoch above that of a reader which keeps ours out; OwnershipLost if it has a right to.

        Only the rightful owner can raise it: the write is compared and set.
        """
        return await self._feed.raise_epoch_above(refused)

    def end(self, reason: StopReason) -> None:
        """No more batches come from this client, whoever still holds it."""
        if self._ended is None:
            self._ended = reason
            self._term.wake()  # whoever waits for a batch of it waits in vain

    def pause(self) -> None:
        """Hand out no more batches; the partition stays ours."""
        self._going.clear()

    def resume(self) -> None:
        self._going.set()

    # -- the next batch ---------------------------------------------------------------------------

    async def _next(self) -> list[Event] | None:
        """The next batch that may be handed out; None once there is none to come."""
        asked_s = self._clock.monotonic()
        while self._goes_on:
            try:
                batch = await self._receive(asked_s)
                if self.paused:
                    await self._term.unless_stopped(self._going.wait())
            except Stopped:
                break
            except OwnershipLost:
                await self._fenced_off()
            except ReaderEvicted as evicted:
                await self._term.confirm()
                await self._mend(evicted)
            except PumphouseError as failed:
                if is_misplaced(failed):  # a new pump looks where the checkpoint is by then
                    self._report(self.id, failed)
                    self.end(StopReason.ERROR)
                else:
                    await self._mend(failed)
            else:
                self._failures = 0
                if (batch or self._waited_enough(asked_s)) and self._goes_on:
                    self._last = self._at = batch[-1] if batch else self._last
                    self._done = -1
                    self.batches_handed_out += 1
                    return batch
        return None

    @property
    def _goes_on(self) -> bool:
        return self._term.goes_on and self._ended is None

    async def _receive(self, asked_s: float) -> list[Event]:
        await self._checkpoints.keep()
        patience_s = min(PATIENCE_S, self._checkpoints.due_in_s)
        if self._options.max_wait_s is not None:
            left_s = asked_s + self._options.max_wait_s - self._clock.monotonic()
            patience_s = min(patience_s, max(0.0, left_s))
        return await self._term.unless_stopped(self._feed.receive(patience_s))

    def _waited_enough(self, asked_s: float) -> bool:
        max_wait_s = self._options.max_wait_s
        return max_wait_s is not None and self._clock.monotonic() >= asked_s + max_wait_s

    async def _fenced_off(self) -> None:
        """Somebody else speaks for the checkpoint: a later owner, or whoever moved it by hand.

        Whose the partition is, the row tells. If it is still ours, a new pump starts from what is
        stored now.
        """
        self.end(StopReason.LOST)
        await self._term.confirm()

    async def _mend(self, failed: PumphouseError) -> None:
        """Report, wait and read on behind the last event that was received."""
        if not self._term.goes_on:
            return
        self._failures += 1
        self._report(self.id, failed)
        await self._feed.close()
        await self.sleep(backoff(self._failures, self._options, self._rng))


def is_misplaced(failed: PumphouseError) -> bool:
    """Whether the hub knows no such position: it was made anew, and we are ahead of it."""
    return isinstance(failed, AmqpError) and failed.condition == "com.microsoft:argument-error"
