"""Tracks which events of a partition were handled, and writes its checkpoint.

    PartitionClient -> Progress           handed out, current, handled (pure)
                    -> PartitionCheckpoint -> CheckpointWriter -> store
                       ^^^^^^^^^^^^^^^^^^^ pending, due, retried while the lease lasts

* A checkpoint without an event covers what was handled. If the task or the thread of the handler
  requests it, that includes the current batch: the handler itself declares it handled. Elsewhere
  (another task, `close`, an error callback, an `except` block) the current batch does not count: it
  may have failed.
* A store that fails is not the handler's failure. A checkpoint that the user's code requests is
  retried until it is written or the lease has ended. If more checkpoints are requested meanwhile,
  only the newest is retried.
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol

from pumphouse.errors import OptionError, OwnershipLost, PumphouseError, StoreError
from pumphouse.events import Event
from pumphouse.leases.checkpoints import CheckpointWriter
from pumphouse.leases.store import SupportsTransactions
from pumphouse.processor.plan import Pending, add_pending, checkpoint_due_in, sequence_of
from pumphouse.processor.term import Host, OwnershipTerm

RETRY_S = 1.0  # after a checkpoint of the policy could not be written
RETRY_FIRST_S, RETRY_MOST_S = 0.1, 2.0  # while the user's code waits for its checkpoint
JITTER = 0.2


def current_caller() -> object:
    """The task that runs now; in a thread without an event loop, the thread."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()


class Marks(Protocol):
    """How far a partition client has handed out events, and how far they were handled."""

    last: Event | None  # the last event that was handed out
    handled: Event | None  # this event and all before it were handled

    def mark_handled(self, events: list[Event]) -> list[Event]:
        """These events were handled; returns those that `handled` has passed with them."""

    def is_handled(self, event: Event) -> bool:
        """Whether the event was marked as handled."""

    def covering(self, events: list[Event]) -> Event | None:
        """What `handled` would be if these events, which a handler has, were handled too."""

    def reached(self, event: Event, events: list[Event]) -> Event | None:
        """How far a checkpoint at this event may go, if a handler with these events requests it."""


class SerialMarks:
    """One handler at a time, and everything in order."""

    def __init__(self) -> None:
        self.last: Event | None = None
        self.handled: Event | None = None

    def mark_handled(self, events: list[Event]) -> list[Event]:
        if not events:
            return []
        if self.handled is None:
            unmarked = events
        else:
            reached = sequence_of(self.handled)
            unmarked = [event for event in events if sequence_of(event) > reached]
        self.handled = unmarked[-1] if unmarked else self.handled
        return unmarked

    def is_handled(self, event: Event) -> bool:
        return self.handled is not None and sequence_of(event) <= sequence_of(self.handled)

    def covering(self, events: list[Event]) -> Event | None:
        return events[-1]

    def reached(self, event: Event, events: list[Event]) -> Event | None:
        """The caller vouches for all events up to this one."""
        return event


class Progress:
    """The current events of one handler, and the marks of its partition."""

    def __init__(self, marks: Marks | None = None) -> None:
        self._marks = SerialMarks() if marks is None else marks
        self._in_hand: list[Event] = []  # the events that a handler has now
        self._handler: object = None  # the task or the thread that has them
        self._task: object = None  # the task that got them

    @property
    def last(self) -> Event | None:
        """The last event that was handed out."""
        return self._marks.last

    @last.setter
    def last(self, event: Event | None) -> None:
        self._marks.last = event

    @property
    def handled(self) -> Event | None:
        """The last event that was handled, and all before it."""
        return self._marks.handled

    @property
    def last_in_hand(self) -> Event | None:
        return self._in_hand[-1] if self._in_hand else None

    def begin(self, events: list[Event]) -> None:
        """The task that runs now gets these events."""
        self._in_hand = events
        self._task = self._handler = current_caller()

    def enter_thread(self) -> None:
        """The task runs its handler in this thread."""
        self._handler = current_caller()

    def leave_thread(self) -> None:
        """The handler has returned to its task."""
        self._handler = self._task

    def end(self) -> None:
        """No handler has events now: it has returned or raised."""
        self._in_hand = []

    def mark_handled(self, events: list[Event]) -> list[Event]:
        """These events were handled; returns those that were not handled before."""
        return self._marks.mark_handled(events)

    def is_handled(self, event: Event) -> bool:
        return self._marks.is_handled(event)

    @property
    def is_in_handler(self) -> bool:
        """Whether the task or thread that runs now is handling events."""
        return self._handler is not None and self._handler == current_caller()

    def check_handed_out(self, event: Event, partition: str) -> None:
        """OptionError if it is not an event, is of another partition, or was not handed out yet."""
        if not isinstance(event, Event):
            raise OptionError(
                f"checkpoint needs an event (got a {type(event).__name__}): pass events[-1], or "
                "nothing"
            )
        if event.partition is not None and event.partition != partition:
            raise OptionError(
                f"cannot checkpoint event {event.sequence} of partition {event.partition} "
                f"in partition {partition}: use the client of the event's own partition"
            )
        if self.last is None or sequence_of(event) > sequence_of(self.last):
            raise OptionError(
                f"cannot checkpoint event {event.sequence} of partition {partition}: "
                "it was not handed out yet"
            )

    def covered(self) -> Event | None:
        """The last event that a checkpoint without an argument covers, for this caller."""
        return self._marks.covering(self._in_hand) if self.claimed else self.handled

    @property
    def claimed(self) -> Event | None:
        """The last current event, if this caller declares it handled by requesting a checkpoint."""
        if not self._in_hand or not self.is_in_handler or sys.exc_info()[1] is not None:
            return None
        return self._in_hand[-1]

    def reached(self, event: Event) -> Event | None:
        """How far a checkpoint at this event goes, for this caller."""
        return self._marks.reached(event, self._in_hand if self.is_in_handler else [])

    def covered_by_transaction(self) -> Event | None:
        """The event of a transaction without an argument. OptionError if that is not certain.

        In another task or after an exception, the current events may not be handled. The last
        handled event is not the answer either: the rows would be committed without their event.
        """
        if self._in_hand and self.claimed is None:
            raise OptionError(
                "transaction() needs an event in an except block, and in another task than that of "
                "the handler (asyncio.wait_for and asyncio.gather start tasks): pass the event "
                "whose rows it writes, transaction(event)"
            )
        return self.covered()


