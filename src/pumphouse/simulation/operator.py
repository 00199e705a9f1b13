"""The operator of a simulated fleet: repairs poison events, and resumes stopped partitions.

Fleet -> Operator.poison_reported -> (a while) -> repaired, engine.resume
         ^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Protocol

from pumphouse.errors import PoisonEvent
from pumphouse.processor.engine import Engine
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import SimLoop

# The time until a repair: long enough for stopped partitions to move, and for hosts to crash.
REPAIR_S = (1.0, 300.0)
REPAIR_FAULT_FREE_S = 0.1
Repair = tuple[str, int]  # a partition, and the sequence number of an event


class OperatedFleet(Protocol):
    """What an operator uses of a fleet."""

    loop: SimLoop
    checks: Checks
    faults_ended: asyncio.Event

    def child(self) -> Random: ...

    def engines(self) -> Iterable[Engine]: ...


class Operator:
    """Receives reports of poison events. Some time later the handlers of all hosts accept them."""

    def __init__(self, fleet: OperatedFleet) -> None:
        self.fleet, self.rng = fleet, fleet.child()
        self.repaired: set[Repair] = set()
        self._waiting: dict[Repair, None] = {}

    def poison_reported(self, poison: PoisonEvent) -> None:
        """Repair a poison event later. Each owner of the partition that stops at it reports it."""
        repair = (poison.partition, poison.sequence or 0)
        if repair[1] not in self.fleet.checks.partition(poison.partition).broken:
            return  # the event was skipped, or the user's own handler failed
        self._waiting[repair] = None
        fault_free, loop = self.fleet.faults_ended.is_set(), self.fleet.loop
        delay_s = REPAIR_FAULT_FREE_S if fault_free else self.rng.uniform(*REPAIR_S)
        loop.call_later(delay_s, self._repair, repair, context=loop.no_process)

    def repair_all(self) -> None:
        for repair in list(self._waiting):
            self._repair(repair)

    def _repair(self, repair: Repair) -> None:
        """Repair the handler, and resume the partition wherever it is now."""
        self._waiting.pop(repair, None)
        self.repaired.add(repair)
        partition, sequence = repair
        self.fleet.checks.figures.resumed += 1
        self.fleet.checks.record("operator", f"repairs {sequence} of {partition} and resumes it")
        for engine in self.fleet.engines():
            engine.resume(partition)
