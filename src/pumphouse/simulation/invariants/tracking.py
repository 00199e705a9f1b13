"""What was promised, by name, and what is known of every partition while it is checked.

INVARIANTS, Violation, HandlerCall, TermRecord, PartitionRecord, Figures -> Checks
^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from pumphouse.simulation.loop import HostProcess

INVARIANTS = {
    "I0": "a host never fails by itself, and no error is lost",
    "I1": "one accepted writer per partition and epoch, epochs rise, and who has no lease "
    "handles nothing",
    "I2": "on a clean move the old handler has returned before the new one starts",
    "I3": "no gaps: every event after the start position is handled",
    "I4": "order within a partition",
    "I5": "a checkpoint never passes an event that was not handled, and never goes back",
    "I6": "duplicates: none on a clean move, nothing from before the checkpoint ever",
    "I7": "after the last change the fleet is soon within one of even, and then rests",
    "I8": "an unowned partition is taken within a lease and an interval",
    "I9": "every live host gets its share",
    "I10": "calls to the store stay within their budget",
    "I11": "a partition whose handler is stuck is reported",
    "I12": "a hand-off never outlives its deadline",
    "I13": "stop() ends in time, and leaves nothing in its name",
    "I15": "the position is settled before the first event is read",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken, when, and how it shows."""

    name: str
    at_s: float
    text: str
    partition: str = ""

    def __str__(self) -> str:
        return f"{self.name} at {self.at_s:.3f}: {self.text} ({INVARIANTS[self.name]})"


@dataclass(slots=True)
class HandlerCall:
    """A batch in the hands of a handler."""

    process: HostProcess
    client: Any
    partition: str
    first: int
    last: int
    at_s: float
    frozen_s: float  # how long its host had stood still by then, in all its life
    sent_s: float | None = None  # when its first event was sent


@dataclass(slots=True)
class TermRecord:
    """What one partition client has been handed: a new one starts from the checkpoint."""

    client: Any
    expected: int  # the next event that must come
    done: int = -1  # the last that was handled
    done_s: float = 0.0  # when that was


@dataclass(slots=True)
class PartitionRecord:
    """Everything known of one partition."""

    handled: int = -1  # this and all before it were handled
    beyond: set[int] = field(default_factory=set)  # handled, though something before was not yet
    inside: list[HandlerCall] = field(default_factory=list)
    stays: dict[HostProcess, TermRecord] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)  # by epoch
    users: dict[int, HostProcess] = field(default_factory=dict)  # by epoch: the life of that owner
    writers: dict[int, HostProcess] = field(default_factory=dict)  # of checkpoints, by epoch
    leased_s: dict[HostProcess, float] = field(
        default_factory=dict
    )  # when what was granted was sent
    leased: dict[HostProcess, int] = field(default_factory=dict)  # the epoch of that
    taken_s: float = 0.0  # when it last changed hands
    deadline_s: float | None = None  # of the successor that waits, if one does
    overdue_s: float | None = None  # the same, before the last write
    told: dict[tuple[HostProcess, int], float] = field(
        default_factory=dict
    )  # the same, as owners heard
    unsure_s: dict[HostProcess, float] = field(
        default_factory=dict
    )  # when a checkpoint last failed
    poison: set[int] = field(default_factory=set)  # events that no handler can handle
    first: int = 0  # the oldest event that retention has left
    raised_s: float | None = None  # when somebody's own handler raised, if nothing went well since
    done: int = -1  # the last that a handler has handled
    unmarked_s: float | None = None  # since when one of those is missing in the checkpoint


@dataclass(slots=True)
class Figures:
    """What is worth telling of a run."""

    moves: int = 0
    claims: int = 0
    releases: int = 0
    handled: int = 0  # events
    duplicates: int = 0  # events that were handled again
    expired: int = 0  # events that retention took before anybody had handled them
    batches: int = 0
    left_early: int = 0  # loops that ended because a handler raised
    by_hand: int = 0  # checkpoints that handlers asked for themselves
    worst_gap_s: float = 0.0  # the longest that an event has waited to be handled
    stuck_reports: int = 0
    reports: Counter[str] = field(default_factory=Counter)
