"""Checks of checkpoints and of the positions that readers start from (I1, I5, I15).

store, hub -> CheckpointChecks -> violations
              ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence

from pumphouse.client.base import ReaderOptions
from pumphouse.leases.model import Checkpoint
from pumphouse.simulation.invariants.fleet_state import TOLERANCE_S, FleetState
from pumphouse.simulation.invariants.records import KeyedTerm
from pumphouse.simulation.loop import HostProcess


class CheckpointChecks(FleetState):
    """Checks checkpoints as hosts send them and as the store grants them."""

    def checkpoint_sent(self, process: HostProcess, checkpoint: Checkpoint) -> None:
        """A host sends a checkpoint: it may do so only while its lease lasts."""
        partition = checkpoint.partition
        age_s = self.now_s - self.partition(partition).lease_sent_s.get(process, 0.0)
        if age_s > self.options.lease_s + TOLERANCE_S and not process.dead:
            late = f"{age_s:.3f} s after it last renewed its lease"
            text = f"{process} writes the checkpoint of {partition}, {late}"
            self.add_violation("I1", text, partition)

    def checkpoint_written(
        self, process: HostProcess, before: Checkpoint | None, checkpoint: Checkpoint
    ) -> None:
        """A write of a checkpoint took effect."""
        name, epoch = checkpoint.partition, checkpoint.epoch
        partition = self.partition(name)
        self.checkpoints[name] = checkpoint
        if before is not None and epoch < before.epoch:
            text = f"{process} writes {name} with epoch {epoch} after {before.epoch}"
            self.add_violation("I1", text, name)
        writer = partition.checkpoint_writers.setdefault(epoch, process)
        if writer is not process and not writer.dead:
            text = f"{process} and {writer} both write checkpoints of {name}, epoch {epoch}"
            self.add_violation("I1", text, name)
        if partition.owners.get(epoch) != process.name:
            text = f"{process} writes the checkpoint of {name}, but epoch {epoch} is not its own"
            self.add_violation("I1", text, name)
        reached = -1 if before is None or before.sequence is None else before.sequence
        sequence = self.checkpointed(name)
        if sequence < reached:
            text = f"the checkpoint of {name} goes back from {reached} to {sequence}"
            self.add_violation("I5", text, name)
        if sequence > partition.handled:
            text = (
                f"checkpoint of {name} at {sequence}, but {partition.handled + 1} was not handled"
            )
            self.add_violation("I5", text, name)
        behind = sequence < partition.last_handled
        partition.uncheckpointed_s = self.now_s if behind else None
        self.record("checkpoint", f"{process} writes {name} at {sequence} epoch {epoch}")

    def store_failed(self, process: HostProcess, kind: str, partitions: Sequence[str]) -> None:
        """A call to the store failed by an injected fault: it may explain a missing checkpoint."""
        for partition in partitions:
            self.partition(partition).checkpoint_failed_s[process] = self.now_s
        if not partitions:
            self.store_failed_s[process] = self.now_s

    def reader_opened(self, process: HostProcess, options: ReaderOptions, first: int) -> None:
        """The hub admitted a reader that starts at event `first`."""
        name, epoch = options.partition, options.epoch or 0
        partition, checkpoint = self.partition(name), self.checkpoints.get(name)
        self.record("reader", f"{process} reads {name} from {first} epoch {epoch}")
        if options.epoch is None:  # a later owner could not evict it
            self.add_violation("I1", f"{process} reads {name} without an epoch", name)
            return self._check_start(process, name, first)
        if partition.owners.get(epoch) != process.name:
            owner = partition.owners.get(epoch, "(none)")
            text = f"{process} reads {name} with epoch {epoch}, which belongs to {owner}"
            return self.add_violation("I1", text, name)
        if checkpoint is None or checkpoint.epoch < epoch:
            text = f"{process} reads {name}, epoch {epoch}, before it has stamped the checkpoint"
            return self.add_violation("I15", text, name)
        if checkpoint.epoch > epoch:
            return None  # a later owner has stamped it and fences this one off
        return self._check_start(process, name, first)

    def _check_start(self, process: HostProcess, name: str, first: int) -> None:
        """A reader starts after the checkpoint, or continues after the events of its term."""
        partition = self.partition(name)
        after_checkpoint = max(partition.first_retained, self.checkpointed(name) + 1)
        term = partition.terms.get(process)
        # A poisoned event may be read again, or may have been skipped already.
        continues = term is not None and term.expected <= first <= partition.next_expected(term)
        if isinstance(term, KeyedTerm):  # it is read ahead of the handlers
            continues = first >= term.expected
        if first != after_checkpoint and not continues:
            text = f"{process} reads {name} from {first}; its checkpoint is {after_checkpoint - 1}"
            self.add_violation("I15", text, name)
