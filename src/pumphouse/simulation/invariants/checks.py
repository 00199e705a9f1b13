"""The guarantees, each a check with a name: what was promised, and whether it was kept.

Everything that takes effect passes here: rows and checkpoints as the store grants them, readers as
the hub admits them, events as handlers are called with them. What breaks a promise becomes a
Violation; the run goes on, so that its history can be shown.

    store, hub, handlers, fleet -> Checks -> violations
                                   ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from pumphouse.client.base import ReaderOptions
from pumphouse.errors import HandlerStuck, StoreMisused
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint, Ownership
from pumphouse.processor.options import STOP, ProcessorOptions
from pumphouse.processor.plan import WHOLE_S
from pumphouse.processor.term import StopReason
from pumphouse.simulation.history import History
from pumphouse.simulation.invariants.tracking import (
    Figures,
    HandlerCall,
    PartitionRecord,
    TermRecord,
    Violation,
)
from pumphouse.simulation.loop import WALL_S, HostProcess

TOLERANCE_S = 0.05  # for clocks that run a little fast or slow
DRIFT_MAX = 0.0001  # of a host's clock, as the faults have it
LAST_WRITE_S = 1.0  # who has less left of its lease may be too late for a last checkpoint


class Checks:
    """Watches a fleet. `calm` is set while no faults are made."""

    def __init__(self, history: History, options: ProcessorOptions, *, grabs: bool) -> None:
        self.history, self.options, self.grabs = history, options, grabs
        self.violations: list[Violation] = []
        self.scene: list[str] = []  # what happened before the first of them
        self.figures = Figures()
        self.handler_failed: str | None = None  # what somebody's own handler raised first
        self.tracks: dict[str, PartitionRecord] = {}
        self.rows: dict[str, Ownership] = {}
        self.marks: dict[str, Checkpoint] = {}
        self.frozen_s: dict[HostProcess, float] = {}  # in all its life
        self._stuck: set[tuple[HostProcess, Any, int]] = set()  # batches that were reported
        self._store_failed_s: dict[HostProcess, float] = {}

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def track(self, partition: str) -> PartitionRecord:
        if partition not in self.tracks:
            self.tracks[partition] = PartitionRecord()
        return self.tracks[partition]

    def add_violation(self, name: str, text: str, partition: str = "") -> None:
        found = Violation(name, self.now_s, text, partition)
        if not self.violations:
            self.scene = self.history.last(60, partition)
        self.violations.append(found)
        self.history.add(found.at_s, "VIOLATION", f"{name} {text}")

    def record(self, kind: str, text: str) -> None:
        self.history.add(self.now_s, kind, text)

    # -- rows --------------------------------------------------------------------------------------

    def row_written(self, process: HostProcess, before: Ownership | None, row: Ownership) -> None:
        partition, now_s = row.partition, self.now_s
        track = self.track(partition)
        self.rows[partition] = row
        known = (track.overdue_s, track.deadline_s)
        # The earliest of a stay: who has missed one deadline has lost it, whoever asks next.
        track.overdue_s = min((at_s for at_s in known if at_s is not None), default=None)
        track.deadline_s = None
        if row.deadline_s is not None and row.successor:
            track.deadline_s = now_s + row.deadline_s
        epoch, owner = (before.epoch, before.owner) if before is not None else (0, "")
        if row.epoch < epoch:
            self.add_violation(
                "I1", f"the epoch of {partition} fell from {epoch} to {row.epoch}", partition
            )
        if row.owner and row.owner != owner:
            if row.epoch <= epoch:
                text = (
                    f"{partition} goes from {owner or 'nobody'} to {row.owner}, epoch {row.epoch}"
                )
                self.add_violation("I1", text, partition)
            self._changed_hands(track, process, owner, row)
        elif not row.owner:
            self.figures.releases += 1
        if row.owner == process.name and track.owners.get(row.epoch) != row.owner:
            self._claimed(track, process, row)
        if owner == process.name and row.owner != owner:
            self._given_up(track, process, before, row)
        words = f"{partition} {row.owner or '-'} epoch {row.epoch}"
        waits = "" if row.deadline_s is None else f" within {row.deadline_s:.3f}"
        self.record(
            "row", f"{process} writes {words}{f' for {row.successor}' * bool(row.successor)}{waits}"
        )
        if (row.owner, row.epoch) != (owner, epoch):
            track.overdue_s = None

    def row_answered(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """A host has heard that a write of its own was granted: its lease runs from there.

        Heard after its lease ran out, a renewal gives nothing back. One that was sent after that is
        a claim anew.
        """
        track = self.track(row.partition)
        since_s, epoch = track.leased_s.get(process, 0.0), track.leased.get(process, 0)
        # By its own clock, which may be slow: it cannot know better.
        lease_s = self.options.lease_s * (1 + DRIFT_MAX)
        late = row.epoch == epoch and sent_s < since_s + lease_s <= self.now_s
        if row.owner == process.name and not late:
            track.leased_s[process], track.leased[process] = sent_s, row.epoch
            if sent_s >= since_s + lease_s:
                self._begin(track, process.name)

    def row_heard(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """An owner is told who has asked for its partition, and until when that one waits.

        How old the word is it cannot know: it counts from when it asked.
        """
        if row.owner != process.name or not row.successor or row.deadline_s is None:
            return
        told, until_s = self.track(row.partition).told, sent_s + row.deadline_s
        told[process, row.epoch] = min(told.get((process, row.epoch), math.inf), until_s)

    def _changed_hands(
        self, track: PartitionRecord, process: HostProcess, owner: str, row: Ownership
    ) -> None:
        track.taken_s = self.now_s
        self.figures.claims += not owner
        self.figures.moves += bool(owner)
        if row.owner != process.name:
            track.owners[row.epoch] = row.owner
            self._begin(track, row.owner)

    def _claimed(self, track: PartitionRecord, process: HostProcess, row: Ownership) -> None:
        other = track.owners.get(row.epoch)
        if other is not None:
            text = f"epoch {row.epoch} of {row.partition} belonged to {other}, now to {row.owner}"
            self.add_violation("I1", text, row.partition)
        track.owners[row.epoch] = row.owner
        track.users[row.epoch] = process
        self._begin(track, row.owner)

    def _begin(self, track: PartitionRecord, owner: str) -> None:
        """It may have lost it before, and what it handled then was never checkpointed: over."""
        for process, stay in list(track.stays.items()):
            if process.name == owner and stay.client.reason is not None:
                del track.stays[process]

    def _given_up(
        self, track: PartitionRecord, process: HostProcess, before: Ownership | None, row: Ownership
    ) -> None:
        """The owner itself lets go: nothing of it may be in hand, nothing handled be forgotten."""
        partition = row.partition
        if any(call.process is process for call in track.inside):
            text = f"{process} gives {partition} to {row.owner or 'nobody'} with a batch in hand"
            self.add_violation("I2", text, partition)
        stay = track.stays.get(process)
        mark = self.marks.get(partition)
        written = -1 if mark is None or mark.sequence is None else mark.sequence
        if stay is None or stay.done <= written or not self._sure_of(track, stay, process):
            return
        if before is None or not self._leased(track, process, before.epoch):
            return  # it had lost it before: what it gives back is only its name in the row
        text = f"{process} leaves {partition} at {written}, though it has handled {stay.done}"
        self.add_violation("I6", text, partition)

    def _leased(self, track: PartitionRecord, process: HostProcess, epoch: int) -> bool:
        """Whether this host, by what it has heard, could act as the owner until now."""
        until_s = track.leased_s.get(process, 0.0) + self.options.lease_s
        if track.overdue_s is not None:
            until_s = min(until_s, track.overdue_s - WHOLE_S)
        until_s = min(until_s, track.told.get((process, epoch), math.inf) - WHOLE_S)
        return self.now_s < until_s - LAST_WRITE_S

    def _sure_of(self, track: PartitionRecord, stay: TermRecord, process: HostProcess) -> bool:
        """Whether no fault of the store, since the last batch, can be why a checkpoint is missing.

        A handler that raised after that batch excuses nothing: what it had handled counts. Who
        heard that its row had changed, and could not see how, rightly takes it for lost: then any
        fault since its last renewal excuses it.
        """
        last_s = max(track.unsure_s.get(process, 0.0), self._store_failed_s.get(process, 0.0))
        lost = stay.client.reason is StopReason.LOST
        since_s = track.leased_s.get(process, 0.0) if lost else stay.done_s
        return self.options.checkpoints.on and last_s < since_s

    def misused(self, process: HostProcess, why: StoreMisused) -> None:
        self.add_violation("I12" if "deadline" in str(why) else "I1", f"{process}: {why}")

    def store_failed(self, process: HostProcess, kind: str, partitions: Sequence[str]) -> None:
        for partition in partitions:
            self.track(partition).unsure_s[process] = self.now_s
        if not partitions:
            self._store_failed_s[process] = self.now_s

    # -- checkpoints -------------------------------------------------------------------------------

    def checkpoint_sent(self, process: HostProcess, mark: Checkpoint) -> None:
        """A host writes a checkpoint, whatever comes of it: it may, while its lease lasts."""
        partition = mark.partition
        age_s = self.now_s - self.track(partition).leased_s.get(process, 0.0)
        if age_s > self.options.lease_s + TOLERANCE_S and not process.dead:
            text = (
                f"{process} writes the checkpoint of {partition} {age_s:.3f} s after its last lease"
            )
            self.add_violation("I1", text, partition)

    def checkpoint_written(
        self, process: HostProcess, before: Checkpoint | None, mark: Checkpoint
    ) -> None:
        partition = mark.partition
        track = self.track(partition)
        self.marks[partition] = mark
        if before is not None and mark.epoch < before.epoch:
            text = f"{process} writes {partition} with epoch {mark.epoch} after {before.epoch}"
            self.add_violation("I1", text, partition)
        writer = track.writers.setdefault(mark.epoch, process)
        if writer is not process and not writer.dead:
            text = f"{process} and {writer} both write checkpoints of {partition} with {mark.epoch}"
            self.add_violation("I1", text, partition)
        if track.owners.get(mark.epoch) != process.name:
            text = (
                f"{process} writes the checkpoint of {partition} with {mark.epoch}, not its epoch"
            )
            self.add_violation("I1", text, partition)
        reached = -1 if before is None or before.sequence is None else before.sequence
        wanted = -1 if mark.sequence is None else mark.sequence
        if wanted < reached:
            self.add_violation(
                "I5", f"checkpoint of {partition} back from {reached} to {wanted}", partition
            )
        if wanted > track.handled:
            text = f"checkpoint of {partition} at {wanted}, but {track.handled + 1} was not handled"
            self.add_violation("I5", text, partition)
        track.unmarked_s = self.now_s if wanted < track.done else None
        self.record("checkpoint", f"{process} writes {partition} at {wanted} epoch {mark.epoch}")

    # -- readers -----------------------------------------------------------------------------------

    def opened(self, process: HostProcess, options: ReaderOptions, first: int) -> None:
        partition, epoch = options.partition, options.epoch or 0
        track, mark = self.track(partition), self.marks.get(partition)
        self.record("reader", f"{process} reads {partition} from {first} epoch {epoch}")
        if track.owners.get(epoch) != process.name:
            owner = track.owners.get(epoch, "nobody")
            text = f"{process} reads {partition} with epoch {epoch}, which belongs to {owner}"
            return self.add_violation("I1", text, partition)
        if mark is None or mark.epoch < epoch:
            text = f"{process} reads {partition} with {epoch} before it has stamped the checkpoint"
            return self.add_violation("I15", text, partition)
        if mark.epoch > epoch:
            return None  # a later owner has stamped it: whatever this one does is fenced off
        behind_mark = max(track.first, 0 if mark.sequence is None else mark.sequence + 1)
        stay = track.stays.get(process)
        # A poisoned event may be read once more, or have been skipped already.
        goes_on = stay is not None and stay.expected <= first <= self._next(track, stay)
        if first != behind_mark and not goes_on:
            text = (
                f"{process} reads {partition} from {first}; its checkpoint is at {behind_mark - 1}"
            )
            self.add_violation("I15", text, partition)
        return None

    # -- handlers ----------------------------------------------------------------------------------

    def start(
        self, process: HostProcess, client: Any, epoch: int, batch: Sequence[Event]
    ) -> HandlerCall:
        """A handler is called. `client` is the partition client; a new one may start over."""
        partition, now_s = client.id, self.now_s
        track = self.track(partition)
        numbers = [event.sequence if event.sequence is not None else -1 for event in batch]
        frozen_s, sent_ms = self.frozen_s.get(process, 0.0), batch[0].enqueued_ms
        sent_s = None if sent_ms is None else sent_ms / 1000 - WALL_S
        call = HandlerCall(
            process, client, partition, numbers[0], numbers[-1], now_s, frozen_s, sent_s
        )
        self.record("handle", f"{process} {partition} {call.first}-{call.last} epoch {epoch}")
        self._check_owner(track, process, partition, epoch)
        self._check_order(track, call, numbers)
        self._check_alone(track, call)
        track.inside.append(call)
        self.figures.batches += 1
        return call

    def _check_owner(
        self, track: PartitionRecord, process: HostProcess, partition: str, epoch: int
    ) -> None:
        row, now_s = self.rows.get(partition), self.now_s
        place = f"{process} handles {partition} with epoch {epoch}"
        if track.owners.get(epoch) != process.name:
            owner = track.owners.get(epoch, "nobody")
            return self.add_violation("I1", f"{place}, which belongs to {owner}", partition)
        user = track.users.setdefault(epoch, process)
        if user is not process and not user.dead:
            return self.add_violation("I1", f"{place}, and so does {user}", partition)
        age_s = now_s - track.leased_s.get(process, 0.0)
        if age_s > self.options.lease_s + TOLERANCE_S:
            text = f"{place}, {age_s:.3f} s after the last write that it knows of"
            return self.add_violation("I1", text, partition)
        if row is None or self.grabs:
            return None
        if row.owner != process.name and now_s - track.taken_s > TOLERANCE_S:
            return self.add_violation(
                "I1", f"{place}, but {row.owner or 'nobody'} owns it", partition
            )
        if row.epoch == epoch and track.deadline_s is not None:
            late_s = now_s - track.deadline_s
            if row.successor and late_s > TOLERANCE_S:
                text = f"{place}, {late_s:.3f} s after the deadline of {row.successor}"
                return self.add_violation("I12", text, partition)
        return None

    def _check_order(self, track: PartitionRecord, call: HandlerCall, numbers: list[int]) -> None:
        partition, stay = call.partition, track.stays.get(call.process)
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            return self.add_violation(
                "I4", f"{call.process} got {numbers} of {partition}", partition
            )
        if stay is None or stay.client is not call.client:
            stay = track.stays[call.process] = TermRecord(call.client, call.first)
            mark = self.marks.get(partition)
            reached = -1 if mark is None or mark.sequence is None else mark.sequence
            row = self.rows.get(partition)
            # Who grabs does not wait: the one before goes on until it hears of it.
            grabbed = self.grabs and row is not None and row.owner != call.process.name
            if call.first <= reached and not grabbed:
                text = f"{call.process} handles {call.first} of {partition} again; it has {reached}"
                self.add_violation("I6", text, partition)
            if call.first > track.handled + 1:
                text = (
                    f"{call.process} starts {partition} at {call.first}; {track.handled} was last"
                )
                self.add_violation("I3", text, partition)
        stay.expected = max(stay.expected, min(call.first, track.first))
        if stay.expected < call.first:
            stay.expected = min(call.first, self._next(track, stay))
        if call.first != stay.expected:
            name = "I3" if call.first > stay.expected else "I4"
            text = f"{call.process} got {call.first} of {partition}; {stay.expected} comes next"
            self.add_violation(name, text, partition)
        return None

    def _next(self, track: PartitionRecord, stay: TermRecord) -> int:
        """What comes next, if every poisoned event before it is skipped."""
        expected = stay.expected
        while expected in track.poison:
            expected += 1
        return expected

    def _check_alone(self, track: PartitionRecord, call: HandlerCall) -> None:
        for other in track.inside:
            if other.process is call.process:
                text = f"{call.process} is called twice at once for {call.partition}"
                self.add_violation("I2", text, call.partition)

    def done(self, call: HandlerCall) -> None:
        """The handler has returned."""
        if not self._left(call):
            return
        track, figures = self.track(call.partition), self.figures
        stay = track.stays.get(call.process)
        if stay is not None and stay.client is call.client:
            stay.expected, stay.done = call.last + 1, max(stay.done, call.last)
            stay.done_s = self.now_s
        if call.sent_s is not None and call.first > track.handled:
            figures.worst_gap_s = max(figures.worst_gap_s, self.now_s - call.sent_s)
        track.raised_s = None
        if call.last > track.done:
            track.done = call.last
            track.unmarked_s = self.now_s if track.unmarked_s is None else track.unmarked_s
        figures.handled += call.last - call.first + 1
        figures.duplicates += self._handled(track, call.first, call.last)
        self.record("handled", f"{call.process} {call.partition} {call.first}-{call.last}")

    def _handled(self, track: PartitionRecord, first: int, last: int) -> int:
        """Note that these were handled; how many of them had been before."""
        again = 0
        for number in range(first, last + 1):
            if number <= track.handled or number in track.beyond:
                again += 1
            else:
                track.beyond.add(number)
        while track.handled + 1 in track.beyond:
            track.handled += 1
            track.beyond.discard(track.handled)
        return again

    def failed(self, call: HandlerCall, what: str) -> None:
        """The handler has raised, or was cancelled."""
        if self._left(call):
            self.record(
                "raised", f"{call.process} {call.partition} {call.first}-{call.last} {what}"
            )

    def theirs(self, call: HandlerCall, what: str, *, buried: bool) -> None:
        """Somebody's own handler has raised: what it cannot handle is no promise of ours."""
        if call.process.dead:
            return
        if self.handler_failed is None:
            one = call.first == call.last
            events = f"event {call.first}" if one else f"events {call.first}-{call.last}"
            self.handler_failed = f"{what} ({events} of partition {call.partition})"
        self.track(call.partition).raised_s = self.now_s
        if buried:
            self.poisoned(call.partition, call.first)

    def excused(self, partition: str) -> bool:
        """Whether somebody's own handler holds the partition up: it raises whenever it is tried."""
        raised_s, options = self.track(partition).raised_s, self.options
        if raised_s is None:
            return False
        again_s = options.backoff_most_s + options.lease_s
        return options.poison.then == STOP or self.now_s - raised_s <= again_s

    def _left(self, call: HandlerCall) -> bool:
        """It is no longer in hand; whether its host lives, and so the call counts."""
        self.track(call.partition).inside.remove(call)
        if not call.process.dead:
            self._check_stuck(call)
        return not call.process.dead

    def _check_stuck(self, call: HandlerCall) -> None:
        limit_s, options = self.options.handler_timeout_s, self.options
        if limit_s is None:
            return
        frozen_s = self.frozen_s.get(call.process, 0.0) - call.frozen_s
        took_s = self.now_s - call.at_s - frozen_s
        told = (call.process, call.client, call.client.batches_handed_out) in self._stuck
        # The watch looks every quarter of a renewal; a write before that may hold it up.
        looks_s = min(options.renew_s, limit_s) / 4 + options.store_s
        # Once per batch is enough, however often parts of it are tried and hang again.
        if took_s > limit_s + looks_s + 1.0 and not told:
            text = (
                f"{call.process} had {call.partition} in hand for {took_s:.1f} s without a report"
            )
            self.add_violation("I11", text, call.partition)

    # -- what hosts say ----------------------------------------------------------------------------

    def reported(self, process: HostProcess, partition: str | None, failed: Exception) -> None:
        kind = type(failed).__name__
        self.figures.reports[kind] += 1
        self.record("report", f"{process} {partition or '-'} {kind}")
        if isinstance(failed, HandlerStuck) and partition is not None:
            self.figures.stuck_reports += 1
            if (stay := self.track(partition).stays.get(process)) is not None:
                self._stuck.add((process, stay.client, stay.client.batches_handed_out))
        # One of a partition is what its handler raised.
        if isinstance(failed, ExceptionGroup) and partition is None:
            self.add_violation("I0", f"{process} failed: {failed!r} {failed.exceptions!r}")

    def poisoned(self, partition: str, sequence: int) -> None:
        """An event that will be skipped: it counts as handled."""
        track = self.track(partition)
        track.poison.add(sequence)
        self._handled(track, sequence, sequence)

    def expired(self, partition: str, first: int) -> int:
        """Retention has left nothing before this event; how many of those nobody had handled."""
        track = self.track(partition)
        track.first = first
        lost = first - max(0, track.handled + 1)
        lost -= sum(number < first for number in track.beyond)
        self._handled(track, track.handled + 1, first - 1)
        self.figures.expired += max(0, lost)
        return max(0, lost)

    def died(self, process: HostProcess) -> None:
        """Nothing of this process counts any more."""
        for track in self.tracks.values():
            track.stays.pop(process, None)
            track.leased_s.pop(process, None)
            track.leased.pop(process, None)
