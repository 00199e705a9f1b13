"""PartitionClient: a partition as its handler sees it, with its batches and its checkpoint.

    async for batch in partition.batches():     # ends when the partition is lost, moved or stopped
        ...
        await partition.checkpoint()

    Pump, OwnershipTerm, PartitionCheckpoint -> PartitionClient -> your code
                                                ^^^^^^^^^^^^^^^ this module

* Requesting the next batch means that the one before is handled. A clean move waits for that: the
  next owner starts after it, and nothing is handled twice.
* The lease is checked right before a batch is handed out: an owner whose lease has expired hands
  out nothing, even if it has received events.
* Checkpoints that the policy requires are written between batches. What was handled is written when
  the partition is left cleanly (checkpointing.py).
* An owner that reads by other means (tasks of Spark, in other processes) does not call `batches`.
  It starts after `start_checkpoint`, awaits `wait_until_stopping()`, and records what was handled
  elsewhere with `write_checkpoint()`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    nullcontext,
    suppress,
)
from typing import Any, Protocol

from pumphouse.errors import (
    OptionError,
    OwnershipLost,
    PoisonEvent,
    PumphouseError,
    ReaderEvicted,
)
from pumphouse.events import Event
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.model import Checkpoint
from pumphouse.processor.checkpointing import PartitionCheckpoint, Progress
from pumphouse.processor.checks.continuity import is_unknown_position
from pumphouse.processor.handling.batches import Batches
from pumphouse.processor.handling.calls import HandlerCalls
from pumphouse.processor.handling.timer import HandlingTimer
from pumphouse.processor.options import key_order
from pumphouse.processor.plan import backoff
from pumphouse.processor.recording.recorder import LEFT_LOOP, LOOP
from pumphouse.processor.term import Host, OwnershipTerm, Stopped, StopReason

RECEIVE_S = 60.0  # one wait for events; it ends early when there is anything to do
SERIAL = "needs concurrency=1"
RECOVERY_S = 1.0  # the first wait after a failure: a response, even without events, ends it


class EventSource(Protocol):
    """What a partition client needs of its pump."""

    async def receive(self, deadline_s: float) -> list[Event]: ...

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int: ...

    async def close(self) -> None: ...


class PartitionClient:
    """A partition that this host owns, from its claim until it is lost, handed over or stopped."""

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
        self.poison: PoisonEvent | None = None  # the event that has stopped the partition
        self._host, self._term, self._source = host, term, source
        self._clock, self._options = host.clock, host.options
        self._unpaused = asyncio.Event()
        self._unpaused.set()
        self.order = key_order(host.options)  # None: one handler at a time
        self.handlers = HandlerCalls(term.partition, host.clock, self.order, host.tasks)
        self._iterating = False  # `batches` is being iterated
        self._left = asyncio.Event()  # the iteration has ended
        self._failures = 0
        self._has_received = False  # the hub has responded to this client
        self._ended: StopReason | None = None  # for this client, though the term may continue
        self._checkpoint = PartitionCheckpoint(host, term, writer)
        self.calls = host.reporter.recorder.calls(term.partition)

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
        """The last event that was delivered to your code."""
        return self._progress.last

    @property
    def checkpoint_age_s(self) -> float:
        """Seconds for which handled events are not in the checkpoint; 0 if all are."""
        return self._checkpoint.age_s

    def in_hand_for_s(self) -> float:
        """Seconds for which the current batch is being handled; 0 if there is none."""
        return max(call.timer.elapsed_s for call in self.handlers.all)

    def coroutine_s(self) -> float:
        """Seconds of the longest batch that a coroutine had since the last call of this."""
        return max(call.timer.longest_coroutine_s() for call in self.handlers.all)

    def handler_waits(self) -> None:  # these three are for ThreadCall; see HandlerCall
        self.handlers.current.waits()

    def handler_starts(self) -> None:
        self.handlers.current.starts()

    def handler_ends(self) -> None:
        self.handlers.current.ends()

    def interruptible(self) -> AbstractAsyncContextManager[None]:
        """Run a handler; HandlerStuck if its call is interrupted meanwhile."""
        return self.handlers.current.interruptible()

    @property
    def _progress(self) -> Progress:
        return self.handlers.current.progress

    @property
    def _timer(self) -> HandlingTimer:
        return self.handlers.current.timer

    @property
    def must_stop(self) -> bool:
        """Whether the rest of the current batch is not handled."""
        return self.reason is not None and not (self.handlers.drain and self.live)

    # -- what your code calls ---------------------------------------------------------------------

    def batches(self) -> Batches:
        """Iterate over batches in order while this host owns the partition. One loop at a time.

        If your code keeps the iterator in a variable and leaves the loop early, it must call
        `aclose()`: until then, the last batch counts as being handled.
        """
        if self.order is not None:
            raise OptionError(f"batches() {SERIAL}: call run(handler=...) of the processor")
        return Batches(self._enter, self._hand_out, self._batch_handled, self._leave)

    def checkpoint(self, event: Event | None = None) -> Coroutine[Any, Any, None]:
        """Record that everything up to this event is handled. Await the result.

        Without an event it covers all handled events. If the code that handles the current batch
        calls it, it covers that batch too, except inside an `except` block.

        A store that fails is retried while the lease lasts. OwnershipLost if the partition is no
        longer ours: another host handles its events now.
        """
        # Decided at the call, and not when the result is awaited: another task may await it.
        # A handler that waits for its own checkpoint is not stuck. If another task requests the
        # checkpoint, the handler does not wait for it and may be stuck.
        waiting = self._timer.waiting() if self._progress.is_in_handler else nullcontext()
        progress = self._progress
        covered = progress.covered() if event is None else progress.reached(event)
        return self._write_handed_out(event or progress.claimed or covered, covered, waiting)

    def transaction(self, event: Event | None = None) -> AbstractAsyncContextManager[Any]:
        """A transaction of the store, for rows that must be written exactly once.

        Its end commits what you write with the yielded connection, and the checkpoint after
        `event`, by default the last current event. Either both commit, or neither. In an `except`
        block and in another task than the handler's, pass the event. One transaction at a time.
        """
        if self.order is not None:
            raise OptionError(f"transaction() {SERIAL}: its checkpoint covers events in order")
        event = self._progress.covered_by_transaction() if event is None else event
        if event is None:
            raise OptionError("transaction() needs a current event: call it in a handler")
        self._progress.check_handed_out(event, self.id)
        return self._checkpoint.transaction(event)

    def uncommitted(self, batch: list[Event]) -> list[Event]:
        """The events of a batch that no transaction of this client has committed."""
        return self._checkpoint.uncommitted(batch)

    async def _write_handed_out(
        self, requested: Event | None, covered: Event | None, waiting: AbstractContextManager[None]
    ) -> None:
        if requested is not None:
            self._progress.check_handed_out(requested, self.id)
            self._checkpoint.request(requested, covered)
        if covered is None:
            return  # nothing was handled yet
        with waiting:
            await self._or_end(self._checkpoint.write_while_owner(covered))

    def set_in_hand(self, events: list[Event]) -> None:
        """A handler is about to be called with these events: the batch, or a part of it."""
        self._progress.begin(events)

    def set_failed(self) -> None:
        """The handler has raised."""
        self._progress.end()

    def mark_handled(self, batch: list[Event]) -> None:
        """Mark these events as handled, even if the rest of the batch fails.

        After a move or a stop, reading continues after them. Requesting the next batch marks the
        whole previous one.
        """
        unmarked = self._progress.mark_handled(batch)
        self._term.count(len(unmarked))
        self._checkpoint.add(unmarked)
        if unmarked:
            self.handlers.passed()

    def is_handled(self, event: Event) -> bool:
        """Whether this client has marked the event as handled."""
        return self._progress.is_handled(event)

    async def sleep(self, seconds: float) -> bool:
        """Wait, or return early if the partition stops; True if it is still active."""
        try:
            await self._term.unless_stopped(self._clock.sleep(seconds))
        except Stopped:
            return False
        return self._term.is_active

    async def wait_for(self, event: asyncio.Event) -> bool:
        """Wait until this event is set; False if the partition stops first."""
        with suppress(Stopped):
            await self._term.unless_stopped(event.wait())
        return self.is_active

    async def wait_until_left(self) -> None:
        """Wait until the current batch is handled and no other follows; for the pull API."""
        try:
            await self._term.unless_stopped(self._left.wait())
        except Stopped:
            if self._iterating and self._timer.runs:
                await self._left.wait()

    # -- for owners that read by other means ------------------------------------------------------

    async def wait_until_stopping(self) -> None:
        """Wait until this host must stop serving the partition; `reason` is then set."""
        with suppress(Stopped):
            await self._term.unless_stopped(asyncio.Event().wait())

    async def write_checkpoint(self, last: Event, events: int = 0) -> None:
        """Write a checkpoint for events that were not read through `batches`.

        All events up to `last` are handled, `events` of them since the last call. Raises
        OwnershipLost if this host no longer owns the partition.
        """
        self._term.count(events)
        await self._or_end(self._checkpoint.write(last))

    async def confirm(self) -> bool:
        """Ask the store whether this host still owns the partition."""
        await self._term.confirm()
        return self.live

    async def raise_epoch_above(self, refused: ReaderEvicted) -> int:
        """Raise this host's epoch above that of the reader that evicted it; returns the new epoch.

        Raises OwnershipLost if another host owns the partition: the row has changed.
        """
        return await self._source.raise_epoch_above(refused)

    # -- for the pump and its supervisor ----------------------------------------------------------

    def end(self, reason: StopReason) -> None:
        """Deliver no more batches."""
        if self._ended is None:
            self._ended = reason
            self._term.wake()  # a wait for a batch would not end otherwise

    def pause(self) -> None:
        """Deliver no more batches. The host keeps the lease."""
        self._unpaused.clear()

    def resume(self) -> None:
        self._unpaused.set()
        self.handlers.passed()

    def discard_pending(self) -> None:
        """Write no checkpoint of what was handled: the hub was re-created."""
        self._checkpoint.discard()

    # -- the loop over batches --------------------------------------------------------------------

    def _enter(self) -> None:
        if self._iterating:
            raise OptionError(
                f"the batches of partition {self.id} are being read already: use one loop at a time"
            )
        self._iterating = True

    async def _hand_out(self) -> list[Event] | None:
        batch = await self.next_batch()
        if batch is not None:
            self.handlers.current.batches += 1
            self._timer.start()
            self._progress.begin(batch)
            self.calls.begin(LOOP, batch)
        return batch

    def _batch_handled(self, batch: list[Event]) -> None:
        self._timer.stop()
        self.calls.end(LOOP)
        self._progress.end()
        self.mark_handled(batch)
        self.report_progress()

    def _leave(self) -> None:
        self._timer.stop()
        self.calls.end(LOOP, LEFT_LOOP)
        self._progress.end()
        self._iterating = False
        self._left.set()

    # -- the next batch ---------------------------------------------------------------------------

    async def next_batch(self) -> list[Event] | None:
        """The next batch that may be handed out; None when the partition ends."""
        requested_s = self._clock.monotonic()
        while self.is_active:
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
                # A reader with our own epoch is that of an operator who has moved the checkpoint
                # (see wake_owners); this is not an error to report.
                await self._reopen(evicted, reported=evicted.epoch != self.epoch)
            except PumphouseError as error:
                if is_unknown_position(error):  # a new pump reads the checkpoint again
                    self._host.reporter.failed("receive_failed", self.id, error)
                    self.end(StopReason.ERROR)
                else:
                    await self._reopen(error)
            else:
                if self._failures or not self._has_received:
                    # Also for the first response to this client: an earlier client of the partition
                    # may have reported a failure that is now over.
                    self._failures, self._has_received = 0, True
                    self._host.reporter.recovered("receive_failed", self.id)
                if (batch or self._waited_enough(requested_s)) and self.is_active:
                    if self.order is None:
                        self._progress.last = batch[-1] if batch else self.last
                    self.batches_handed_out += 1
                    return batch
        return None

    @property
    def is_active(self) -> bool:
        """Whether more events may be handed out."""
        return self._term.is_active and self._ended is None

    @property
    def checkpoint_due_in_s(self) -> float:
        """Seconds until the policy asks for a checkpoint."""
        return self._checkpoint.due_in_s

    def report_progress(self) -> None:
        """Events are handled: an earlier failure of this partition is over."""
        self._host.reporter.recovered("pump_failed", self.id)

    async def write_due_checkpoint(self) -> None:
        """Write the checkpoint if the policy asks for it."""
        with suppress(OwnershipLost):
            await self._or_end(self._checkpoint.write_if_due())

    async def _receive(self, requested_s: float) -> list[Event]:
        await self._checkpoint.write_if_due()
        waits_s = RECOVERY_S if self._failures or not self._has_received else RECEIVE_S
        wait_s = min(waits_s, self._checkpoint.due_in_s)
        if self._options.max_wait_s is not None:
            remaining_s = requested_s + self._options.max_wait_s - self._clock.monotonic()
            wait_s = min(wait_s, max(0.0, remaining_s))
        return await self._term.unless_stopped(self._source.receive(wait_s))

    def _waited_enough(self, requested_s: float) -> bool:
        max_wait_s = self._options.max_wait_s
        return max_wait_s is not None and self._clock.monotonic() >= requested_s + max_wait_s

    async def _fenced_off(self) -> None:
        """A later owner has stamped the checkpoint, or it was moved by hand: the row shows which.

        If the partition is still ours, a new pump starts from the checkpoint that is stored now.
        """
        self.handlers.drain = False
        self.end(StopReason.LOST)
        await self._term.confirm()

    async def _reopen(self, error: PumphouseError, *, reported: bool = True) -> None:
        """Report, close the reader and wait; the next one starts after the last event."""
        if not self._term.is_active:
            return
        self._failures += 1
        if reported:
            self._host.reporter.failed("receive_failed", self.id, error)
        await self._source.close()
        await self.sleep(backoff(self._failures, self._options, self._host.rng))

    # -- the checkpoint ---------------------------------------------------------------------------

    async def finish(self, *, clean: bool) -> None:
        """Write what was handled and is not in the checkpoint, when this host stops serving it."""
        await self._checkpoint.finish(clean=clean)

    async def _or_end(self, write: Coroutine[Any, Any, None]) -> None:
        try:
            await write
        except OwnershipLost:
            await self._fenced_off()
            raise
