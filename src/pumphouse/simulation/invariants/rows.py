"""Checks of ownership rows: epochs, leases, moves and hand-overs (I1, I2, I6, I12).

store, hosts -> RowChecks -> violations
                ^^^^^^^^^ this module
"""

from __future__ import annotations

import math

from pumphouse.errors import StoreMisused
from pumphouse.leases.model import Ownership
from pumphouse.processor.plan import WHOLE_S
from pumphouse.processor.term import StopReason
from pumphouse.simulation.invariants.fleet_state import TOLERANCE_S, FleetState
from pumphouse.simulation.invariants.records import PartitionRecord, TermRecord
from pumphouse.simulation.loop import HostProcess

DRIFT_MAX = 0.0001  # of a host's clock, as in the fault profiles
LAST_WRITE_S = 1.0  # a host with less time left may have no time for a last checkpoint


class RowChecks(FleetState):
    """Checks rows as the store grants them and as hosts receive them."""

    def row_written(self, process: HostProcess, before: Ownership | None, row: Ownership) -> None:
        """A write of a row took effect."""
        partition = self.partition(row.partition)
        self.rows[row.partition] = row
        self._note_deadline(partition, row)
        epoch, owner = (before.epoch, before.owner) if before is not None else (0, "")
        if row.epoch < epoch:
            text = f"the epoch of {row.partition} fell from {epoch} to {row.epoch}"
            self.add_violation("I1", text, row.partition)
        if row.owner and row.owner != owner:
            if row.epoch <= epoch:
                change = f"from {owner or '(none)'} to {row.owner}"
                text = f"{row.partition} goes {change}, and the epoch from {epoch} to {row.epoch}"
                self.add_violation("I1", text, row.partition)
            self._owner_changed(partition, process, owner, row)
        elif not row.owner:
            self.figures.releases += 1
        if row.owner == process.name and partition.owners.get(row.epoch) != row.owner:
            self._claimed(partition, process, row)
        if owner == process.name and row.owner != owner:
            self._check_given_up(partition, process, before, row)
        summary = f"{row.partition} {row.owner or '-'} epoch {row.epoch}"
        successor = f" for {row.successor}" if row.successor else ""
        deadline = "" if row.deadline_s is None else f" within {row.deadline_s:.3f}"
        self.record("row", f"{process} writes {summary}{successor}{deadline}")
        if (row.owner, row.epoch) != (owner, epoch):
            partition.earliest_deadline_s = None
        holder = partition.owner_processes.get(epoch)
        if row.owner != owner and holder is not None and holder is not process:
            partition.taken_s[holder] = self.now_s

    def _note_deadline(self, partition: PartitionRecord, row: Ownership) -> None:
        known = (partition.earliest_deadline_s, partition.deadline_s)
        # An owner that missed one deadline has lost the partition, whichever host requests it next.
        deadlines = [at_s for at_s in known if at_s is not None]
        partition.earliest_deadline_s = min(deadlines, default=None)
        partition.deadline_s = None
        if row.deadline_s is not None and row.successor:
            partition.deadline_s = self.now_s + row.deadline_s

    def row_granted(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """A host received the grant of its own write: its lease counts from when it was sent.

        A renewal whose grant arrives after the lease has expired does not restore the lease. A
        write that is sent after the lease has expired starts a new term.
        """
        partition = self.partition(row.partition)
        since_s = partition.lease_sent_s.get(process, 0.0)
        epoch = partition.lease_epoch.get(process, 0)
        # The host measures its lease with its own clock, which may be slow.
        lease_s = self.options.lease_s * (1 + DRIFT_MAX)
        late = row.epoch == epoch and sent_s < since_s + lease_s <= self.now_s
        if row.owner == process.name and not late:
            partition.lease_sent_s[process], partition.lease_epoch[process] = sent_s, row.epoch
            if sent_s >= since_s + lease_s:
                self._end_lost_terms(partition, process.name)

    def row_received(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """A host received its row with a successor and a deadline.

        The host does not know how old the response is, so it counts from when it sent the request.
        """
        if row.owner != process.name or not row.successor or row.deadline_s is None:
            return
        received, key = self.partition(row.partition).received_deadline_s, (process, row.epoch)
        received[key] = min(received.get(key, math.inf), sent_s + row.deadline_s)

    def _owner_changed(
        self, partition: PartitionRecord, process: HostProcess, owner: str, row: Ownership
    ) -> None:
        partition.owner_changed_s = self.now_s
        self.figures.claims += not owner
        self.figures.moves += bool(owner)
        if row.owner != process.name:
            partition.owners[row.epoch] = row.owner
            self._end_lost_terms(partition, row.owner)

    def _claimed(self, partition: PartitionRecord, process: HostProcess, row: Ownership) -> None:
        other = partition.owners.get(row.epoch)
        if other is not None:
            text = f"epoch {row.epoch} of {row.partition} belonged to {other}, now to {row.owner}"
            self.add_violation("I1", text, row.partition)
        partition.owners[row.epoch] = row.owner
        partition.owner_processes[row.epoch] = process
        self._end_lost_terms(partition, row.owner)

    def _end_lost_terms(self, partition: PartitionRecord, owner: str) -> None:
        """End the lost terms of a host that starts a new one.

        What it handled in a lost term was never checkpointed, and is not expected to be.
        """
        for process, term in list(partition.terms.items()):
            if process.name == owner and term.client.reason is not None:
                del partition.terms[process]

    def _check_given_up(
        self,
        partition: PartitionRecord,
        process: HostProcess,
        before: Ownership | None,
        row: Ownership,
    ) -> None:
        """An owner gives a partition up only when all its batches are handled and checkpointed."""
        if any(call.process is process for call in partition.running):
            receiver = row.owner or "(none)"
            text = f"{process} gives {row.partition} to {receiver} during a batch"
            self.add_violation("I2", text, row.partition)
        term = partition.terms.get(process)
        written = self.checkpointed(row.partition)
        if term is None or term.handled <= written:
            return
        if not self._must_be_checkpointed(partition, term, process):
            return
        if before is None or not self._has_lease(partition, process, before.epoch):
            return  # it had lost the lease before, and only removes its name from the row
        text = f"{process} leaves {row.partition} at {written}, though it handled {term.handled}"
        self.add_violation("I6", text, row.partition)

    def _has_lease(self, partition: PartitionRecord, process: HostProcess, epoch: int) -> bool:
        """Whether this host, by the responses it received, could act as the owner until now."""
        until_s = partition.lease_sent_s.get(process, 0.0) + self.options.lease_s
        if partition.earliest_deadline_s is not None:
            until_s = min(until_s, partition.earliest_deadline_s - WHOLE_S)
        received_s = partition.received_deadline_s.get((process, epoch), math.inf)
        until_s = min(until_s, received_s - WHOLE_S)
        return self.now_s < until_s - LAST_WRITE_S

    def _must_be_checkpointed(
        self, partition: PartitionRecord, term: TermRecord, process: HostProcess
    ) -> bool:
        """Whether the handled events must be in the checkpoint.

        They may be missing if the store has failed since the last batch, but not because a handler
        has raised after this batch. A host that received a refusal without the current row assumes
        that the partition is lost: then a fault since its last renewal is sufficient.
        """
        failed_s = max(
            partition.checkpoint_failed_s.get(process, 0.0),
            self.store_failed_s.get(process, 0.0),
        )
        lost = term.client.reason is StopReason.LOST
        since_s = partition.lease_sent_s.get(process, 0.0) if lost else term.handled_s
        # If the user's loop has raised, no checkpoint is written when the term ends.
        written_at_end = self.options.checkpoint_on_stop and not term.left
        return (written_at_end or self.options.checkpoints.on) and failed_s < since_s

    def check_owner(self, process: HostProcess, partition_id: str, epoch: int) -> None:
        """A handler is called with this epoch: its host must be the owner (I1, I12)."""
        partition, row = self.partition(partition_id), self.rows.get(partition_id)
        now_s = self.now_s
        call = f"{process} handles {partition_id} with epoch {epoch}"
        if partition.owners.get(epoch) != process.name:
            owner = partition.owners.get(epoch, "(none)")
            return self.add_violation("I1", f"{call}, which belongs to {owner}", partition_id)
        owner_process = partition.owner_processes.setdefault(epoch, process)
        if owner_process is not process and not owner_process.dead:
            return self.add_violation("I1", f"{call}, and so does {owner_process}", partition_id)
        age_s = now_s - partition.lease_sent_s.get(process, 0.0)
        if age_s > self.options.lease_s + TOLERANCE_S:
            text = f"{call}, {age_s:.3f} s after its last granted write"
            return self.add_violation("I1", text, partition_id)
        if row is None or self.grabs:
            return None
        if row.owner != process.name and now_s - partition.owner_changed_s > TOLERANCE_S:
            text = f"{call}, but {row.owner or '(none)'} owns it"
            return self.add_violation("I1", text, partition_id)
        if row.epoch == epoch and partition.deadline_s is not None:
            late_s = now_s - partition.deadline_s
            if row.successor and late_s > TOLERANCE_S:
                text = f"{call}, {late_s:.3f} s after the deadline of {row.successor}"
                return self.add_violation("I12", text, partition_id)
        return None

    def store_misused(self, process: HostProcess, why: StoreMisused) -> None:
        self.add_violation("I12" if "deadline" in str(why) else "I1", f"{process}: {why}")
