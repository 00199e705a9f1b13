"""Scenarios for whole fleets in virtual time: real hosts, a simulated hub and store, and events.

A scenario starts some hosts, lets them settle, changes the fleet (hosts join, one dies, one leaves)
and observes it for twenty minutes. Events, handlers and network are the same for every kind of
host: bursts of events for every partition, half a second per batch, a checkpoint after each batch.

    Scenario, FleetFactory -> simulate -> Measured
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

from benchmarks._fleet_observer import FleetObserver, Measured
from pumphouse.errors import OwnershipLost
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.leases.store import ClaimOutcome
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.simulation.hub import HUB, NAMESPACE, SimHub
from pumphouse.simulation.loop import HostClock, HostProcess, SimLoop
from pumphouse.simulation.run import quiet
from pumphouse.simulation.store import HostStore, SimStore

START_SPREAD_S = 0.5  # hosts that are started together start within this time
BURST_S, BURST = 3.0, (1, 12)
HANDLER_S = (0.05, 0.95)
LATE_S = 120.0  # older events must be handled by the end
WATCH_S = 1200.0


class Scenario(NamedTuple):
    """Partitions and hosts, the change, and the fewest possible moves."""

    name: str
    partitions: int
    before: int
    joins: int = 0
    dies: int = 0
    leaves: int = 0
    fewest: int = 0


JOIN = Scenario("32 partitions, 1 -> 2 hosts", 32, 1, joins=1, fewest=16)
FAN_OUT = Scenario("31 partitions, 1 -> 16 hosts", 31, 1, joins=15, fewest=29)
COLD = Scenario("256 partitions, 8 hosts from cold", 256, 0, joins=8)
DEATH = Scenario("16 partitions, one host of five dies", 16, 5, dies=1)
LEAVE = Scenario("16 partitions, one host of five leaves", 16, 5, leaves=1)
SCENARIOS = (JOIN, FAN_OUT, COLD, DEATH, LEAVE)


class Host(Protocol):
    """A host. `start` returns when it runs; `stop` ends it cleanly."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Environment:
    """The hub, the observer and the random numbers that all hosts share."""

    hub: SimHub
    observer: FleetObserver
    rng: Random

    async def work(self, partition: str, sequences: Sequence[int]) -> None:
        """The work of every handler."""
        self.observer.given(partition, sequences)
        await asyncio.sleep(self.rng.uniform(*HANDLER_S))
        self.observer.done(partition, sequences)


HostFactory = Callable[[HostProcess], Host]
FleetFactory = Callable[[Environment], HostFactory]


class FleetKind(NamedTuple):
    """How the hosts of a fleet are made, and the length of their cycle."""

    make_fleet: FleetFactory
    interval_s: float


# -- ours -----------------------------------------------------------------------------------------


def ours(strategy: Strategy, options: ProcessorOptions) -> FleetKind:
    """Real processors with this strategy."""

    def make_fleet(environment: Environment) -> HostFactory:
        store = CountedStore(environment.observer, Group(NAMESPACE, HUB), options.lease_s)
        return lambda process: OurHost(process, environment, store, strategy, options)

    return FleetKind(make_fleet, options.interval_s)


