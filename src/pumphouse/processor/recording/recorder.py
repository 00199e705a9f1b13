"""Recorder: what a host calls when something has happened that metrics or spans show.

    engine, lease table, partition client -> Recorder -> HostTraces -> HostMetrics
                                             ^^^^^^^^ this module

The two classes here record nothing. A host that is created while nothing can read its metrics and
spans uses them, so it pays for empty calls only, a few for each batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from pumphouse.events import Event
from pumphouse.leases.model import Group
from pumphouse.leases.store import CheckpointStore, ClaimOutcome

if TYPE_CHECKING:
    from pumphouse.processor.lease_table import LeaseTable
    from pumphouse.processor.supervisor import PartitionSupervisor

# What one recorded processing of a partition is: a turn of the loop over its batches, a call of a
# handler with a batch, or a call with one event of it.
LOOP, CALL, EVENT = "loop", "call", "event"
LEFT_LOOP = "_OTHER"  # the error type of the conventions for an unknown error

CLAIM, RENEW, REQUEST, RELEASE = "claim", "renew", "request", "release"
RAISE_EPOCH, LOSE = "raise_epoch", "lose"
OK, LOST, FAILED = "ok", "lost", "failed"

NOTHING: AbstractContextManager[None] = nullcontext()


class CallRecorder:
    """Records how the events of one partition are processed, one batch at a time.

    A handler is called within a turn of the loop, and may be called for each event of a batch. So
    only one of the three is recorded: the innermost that the API of the host has.
    """

    def use(self, unit: str) -> None:
        """Record this unit from now on, instead of the loop."""

    def begin(self, unit: str, events: Sequence[Event]) -> None:
        """The processing of these events begins."""

    def end(self, unit: str, error: str = "") -> None:
        """It has ended, with an error of this type."""

    def calling(self, unit: str, events: Sequence[Event]) -> AbstractContextManager[None]:
        """Around the call of a handler with these events."""
        return NOTHING


class Recorder:
    """Records what one host does."""

    def metered(self, store: CheckpointStore) -> CheckpointStore:
        """The store, with its requests recorded."""
        return store

    def open(
        self, group: Group, leases: LeaseTable, supervisors: Mapping[str, PartitionSupervisor]
    ) -> None:
        """The host has connected."""

    def close(self) -> None:
        """The host has ended."""

    def completed_cycle(self, seconds: float) -> None:
        """A cycle has ended, successfully or not."""

    def wrote(self, operation: str, outcomes: Sequence[ClaimOutcome]) -> None:
        """The lease table has written these rows."""

    def changed_ownership(self, event: str, partition: str) -> None:
        """A change of ownership was logged as this event."""

    def poisoned(self, end: str) -> None:
        """An event failed in every attempt; `end` is what happened to it."""

    def expired(self, events: int) -> None:
        """Events were gone before they were read."""

    def checkpointing(self, partition: str) -> AbstractContextManager[None]:
        """Around a write of a checkpoint."""
        return NOTHING

    def calls(self, partition: str) -> CallRecorder:
        """For a new client of this partition."""
        return NO_CALLS


NO_CALLS = CallRecorder()
NO_RECORDER = Recorder()
