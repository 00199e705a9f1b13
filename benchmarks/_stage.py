"""Scenes for whole fleets in virtual time: real hosts, a simulated hub and store, events that flow.

A scene starts some hosts, lets them settle, changes the fleet (hosts come, one dies, one leaves)
and watches for twenty minutes. Whoever plays, the events, their handler and the network are the
same: bursts for every partition, half a second per batch, a checkpoint after each.

    Scene, Troupe -> play -> Measured
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

from benchmarks._ledger import Ledger, Measured
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

TOGETHER_S = 0.5  # hosts that are started together start within so long
BURST_S, BURST = 3.0, (1, 12)
HANDLER_S = (0.05, 0.95)
LATE_S = 120.0  # what is older has had time to be handled
WATCH_S = 1200.0


class Scene(NamedTuple):
    """So many partitions and hosts; what happens; and the fewest moves that it takes."""

    name: str
    partitions: int
    before: int
    joins: int = 0
    dies: int = 0
    leaves: int = 0
    fewest: int = 0


JOIN = Scene("32 partitions, 1 -> 2 hosts", 32, 1, joins=1, fewest=16)
FAN_OUT = Scene("31 partitions, 1 -> 16 hosts", 31, 1, joins=15, fewest=29)
COLD = Scene("256 partitions, 8 hosts from cold", 256, 0, joins=8)
DEATH = Scene("16 partitions, one host of five dies", 16, 5, dies=1)
LEAVE = Scene("16 partitions, one host of five leaves", 16, 5, leaves=1)
SCENES = (JOIN, FAN_OUT, COLD, DEATH, LEAVE)


class Actor(Protocol):
    """A host. `start` returns once it runs; `stop` ends it in good order."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Stage:
    """What all hosts of a play share."""

    hub: SimHub
    ledger: Ledger
    rng: Random

    async def work(self, partition: str, sequences: Sequence[int]) -> None:
        """What every handler does."""
        self.ledger.given(partition, sequences)
        await asyncio.sleep(self.rng.uniform(*HANDLER_S))
        self.ledger.done(partition, sequences)


Cast = Callable[[HostProcess], Actor]
Troupe = Callable[[Stage], Cast]


class Turn(NamedTuple):
    """Who plays, and how long one of its cycles is."""

    troupe: Troupe
    interval_s: float


# -- ours -----------------------------------------------------------------------------------------


def ours(strategy: Strategy, options: ProcessorOptions) -> Turn:
    """Real processors with this strategy."""

    def troupe(stage: Stage) -> Cast:
        store = CountedStore(stage.ledger, Group(NAMESPACE, HUB), options.lease_s)
        return lambda process: OurHost(process, stage, store, strategy, options)

    return Turn(troupe, options.interval_s)


