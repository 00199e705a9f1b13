"""One partition of a query that shares its consumer group: its state, position and checkpoint.

The engine of the processors calls `serve` for each ownership term, as it calls a handler. Nothing
is read here: tasks of Spark read, in other processes. `serve` waits until Spark has committed the
batch in flight, writes the checkpoint, and returns; then the engine hands the partition over.

    engine -> TenantPartition.serve -> (planned, committed) -> checkpoint -> engine hands it over
              ^^^^^^^^^^^^^^^ this module

All methods run in the event loop of the tenant host.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from pumphouse.errors import StoreError
from pumphouse.events import Event
from pumphouse.logs import RepeatedFailures, line
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import StopReason
from pumphouse.spark.lag.known_positions import KnownPosition
from pumphouse.spark.tenancy.journal import JournalRange, Loss, resume_position
from pumphouse.spark.tenancy.states import OWNED_STATES, Change, State, may_plan, next_state

log = logging.getLogger("pumphouse.spark")

CLEAN_STOPS = (StopReason.HAND_OFF, StopReason.SHUTDOWN)
RETRY_S = 1.0  # after the store has not accepted a checkpoint
CHECK_STORE = "check that the store is reachable: the partition is handed over after this write"


@dataclass(frozen=True, slots=True)
class PlannedRange:
    """What the batch in flight reads of a partition, and the ownership term that planned it."""

    range: JournalRange
    term: PartitionClient


class TenantPartition:
    """A partition as one run of a query sees it, through all its ownership terms."""

    def __init__(
        self, name: str, *, checkpoints: bool = True, committed: JournalRange | None = None
    ) -> None:
        self.name = name
        self.position: int | None = None  # the next event to plan; None: the options decide
        self.in_flight: PlannedRange | None = None
        self.committed = committed  # by the last batch before this run; used by the first term
        self.loss: Loss | None = None  # reported until the partition is claimed again
        self.checkpoints = checkpoints
        self._state = State.NOT_OWNED
        self._term: PartitionClient | None = None
        self._unwritten: tuple[KnownPosition, int] | None = (
            None  # the last committed event without a checkpoint, and the number of such events
        )
        self._writing = False
        self._changed = asyncio.Event()
        self._failures = RepeatedFailures()

    def __repr__(self) -> str:
        return f"<TenantPartition {self.name} | {self.state.value} | at {self.position}>"

    # -- state ------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state, updated first if the engine has stopped the term or lost it."""
        if self._term is not None and self._term.reason is not None:
            clean = self._term.reason in CLEAN_STOPS and self._term.live
            self._apply(Change.STOP_REQUESTED if clean else Change.OWNERSHIP_LOST)
        return self._state

    def _apply(self, change: Change) -> None:
        self._state = next_state(self._state, change)

    @property
    def term(self) -> PartitionClient:
        assert self._term is not None, f"partition {self.name} is not owned"
        return self._term

    @property
    def is_owned(self) -> bool:
        return self._term is not None

    @property
    def is_live(self) -> bool:
        """Whether the lease lets us act as the owner at this moment."""
        return self._term is not None and self._term.live

    @property
    def is_leaving(self) -> bool:
        """Whether we own it, and nothing more of it may be planned."""
        return self.is_owned and not (may_plan(self.state) and self.is_live)

    @property
    def is_planned_by_this_term(self) -> bool:
        """Whether the present term planned the range in flight."""
        return self.in_flight is not None and self.is_live and self.in_flight.term is self._term

    @property
    def has_unwritten(self) -> bool:
        """Whether a checkpoint is still to be written, and we may write it."""
        return self.is_live and (self._unwritten is not None or self._writing)

    # -- batches ----------------------------------------------------------------------------------

    def plan(self) -> None:
        """Record that a batch is being planned: no hand-over before `end_batch`."""
        self._apply(Change.BATCH_PLANNED)

    def put_in_flight(self, planned: JournalRange) -> None:
        """Record that the batch in flight reads this range, planned in the present term."""
        self.in_flight = PlannedRange(planned, self.term)
        self.position = planned.last

    def end_batch(self) -> None:
        """Record that no batch in flight reads the partition any more."""
        self._apply(Change.BATCH_ENDED)
        self.wake()

    def commit(self, planned: PlannedRange, last: KnownPosition | None) -> None:
        """Record a commit; `last` is the last event of the range. Ignored if its term has ended."""
        if planned.term is not self._term:
            return
        if last is not None and self.checkpoints:
            unwritten_events = self._unwritten[1] if self._unwritten is not None else 0
            self._unwritten = (last, unwritten_events + planned.range.count)
        self.end_batch()

    def rewind(self, planned: PlannedRange) -> None:
        """The batch was never run: its range is planned again."""
        if planned.term is self._term:
            self.position = planned.range.first

    def start_at(self, position: int, before: KnownPosition | None) -> None:
        """Start a partition that has no checkpoint.

        `before` is the event before `position`. It is written as the checkpoint, so that the next
        owner starts at the same event.
        """
        self.position = position
        if before is not None and self.checkpoints:
            self._unwritten = self._unwritten or (before, 0)
            self.wake()

    def wake(self) -> None:
        self._changed.set()

    # -- an ownership term ------------------------------------------------------------------------

    async def serve(self, term: PartitionClient) -> None:
        """Run until the term ends and every committed event is in the checkpoint."""
        self._begin(term)
        watching = asyncio.ensure_future(self._watch(term))
        try:
            while not self._is_finished():
                await self._changed.wait()
                self._changed.clear()
                if self._unwritten is not None and self.is_live:
                    await self._write_checkpoint()
        finally:
            watching.cancel()
            self._end(term)

    def _begin(self, term: PartitionClient) -> None:
        checkpoint, committed = term.start_checkpoint, self.committed
        self._term, self._unwritten, self.loss, self.committed = term, None, None, None
        self.position = resume_position(checkpoint, committed, checkpoints=self.checkpoints)
        self._apply(Change.CLAIMED)
        log.info(
            "%s",
            line(
                "partition_claimed", partition=self.name, epoch=term.epoch, position=self.position
            ),
        )

    def _end(self, term: PartitionClient) -> None:
        if self.state is not State.RELEASED:
            self._apply(Change.OWNERSHIP_LOST)
        self._term = None
        event = f"partition_{self._state.value}"
        log.info(
            "%s", line(event, partition=self.name, epoch=term.epoch, reason=term.reason or "ended")
        )

    async def _watch(self, term: PartitionClient) -> None:
        await term.wait_until_stopping()
        self.wake()

    def _is_finished(self) -> bool:
        if self.state is State.RELEASING and self._unwritten is None:
            self._apply(Change.CHECKPOINTED)
        return self._state not in OWNED_STATES

    async def _write_checkpoint(self) -> None:
        """Write the checkpoint; after a failure of the store, wait a moment or for a change."""
        assert self._unwritten is not None
        (last, events), self._unwritten = self._unwritten, None
        self._writing = True
        try:
            await self.term.write_checkpoint(as_event(last), events)
            self._failures.succeeded(self.name)
        except StoreError as failed:
            self._log_failure(failed)
            self._unwritten = self._unwritten or (last, 0)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._changed.wait()
            self.wake()
        finally:
            self._writing = False

    def _log_failure(self, failed: StoreError) -> None:
        count = self._failures.failed(self.name, failed)
        if count is not None:
            log.warning(
                "%s",
                line(
                    "checkpoint_failed", partition=self.name, error=failed, count=count,
                    todo=CHECK_STORE,
                ),
            )  # fmt: skip


def as_event(known: KnownPosition) -> Event:
    return Event(b"", sequence=known.sequence, offset=known.offset, enqueued_ms=known.enqueued_ms)
