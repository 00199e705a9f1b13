"""What all checks share: the history, the violations, and a record of every partition.

RowChecks, CheckpointChecks, HandlerChecks -> FleetState -> violations, history
                                              ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio

from pumphouse.leases.model import Checkpoint, Ownership
from pumphouse.processor.options import ProcessorOptions
from pumphouse.simulation.history import History
from pumphouse.simulation.invariants.records import Figures, PartitionRecord, Violation
from pumphouse.simulation.loop import HostProcess

TOLERANCE_S = 0.05  # for clocks that run a little fast or slow


class FleetState:
    """The state of a simulated fleet as its checks see it.

    `grabs` is set if the strategy takes held partitions without a hand-over.
    """

    def __init__(self, history: History, options: ProcessorOptions, *, grabs: bool) -> None:
        self.history, self.options, self.grabs = history, options, grabs
        self.violations: list[Violation] = []
        self.scene: list[str] = []  # the history before the first violation
        self.figures = Figures()
        self.handler_failed: str | None = None  # the first exception of the user's handler
        self.partitions: dict[str, PartitionRecord] = {}
        self.rows: dict[str, Ownership] = {}
        self.checkpoints: dict[str, Checkpoint] = {}
        self.frozen_s: dict[HostProcess, float] = {}  # in total
        self.store_failed_s: dict[HostProcess, float] = {}  # when a call last failed

    @property
    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def partition(self, partition: str) -> PartitionRecord:
        if partition not in self.partitions:
            self.partitions[partition] = PartitionRecord()
        return self.partitions[partition]

    def checkpointed(self, partition: str) -> int:
        """The sequence number in the stored checkpoint; -1 without one."""
        checkpoint = self.checkpoints.get(partition)
        if checkpoint is None or checkpoint.sequence is None:
            return -1
        return checkpoint.sequence

    def add_violation(self, name: str, text: str, partition: str = "") -> None:
        violation = Violation(name, self.now_s, text, partition)
        if not self.violations:
            self.scene = self.history.last(60, partition)
        self.violations.append(violation)
        self.history.add(violation.at_s, "VIOLATION", f"{name} {text}")

    def record(self, kind: str, text: str) -> None:
        self.history.add(self.now_s, kind, text)