class CountedStore(SimStore):
    """Counts every call except checkpoints of events."""

    def __init__(self, observer: FleetObserver, group: Group, lease_s: float) -> None:
        super().__init__(observer, group, lease_s)
        self.totals = observer

    def claim(self, process: HostProcess, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        self.totals.calls += len(rows)
        return super().claim(process, rows)

    def list_rows(self) -> Listing:
        self.totals.calls += 1
        return super().list_rows()

    def list_checkpoints(self) -> list[Checkpoint]:
        self.totals.calls += 1
        return super().list_checkpoints()

    def beat(self, name: str, most: int | None) -> None:
        self.totals.calls += 1
        super().beat(name, most)


class OurHost:
    """A processor whose handler checkpoints every batch."""

    def __init__(
        self,
        process: HostProcess,
        environment: Environment,
        store: SimStore,
        strategy: Strategy,
        options: ProcessorOptions,
    ) -> None:
        self.environment = environment
        rng = Random(environment.rng.getrandbits(64))
        self.processor = Processor(
            lambda: environment.hub.client(process, rng),
            store=HostStore(store, process, Random(rng.getrandbits(64)), Counter()),
            strategy=strategy,
            host=process.name,
            options=options,
            on_error=environment.observer.reported,
            clock=HostClock(),
            rng=Random(rng.getrandbits(64)),
        )

    async def start(self) -> None:
        await self.processor.engine.start()
        self._serving = asyncio.create_task(self._serve_all())

    async def _serve_all(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for partition in self.processor.partitions():
                tasks.create_task(self._serve(partition))

    async def _serve(self, partition: PartitionClient) -> None:
        with suppress(OwnershipLost):
            async for batch in partition.batches():
                await self.environment.work(partition.id, [event.sequence or 0 for event in batch])
                await partition.checkpoint()

    async def stop(self) -> None:
        await self.processor.stop()
        await asyncio.wait([self._serving])


# -- simulating -----------------------------------------------------------------------------------


def simulate(
    scenario: Scenario, kind_of_fleet: FleetKind, seed: int, watch_s: float = WATCH_S
) -> Measured:
    with quiet(), silent("azure.eventhub"), asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(
            _simulate(scenario, kind_of_fleet, Random(f"environment {seed}"), watch_s)
        )


@contextmanager
def silent(name: str) -> Iterator[None]:
    """Suppress log lines: losing partitions is normal here."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _simulate(
    scenario: Scenario, kind_of_fleet: FleetKind, rng: Random, watch_s: float
) -> Measured:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    hub = SimHub(scenario.partitions, Random(rng.getrandbits(64)))
    environment = Environment(
        hub, FleetObserver(hub.partitions, loop.time), Random(rng.getrandbits(64))
    )
    fleet = Fleet(loop, environment, kind_of_fleet.make_fleet(environment))
    flows = [
        asyncio.create_task(_flow(hub, partition, Random(rng.getrandbits(64))))
        for partition in hub.partitions
    ]
    for _ in range(scenario.before):
        await fleet.come()
    if scenario.before:
        # The first hosts share all partitions and rest until the change, at a random time.
        while not environment.observer.even:  # noqa: ASYNC110 (there is no event for it)
            await asyncio.sleep(kind_of_fleet.interval_s)
        await asyncio.sleep(rng.uniform(5, 6) * kind_of_fleet.interval_s)
    environment.observer.begin()
    await fleet.change(scenario, rng)
    await asyncio.sleep(watch_s - LATE_S)
    ends = {partition: log.end for partition, log in hub.logs.items()}
    await asyncio.sleep(LATE_S)
    measured = environment.observer.measured(ends)
    fleet.end()
    for flow in flows:
        flow.cancel()
    await asyncio.sleep(0)
    if failures := [*environment.observer.failures, *loop.failures]:
        raise AssertionError(f"a host failed by itself: {failures[0]}")
    return measured


async def _flow(hub: SimHub, partition: str, rng: Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / BURST_S))
        end = hub.logs[partition].end
        hub.publish(partition, [b"%d" % (end + n) for n in range(rng.randint(*BURST))])


class Fleet:
    """The running hosts."""

    def __init__(self, loop: SimLoop, environment: Environment, cast: HostFactory) -> None:
        self.loop, self.environment, self.cast = loop, environment, cast
        self.hosts: dict[str, tuple[HostProcess, Host]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._named = 0

    async def come(self) -> None:
        self._named += 1
        process = HostProcess(f"host-{self._named:02}")
        context = self.loop.context_of(process)
        actor = context.run(self.cast, process)
        self.environment.observer.came(process.name)
        self.hosts[process.name] = (process, actor)
        await self.loop.create_task(actor.start(), context=context)

    async def come_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.come()

    async def change(self, scenario: Scenario, rng: Random) -> None:
        """Change the fleet as the scenario requires."""
        for _ in range(scenario.joins):
            coming = self.come_later(rng.uniform(0, START_SPREAD_S))
            self.tasks.append(asyncio.create_task(coming))
        for name in rng.sample(sorted(self.hosts), scenario.dies):
            process, _ = self.hosts.pop(name)
            self.environment.observer.went(name)
            self.loop.kill(process)
            self.environment.hub.drop(process)
        for name in rng.sample(sorted(self.hosts), scenario.leaves):
            process, actor = self.hosts.pop(name)
            leaving = self.loop.create_task(actor.stop(), context=self.loop.context_of(process))
            self.tasks.append(asyncio.create_task(self._leave(process, leaving)))

    async def _leave(self, process: HostProcess, leaving: asyncio.Task[None]) -> None:
        await leaving
        self.environment.observer.went(process.name)
        self.loop.kill(process)
        self.environment.hub.drop(process)

    def end(self) -> None:
        for process, _ in self.hosts.values():
            self.loop.kill(process)