class PartitionCheckpoint:
    """The checkpoint of one partition client: what is pending, and when it is written.

    One write is under way at a time, always the newest.
    """

    def __init__(self, host: Host, term: OwnershipTerm, writer: CheckpointWriter) -> None:
        self._host, self._term, self.writer = host, term, writer
        self._clock, self._options = host.clock, host.options
        self._pending: Pending | None = None  # handled, but not in the checkpoint
        self._requested: Event | None = None  # the furthest checkpoint that was requested
        self._awaited: list[int] = []  # a heap: requested, but an event before is not handled yet
        self._retry_s = -math.inf  # the policy writes no checkpoint before this, after a failure
        self._write_lock = asyncio.Lock()
        self._retry_lock = asyncio.Lock()
        self._written: Event | None = None  # the furthest checkpoint that was written
        self.committed: Event | None = None  # the last event of the last transaction
        self._transaction: Event | None = None  # the event of the open transaction
        self._written_s = -math.inf  # when that was

    def add(self, handled: list[Event]) -> None:
        if handled:
            self._pending = add_pending(self._pending, handled, self._clock.monotonic())

    def request(self, event: Event, covered: Event | None) -> None:
        """If other handlers hold a checkpoint at this event up, write it when they have ended."""
        if covered is None or sequence_of(covered) < sequence_of(event):
            heappush(self._awaited, sequence_of(event))

    @property
    def due_in_s(self) -> float:
        now_s = self._clock.monotonic()
        due_s = checkpoint_due_in(self._options.checkpoints, self._pending, now_s)
        return max(0.0 if self._is_reached else due_s, self._retry_s - now_s)

    @property
    def _is_reached(self) -> bool:
        """Whether what is pending reaches an event whose checkpoint is awaited."""
        pending, awaited = self._pending, self._awaited
        return bool(pending and awaited and awaited[0] <= sequence_of(pending.last))

    @property
    def age_s(self) -> float:
        """Seconds since the last checkpoint, or since the first handled event after it.

        0 if all handled events are in the checkpoint. Called in other threads too.
        """
        if (pending := self._pending) is None or self._is_written(pending.last):
            return 0.0
        return max(0.0, self._clock.monotonic() - max(pending.since_s, self._written_s))

    async def write_if_due(self) -> None:
        """Write the pending checkpoint if it is due. A failing store does not block reading."""
        if self.due_in_s > 0 or self._pending is None:
            return
        try:
            await self.write(self._pending.last)
        except StoreError as error:
            self._retry_s = self._clock.monotonic() + RETRY_S
            self._failed(error)

    async def finish(self, *, clean: bool) -> None:
        """Write what is pending when the service ends. `clean`: the partition moves or stops."""
        options = self._options
        if self._pending is None or not (
            options.checkpoint_on_stop if clean else options.checkpoints.on
        ):
            return
        await self.write_while_owner(self._pending.last)

    def discard(self) -> None:
        """Write no checkpoint of what was handled: its hub no longer exists."""
        self._pending = None

    async def write_while_owner(self, event: Event) -> None:
        """Write the checkpoint, with retries while the lease lasts. OwnershipLost after that.

        One caller retries and reports. The others wait for it: a store that fails would otherwise
        get more requests, and the error callback more calls, the longer it fails.
        """
        self._request(event)
        waits = self._retry_lock.locked()
        async with self._retry_lock:
            if not (waits and self._is_written(event)):
                await self._retry(event)

    async def _retry(self, event: Event) -> None:
        failures = 0
        while True:
            try:
                return await self.write(event)
            except StoreError as error:
                failures += 1
                self._failed(error)
            await self._clock.sleep(retry_delay_s(failures, self._host.rng))
            if not self._term.has_lease:
                raise OwnershipLost(self._term.partition, self._term.epoch)

    async def write(self, event: Event) -> None:
        """Write the checkpoint at this event. OwnershipLost if we may not.

        A batch that is handled again requests its checkpoints again: the furthest one counts.
        """
        async with self._write_lock:
            event, before = self._request(event), self._pending
            await self._advance(event)
            self._written, self._written_s = event, self._clock.monotonic()
            while self._awaited and self._awaited[0] <= sequence_of(event):
                heappop(self._awaited)
        self._host.reporter.recovered("checkpoint_failed", self._term.partition)
        self._remove_pending(event, before)

    def _remove_pending(self, written: Event, before: Pending | None) -> None:
        """What was pending before the write, and is written. Handlers may continue meanwhile."""
        pending, reached = self._pending, sequence_of(written)
        if pending is None or sequence_of(pending.last) <= reached:
            self._pending = None
        elif self._options.key_order and before and sequence_of(before.last) <= reached:
            left = pending.events - before.events
            self._pending = Pending(pending.last, left, self._clock.monotonic())

    @asynccontextmanager
    async def transaction(self, event: Event) -> AsyncGenerator[Any, None]:
        """A transaction that records this event as handled. OptionError if the store has none."""
        if not isinstance(self._host.store, SupportsTransactions):
            raise OptionError(
                "this store has no transactions: use a store in PostgreSQL, in the database of "
                "your rows (postgres://USER@HOST/DATABASE)"
            )
        self._check_only_transaction(event)
        position = sequence_of(event), event.offset, event.enqueued_ms
        self._transaction = event
        try:
            async with self.writer.transaction(self._host.store, *position) as connection:
                yield connection
        finally:
            self._transaction = None
        self.committed = self._written = self._request(event)
        if self._pending is not None and sequence_of(self._pending.last) <= sequence_of(event):
            self._pending = None

    def _check_only_transaction(self, event: Event) -> None:
        """OptionError if the end of this transaction, or of the open one, would be refused."""
        if self._transaction is not None:
            open_at, state = sequence_of(self._transaction), "is open"
        elif self.committed is not None and sequence_of(event) <= sequence_of(self.committed):
            open_at, state = sequence_of(self.committed), "has committed"
        else:
            return
        raise OptionError(
            f"event {event.sequence} of partition {self._term.partition} cannot have a transaction "
            f"of its own: that of event {open_at} {state}. Write all rows of the current events in "
            "one transaction, or those of each event, in order, in one"
        )

    def uncommitted(self, batch: list[Event]) -> list[Event]:
        """The events that no transaction has committed."""
        if self.committed is None:
            return batch
        reached = sequence_of(self.committed)
        return [event for event in batch if sequence_of(event) > reached]

    def _request(self, event: Event) -> Event:
        """Note a requested checkpoint; returns the event of the furthest one so far."""
        if self._requested is None or sequence_of(event) > sequence_of(self._requested):
            self._requested = event
        return self._requested

    def _is_written(self, event: Event) -> bool:
        return self._written is not None and sequence_of(event) <= sequence_of(self._written)

    async def _advance(self, event: Event) -> None:
        partition, deadline_s = self._term.partition, self._options.store_s
        try:
            with self._host.reporter.recorder.checkpointing(partition):
                async with asyncio.timeout(deadline_s):
                    await self.writer.advance(sequence_of(event), event.offset, event.enqueued_ms)
        except PumphouseError:
            raise
        except TimeoutError:
            raise StoreError(
                f"the checkpoint of partition {partition} was not written within {deadline_s:g} s"
            ) from None
        except Exception as error:  # a store of the user's own; the handler is not to blame
            raise StoreError(
                f"the checkpoint of partition {partition} was not written: {error!r}"
            ) from error

    def _failed(self, error: Exception) -> None:
        self._host.reporter.failed("checkpoint_failed", self._term.partition, error)


def retry_delay_s(failures: int, rng: Random) -> float:
    """Seconds before a checkpoint that failed this many times in a row is written again."""
    full_s = min(RETRY_MOST_S, RETRY_FIRST_S * 2.0 ** min(failures - 1, 30))
    return full_s * (1 - JITTER * rng.random())