class CountedStore(SimStore):
    """Tells the ledger of every call that is not the checkpoint of an event."""

    def __init__(self, ledger: Ledger, group: Group, lease_s: float) -> None:
        super().__init__(ledger, group, lease_s)
        self.ledger = ledger

    def claim(self, process: HostProcess, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        self.ledger.calls += len(rows)
        return super().claim(process, rows)

    def list_rows(self) -> Listing:
        self.ledger.calls += 1
        return super().list_rows()

    def list_checkpoints(self) -> list[Checkpoint]:
        self.ledger.calls += 1
        return super().list_checkpoints()

    def beat(self, name: str, most: int | None) -> None:
        self.ledger.calls += 1
        super().beat(name, most)


class OurHost:
    """A processor whose handler checkpoints every batch."""

    def __init__(
        self,
        process: HostProcess,
        stage: Stage,
        store: SimStore,
        strategy: Strategy,
        options: ProcessorOptions,
    ) -> None:
        self.stage = stage
        rng = Random(stage.rng.getrandbits(64))
        self.processor = Processor(
            lambda: stage.hub.client(process, rng),
            store=HostStore(store, process, Random(rng.getrandbits(64)), Counter()),
            strategy=strategy,
            host=process.name,
            options=options,
            on_error=stage.ledger.reported,
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
                await self.stage.work(partition.id, [event.sequence or 0 for event in batch])
                await partition.checkpoint()

    async def stop(self) -> None:
        await self.processor.stop()
        await asyncio.wait([self._serving])


# -- playing --------------------------------------------------------------------------------------


def play(scene: Scene, turn: Turn, seed: int, watch_s: float = WATCH_S) -> Measured:
    with quiet(), silent("azure.eventhub"), asyncio.Runner(loop_factory=SimLoop) as runner:
        return runner.run(_play(scene, turn, Random(f"stage {seed}"), watch_s))


@contextmanager
def silent(name: str) -> Iterator[None]:
    """Losing a partition is what happens here, and no news."""
    log = logging.getLogger(name)
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


async def _play(scene: Scene, turn: Turn, rng: Random, watch_s: float) -> Measured:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    hub = SimHub(scene.partitions, Random(rng.getrandbits(64)))
    stage = Stage(hub, Ledger(hub.partitions, loop.time), Random(rng.getrandbits(64)))
    fleet = Fleet(loop, stage, turn.troupe(stage))
    flows = [
        asyncio.create_task(_flow(hub, partition, Random(rng.getrandbits(64))))
        for partition in hub.partitions
    ]
    for _ in range(scene.before):
        await fleet.come()
    if scene.before:
        # Those that are there share everything, and rest until something happens at any moment.
        while not stage.ledger.even:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(turn.interval_s)
        await asyncio.sleep(rng.uniform(5, 6) * turn.interval_s)
    stage.ledger.begin()
    await fleet.change(scene, rng)
    await asyncio.sleep(watch_s - LATE_S)
    ends = {partition: log.end for partition, log in hub.logs.items()}
    await asyncio.sleep(LATE_S)
    found = stage.ledger.measured(ends)
    fleet.end()
    for flow in flows:
        flow.cancel()
    await asyncio.sleep(0)
    if failures := [*stage.ledger.failures, *loop.failures]:
        raise AssertionError(f"a host failed by itself: {failures[0]}")
    return found


async def _flow(hub: SimHub, partition: str, rng: Random) -> None:
    while True:
        await asyncio.sleep(rng.expovariate(1 / BURST_S))
        end = hub.logs[partition].end
        hub.publish(partition, [b"%d" % (end + n) for n in range(rng.randint(*BURST))])


class Fleet:
    """The hosts that are on the stage."""

    def __init__(self, loop: SimLoop, stage: Stage, cast: Cast) -> None:
        self.loop, self.stage, self.cast = loop, stage, cast
        self.hosts: dict[str, tuple[HostProcess, Actor]] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self._named = 0

    async def come(self) -> None:
        self._named += 1
        process = HostProcess(f"host-{self._named:02}")
        context = self.loop.context_of(process)
        actor = context.run(self.cast, process)
        self.stage.ledger.came(process.name)
        self.hosts[process.name] = (process, actor)
        await self.loop.create_task(actor.start(), context=context)

    async def come_later(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.come()

    async def change(self, scene: Scene, rng: Random) -> None:
        """What the scene is about."""
        for _ in range(scene.joins):
            coming = self.come_later(rng.uniform(0, TOGETHER_S))
            self.tasks.append(asyncio.create_task(coming))
        for name in rng.sample(sorted(self.hosts), scene.dies):
            process, _ = self.hosts.pop(name)
            self.stage.ledger.went(name)
            self.loop.kill(process)
            self.stage.hub.drop(process)
        for name in rng.sample(sorted(self.hosts), scene.leaves):
            process, actor = self.hosts.pop(name)
            leaving = self.loop.create_task(actor.stop(), context=self.loop.context_of(process))
            self.tasks.append(asyncio.create_task(self._leave(process, leaving)))

    async def _leave(self, process: HostProcess, leaving: asyncio.Task[None]) -> None:
        await leaving
        self.stage.ledger.went(process.name)
        self.loop.kill(process)
        self.stage.hub.drop(process)

    def end(self) -> None:
        for process, _ in self.hosts.values():
            self.loop.kill(process)
