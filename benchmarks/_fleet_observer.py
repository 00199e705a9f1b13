"""Observes a fleet: owners, moves, handled events and store calls.

The observer is called for every row that is written, every host that dies and every batch that is
handled. Counting starts at `begin`.

    store, hosts, handlers -> FleetObserver -> Measured
                              ^^^^^^ this module
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pumphouse.errors import StoreMisused
from pumphouse.leases.model import Checkpoint, Ownership
from pumphouse.simulation.loop import HostProcess


class Measured(NamedTuple):
    """The results of a scenario, counted from the change of the fleet."""

    seconds: float | None  # until it stayed even; None if it never did
    moves: int  # of a partition from one living owner to another
    spread: int  # between the most and the fewest partitions at the end
    handed: int  # partitions that changed their owner
    again: int  # events that a handler got again
    missed: int  # events that were not handled at the end
    unowned_s: float  # partitions without a living owner, times seconds
    calls: int  # to the store, without checkpoints of events


@dataclass(slots=True)
class FleetObserver:
    """The state and the counts of one fleet."""

    partitions: tuple[str, ...]
    now_s: Callable[[], float]
    live: set[str] = field(default_factory=set)  # hosts
    owners: dict[str, str] = field(default_factory=dict)
    served_by: dict[str, str] = field(default_factory=dict)  # last owner by partition
    begun: dict[str, set[int]] = field(default_factory=dict)  # events passed to a handler
    handled: dict[str, set[int]] = field(default_factory=dict)  # events whose handler returned
    calls: int = 0
    moves: int = 0
    handed: int = 0
    again: int = 0
    unowned_s: float = 0.0
    uneven_s: float = 0.0  # the last time at which it was not even
    began_s: float = 0.0
    failures: list[str] = field(default_factory=list)  # hosts that failed by themselves
    _seen_s: float = 0.0

    def begin(self) -> None:
        """Count from now on."""
        self._pass()
        self.calls = self.moves = self.handed = self.again = 0
        self.unowned_s, self.began_s, self.uneven_s = 0.0, self.now_s(), self.now_s()

    def _pass(self) -> None:
        """Add the time since the last change, during which the state was as it is now."""
        now_s = self.now_s()
        unowned = sum(self.owners.get(p, "") not in self.live for p in self.partitions)
        self.unowned_s += unowned * (now_s - self._seen_s)
        self._seen_s = now_s
        if not self.even:
            self.uneven_s = now_s

    @property
    def counts(self) -> dict[str, int]:
        counter = Counter(self.owners.values())
        return {host: counter[host] for host in self.live}

    @property
    def spread(self) -> int:
        return max(self.counts.values()) - min(self.counts.values())

    @property
    def even(self) -> bool:
        return sum(self.counts.values()) == len(self.partitions) and self.spread <= 1

    def came(self, host: str) -> None:
        self._pass()
        self.live.add(host)

    def went(self, host: str) -> None:
        self._pass()
        self.live.discard(host)

    def wrote(self, partition: str, owner: str) -> None:
        self._pass()
        before = self.owners.get(partition, "")
        self.owners[partition] = owner
        self.moves += bool(owner) and before in self.live and owner != before
        if owner:
            self.handed += self.served_by.get(partition, owner) != owner
            self.served_by[partition] = owner
        if not self.even:
            self.uneven_s = self.now_s()

    def given(self, partition: str, sequences: Sequence[int]) -> None:
        """A handler is called with these events."""
        begun = self.begun.setdefault(partition, set())
        self.again += sum(sequence in begun for sequence in sequences)
        begun.update(sequences)

    def done(self, partition: str, sequences: Sequence[int]) -> None:
        """The handler has returned."""
        self.handled.setdefault(partition, set()).update(sequences)

    def measured(self, ends: dict[str, int]) -> Measured:
        """The results; `ends` are event counts by partition that must be handled by now."""
        self._pass()
        missed = sum(end - sum(n < end for n in self.handled.get(p, ())) for p, end in ends.items())
        seconds = self.uneven_s - self.began_s if self.even else None
        return Measured(
            seconds,
            self.moves,
            self.spread,
            self.handed,
            self.again,
            missed,
            self.unowned_s,
            self.calls,
        )

    def reported(self, partition: str | None, failed: Exception) -> None:
        """An error report of a host: it may lose a partition, but must not end by itself."""
        if isinstance(failed, ExceptionGroup):
            self.failures.append(f"{failed!r} {failed.exceptions!r}")

    # -- as the observer of a simulated store -----------------------------------------------------

    def row_written(self, process: HostProcess, before: Ownership | None, row: Ownership) -> None:
        self.wrote(row.partition, row.owner)

    def row_granted(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """Not counted."""

    def row_received(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """Not counted."""

    def checkpoint_sent(self, process: HostProcess, mark: Checkpoint) -> None:
        """Not counted."""

    def checkpoint_written(
        self, process: HostProcess, before: Checkpoint | None, mark: Checkpoint
    ) -> None:
        """Not counted."""

    def store_misused(self, process: HostProcess, why: StoreMisused) -> None:
        raise why

    def store_failed(self, process: HostProcess, kind: str, partitions: Sequence[str]) -> None:
        raise AssertionError("the store of a benchmark has no faults")
