"""Mutants of what user code does with checkpoints, and of poison that stops a partition."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from pumphouse.events import Event
from pumphouse.processor import handlers
from pumphouse.processor.checkpointing import PartitionCheckpoint, Progress
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.handlers import Blame
from pumphouse.processor.handling.batches import Batches
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy
from pumphouse.processor.supervisor import PartitionSupervisor
from pumphouse.simulation.run import OPTIONS
from tests.simulation.mutants.mutant import Patch, mutant

MANUAL = replace(OPTIONS, checkpoints=CheckpointPolicy())
STOP = replace(OPTIONS, poison=PoisonPolicy(retries=3))


# -- what a checkpoint covers ---------------------------------------------------------------------


@mutant("I5", face="push")
def close_checkpoints_what_was_handed_out(patch: Patch) -> None:
    """A checkpoint in `close` or `process_error` passes a batch that has failed."""
    patch.setattr(Progress, "covered", lambda self: self.last)


@mutant("I5", face="pull")
def a_finally_block_checkpoints_the_failed_batch(patch: Patch) -> None:
    """The exception that leaves the user's loop is not noticed.

    Two rules prevent it: a checkpoint while an exception is handled does not cover the current
    batch, and a loop that is left ends at once. Both are broken here: the loop ends some time
    later, as that of an asynchronous generator would.
    """

    def covered(self: Progress) -> Event | None:
        return self.last_in_hand or self.handled

    def freed(self: Batches) -> None:
        if self._entered and not self._left and self._loop is not None:
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon(self._end)

    patch.setattr(Progress, "covered", covered)
    patch.setattr(Batches, "__del__", freed)


@mutant("I5", face="handler")
def a_finally_block_of_a_handler_checkpoints_the_failed_batch(patch: Patch) -> None:
    """The exception that leaves the handler is not noticed."""

    def claimed(self: Progress) -> Event | None:
        return self.last_in_hand if self.is_in_handler else None

    patch.setattr(Progress, "claimed", property(claimed))


@mutant("I5", face="functions")
def a_current_event_covers_its_batch(patch: Patch) -> None:
    """A checkpoint in `on_message` covers events behind its own."""
    original = Progress.begin

    def begin(self: Progress, events: list[Event]) -> None:
        original(self, events)
        self._in_hand = [] if self.last is None else [self.last]

    patch.setattr(Progress, "begin", begin)


# -- who is to blame ------------------------------------------------------------------------------


@mutant("I16", face="push")
def a_failing_store_raises_in_the_handler(patch: Patch) -> None:
    """A checkpoint of the user is not retried."""
    patch.setattr(PartitionCheckpoint, "write_while_owner", PartitionCheckpoint.write)


@mutant("I16", face="push")
def an_outage_counts_as_an_attempt(patch: Patch) -> None:
    """A hub that is away in a handler makes good events poison."""
    original = handlers.blame

    def blame(error: BaseException) -> Blame:
        decision = original(error)
        return Blame.HANDLER if decision is Blame.OUTAGE else decision

    patch.setattr(handlers, "blame", blame)


# -- leaving and resuming -------------------------------------------------------------------------


@mutant("I6", options=MANUAL, face="push")
def manual_checkpoints_are_all_there_is(patch: Patch) -> None:
    """A clean move repeats what the handler has not checkpointed itself."""
    original = PartitionCheckpoint.finish

    async def finish(self: PartitionCheckpoint, *, clean: bool) -> None:
        if self._options.checkpoints.on:
            await original(self, clean=clean)

    patch.setattr(PartitionCheckpoint, "finish", finish)


@mutant("I3", options=STOP, face="push")
def a_partition_that_poison_stopped_is_not_resumed(patch: Patch) -> None:
    patch.setattr(PartitionSupervisor, "resume", lambda self: None)


@mutant("I3", options=STOP, face="fixed")
def a_fixed_host_does_not_report_its_poison(patch: Patch) -> None:
    """No operator is notified."""
    original = FixedPartitionProcessor._failed

    async def failed(
        self: FixedPartitionProcessor, partition: str | None, error: Exception
    ) -> None:
        if type(error).__name__ != "PoisonEvent":
            await original(self, partition, error)

    patch.setattr(FixedPartitionProcessor, "_failed", failed)
