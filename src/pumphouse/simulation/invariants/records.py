"""The invariants by name, and the records of every partition that the checks keep.

INVARIANTS, Violation, HandlerCall, TermRecord, KeyedTerm, PartitionRecord, Figures -> Checks
^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pumphouse.simulation.loop import HostProcess

INVARIANTS = {
    "I0": "a host never fails by itself, and no error is lost",
    "I1": "one accepted writer per partition and epoch, epochs rise, and a host without a lease "
    "handles nothing",
    "I2": "on a clean move the old handler has returned before the new one starts",
    "I3": "no gaps: every event after the start position is handled",
    "I4": "order within a partition",
    "I5": "a checkpoint never passes an event that was not handled, and never goes back",
    "I6": "a clean move causes no duplicates; events before the checkpoint never come again",
    "I7": "after a change, shares soon differ by at most one, and then nothing moves",
    "I8": "an unowned partition is claimed within a lease and an interval",
    "I9": "every live host gets its share",
    "I10": "calls to the store stay within their budget",
    "I11": "a partition whose handler is stuck is reported",
    "I12": "a hand-over never outlives its deadline",
    "I13": "stop() ends in time, and leaves no row in the host's name",
    "I15": "the start position is final before the first event is read",
    "I16": "a failure of the store or the hub in a handler never counts as the handler's failure",
    "I18": "expired events after the checkpoint are reported before later events are handled",
    "I22": "with concurrency, the events of a key are handled in order, one call at a time, and no "
    "more handlers run at once than allowed",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated invariant: which one, when, and what happened."""

    name: str
    at_s: float
    text: str
    partition: str = ""

    def __str__(self) -> str:
        return f"{self.name} at {self.at_s:.3f}: {self.text} ({INVARIANTS[self.name]})"


@dataclass(slots=True)
class HandlerCall:
    """One call of a handler with a batch."""

    process: HostProcess
    client: Any
    partition: str
    first: int
    last: int
    at_s: float
    frozen_s: float  # how long its process had been frozen in total when the call began
    sent_s: float | None = None  # when its first event was sent
    numbers: tuple[int, ...] = ()  # with concurrency: its events, which may have gaps
    key: str | None = None  # with concurrency: the key of its events
    batch: object = None  # with concurrency: identifies the batch of which it is a part


@dataclass(slots=True)
class TermRecord:
    """The events of one ownership term: a new partition client starts from the checkpoint."""

    client: Any
    expected: int  # the next event that must come
    handled: int = -1  # the last event that was handled
    handled_s: float = 0.0  # when it was handled
    left: bool = False  # the user's own loop has raised


@dataclass(slots=True)
class KeyedTerm(TermRecord):
    """A term with concurrency: `expected` is the first event that it has not handled.

    `handled` is the last handled event before that one: a checkpoint may cover it.
    """

    start: int = 0  # the first event after the checkpoint
    beyond: set[int] = field(default_factory=set)  # handled, above `expected`
    failed: set[int] = field(default_factory=set)  # events of the calls that raised last
    # By key: how many of the key's events, in PartitionRecord.by_key, have come.
    reached: dict[str | None, int] = field(default_factory=dict)
    active_s: float = 0.0  # when a call last began or ended before the client had to end

    def index(self, key: str | None, numbers: list[int]) -> int:
        """The index of the next event of a key, in the numbers of all its events."""
        return self.reached[key] if key in self.reached else bisect_left(numbers, self.start)


@dataclass(slots=True)
class PartitionRecord:
    """Everything that the checks know of one partition."""

    handled: int = -1  # this event and all before it were handled
    handled_beyond: set[int] = field(default_factory=set)  # handled, with a gap before them
    last_handled: int = -1  # the last that a handler has handled
    running: list[HandlerCall] = field(default_factory=list)
    terms: dict[HostProcess, TermRecord] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)  # by epoch
    owner_processes: dict[int, HostProcess] = field(default_factory=dict)  # by epoch
    checkpoint_writers: dict[int, HostProcess] = field(default_factory=dict)  # by epoch
    lease_sent_s: dict[HostProcess, float] = field(default_factory=dict)  # of its granted write
    lease_epoch: dict[HostProcess, int] = field(default_factory=dict)  # of that write
    owner_changed_s: float = 0.0
    deadline_s: float | None = None  # of the waiting successor
    earliest_deadline_s: float | None = None  # the earliest deadline of this term
    # The earliest deadline that each owner has received, by process and epoch.
    received_deadline_s: dict[tuple[HostProcess, int], float] = field(default_factory=dict)
    # When a write of its checkpoint last failed, by process.
    checkpoint_failed_s: dict[HostProcess, float] = field(default_factory=dict)
    poison: set[int] = field(default_factory=set)  # events that no handler can handle
    # Events on which a handler raises until an operator has repaired it.
    broken: set[int] = field(default_factory=set)
    first_retained: int = 0  # the oldest event that retention has left
    # Missing events as reported, from the first to the last, by process.
    reported_losses: dict[HostProcess, list[tuple[int, int]]] = field(default_factory=dict)
    user_raised_s: float | None = None  # when the user's handler raised; None after a success
    uncheckpointed_s: float | None = None  # since when a handled event is in no checkpoint
    by_key: dict[str | None, list[int]] = field(default_factory=dict)  # with concurrency
    # When another host took the partition from a process, without its doing.
    taken_s: dict[HostProcess, float] = field(default_factory=dict)

    def mark_handled(self, first: int, last: int) -> int:
        """Record that these events were handled; returns how many of them are duplicates."""
        duplicates = 0
        for number in range(first, last + 1):
            if number <= self.handled or number in self.handled_beyond:
                duplicates += 1
            else:
                self.handled_beyond.add(number)
        while self.handled + 1 in self.handled_beyond:
            self.handled += 1
            self.handled_beyond.discard(self.handled)
        return duplicates

    def first_unreported(self, process: HostProcess, first: int, end: int) -> int | None:
        """The first missing event from `first` to before `end` that this process did not report."""
        reported = self.reported_losses.get(process, [])
        for number in range(first, end):
            if number not in self.poison and not any(a <= number <= b for a, b in reported):
                return number
        return None

    def has_reported(self, process: HostProcess, number: int) -> bool:
        """Whether this process has reported this event as missing."""
        return any(a <= number <= b for a, b in self.reported_losses.get(process, []))

    def next_expected(self, term: TermRecord) -> int:
        """The next event of a term if every poisoned event before it is skipped."""
        expected = term.expected
        while expected in self.poison:
            expected += 1
        return expected


@dataclass(slots=True)
class Figures:
    """The figures of a run that reports show."""

    moves: int = 0
    claims: int = 0
    releases: int = 0
    handled: int = 0  # events
    duplicates: int = 0  # events that were handled again
    expired: int = 0  # events that retention removed before they were handled
    batches: int = 0
    left_early: int = 0  # loops that ended because a handler raised
    by_hand: int = 0  # checkpoints that user code wrote itself
    resumed: int = 0  # partitions that an operator resumed after poison had stopped them
    worst_gap_s: float = 0.0  # the longest time between sending and handling an event
    stuck_reports: int = 0
    reports: Counter[str] = field(default_factory=Counter)
