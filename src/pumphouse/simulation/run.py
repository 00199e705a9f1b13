"""A run of a simulated fleet from a seed: phases with faults and without, in turns.

simulate(Scenario) -> SimLoop -> Fleet: faults, fault-free phase, faults, ..., stop -> Result
^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import inf, isfinite
from random import Random

from pumphouse.errors import OptionError
from pumphouse.processor.checks.values import check_function
from pumphouse.processor.handling.key_order import Concurrency
from pumphouse.processor.options import SKIP, CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.simulation.adapters import PULL
from pumphouse.simulation.faults.profiles import DEFAULT, Faults
from pumphouse.simulation.faults.schedule import FaultSchedule
from pumphouse.simulation.fleet import Fleet
from pumphouse.simulation.handler import Handler
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.invariants.records import Figures, Violation
from pumphouse.simulation.liveness import FaultFreePhase
from pumphouse.simulation.loop import STARTED_S, SimLoop

FAULTY_PHASE_S = 3000.0  # at most; a fault-free phase follows
OPTIONS = ProcessorOptions(
    checkpoints=CheckpointPolicy(every_events=20, every_s=15.0),
    poison=PoisonPolicy(retries=3, then=SKIP),
)
Progress = Callable[[float, Checks], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated. The same scenario and seed give the same history."""

    hosts: int = 5
    partitions: int = 16
    hours: float = 1.0
    seed: int = 1
    faults: Faults = DEFAULT
    strategy: str = "steady"
    face: str = "pull"  # the processor API: pull, partitions, push, functions, fixed, handler
    store: str = "memory"  # memory, blob, bloblease: the semantics of the store
    options: ProcessorOptions | None = None  # OPTIONS by default
    burst_s: float = 40.0  # the mean time between two bursts of events of a partition
    # Handlers of a partition at once: for all APIs with a handler, not for pull and partitions.
    concurrency: int | Concurrency = 1

    def __post_init__(self) -> None:
        if not isfinite(self.hours):
            raise OptionError(f"hours must be finite (got {self.hours:g})")
        if not 0 < self.burst_s < inf:
            raise OptionError(f"burst_s must be above 0 and finite (got {self.burst_s:g})")
        if self.hosts < 1 or self.partitions < 1 or self.hours <= 0:
            raise OptionError(
                "a simulation needs at least one host, one partition and more than 0 hours "
                f"(got {self.hosts}, {self.partitions} and {self.hours:g})"
            )
        if self.face in PULL and self.all_options.key_order is not None:
            raise OptionError(
                f"concurrency needs an API with a handler (got {self.face!r}): "
                "use handler, push, functions or fixed"
            )

    @property
    def all_options(self) -> ProcessorOptions:
        """The options of the hosts, with the concurrency of the scenario."""
        options = self.options or OPTIONS
        return options if self.concurrency == 1 else replace(options, concurrency=self.concurrency)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a run."""

    scenario: Scenario
    violations: tuple[Violation, ...]
    scene: tuple[str, ...]  # the history before the first violation
    digest: str  # of the whole history
    events: int  # number of entries in the history
    simulated_s: float
    took_s: float
    faults: dict[str, int]
    calls: dict[str, int]  # to the store, by kind
    refused: int  # number of refused writes
    sent: int  # number of events sent to the hub
    figures: Figures
    handler_failed: str | None = None  # the first exception of your handler, and its event

    @property
    def ok(self) -> bool:
        """No invariant was violated, and your own handler has raised nothing."""
        return not self.violations and self.handler_failed is None


def simulate(
    scenario: Scenario | None = None,
    *,
    handler: Handler | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run a fleet in virtual time. `handler(partition, batch)` is called with every batch.

    An exception of the handler is not a violation. The batch is retried as with a real processor,
    and an event that the handler cannot handle is skipped by a PoisonPolicy or blocks its
    partition. `handler_failed` has the first exception.
    """
    if handler is not None:
        check_function("handler", handler, "partition", "batch")
    started_s = time.process_time()
    with quiet(), asyncio.Runner(loop_factory=SimLoop) as runner:
        chosen = scenario or Scenario()
        fleet = runner.run(_run(chosen, handler, progress or (lambda at_s, checks: None)))
        loop = runner.get_loop()
    checks = fleet.checks
    return Result(
        scenario=chosen,
        violations=tuple(checks.violations),
        scene=tuple(checks.scene),
        digest=fleet.history.digest,
        events=fleet.history.events,
        simulated_s=loop.time() - STARTED_S,
        took_s=time.process_time() - started_s,
        faults=dict(sorted(fleet.injected.items())),
        calls=dict(sorted(fleet.store.calls.items())),
        refused=fleet.store.refused,
        sent=fleet.hub.sent,
        figures=checks.figures,
        handler_failed=checks.handler_failed,
    )


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the processor's log: it would report every injected fault."""
    log = logging.getLogger("pumphouse.processor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


async def _run(scenario: Scenario, handler: Handler | None, progress: Progress) -> Fleet:
    rng = Random(f"pumphouse {scenario.seed}")
    fleet = Fleet(
        partitions=scenario.partitions,
        hosts=scenario.hosts,
        strategy=scenario.strategy,
        face=scenario.face,
        store=scenario.store,
        options=scenario.all_options,
        rng=rng,
        burst_s=scenario.burst_s,
        handler=handler,
    )
    schedule = FaultSchedule(fleet, scenario.faults, fleet.child())
    fault_free = FaultFreePhase(fleet, fleet.child())
    for partition in fleet.hub.partitions:
        fleet.start_flow(partition)
    until_s = fleet.loop.time() + scenario.hours * 3600
    fleet.set_faults(scenario.faults)
    for _ in range(scenario.hosts):
        fleet.start_task(fleet.add())
    while not fleet.checks.violations:
        fleet.set_faults(scenario.faults)
        await schedule.run(max(60.0, min(FAULTY_PHASE_S, until_s - fleet.loop.time())))
        progress(fleet.loop.time() - STARTED_S, fleet.checks)
        await fault_free.run()
        progress(fleet.loop.time() - STARTED_S, fleet.checks)
        if fleet.loop.time() >= until_s:
            break
    await fleet.close()
    for failure in fleet.loop.failures:
        fleet.checks.add_violation("I0", failure)
    return fleet
