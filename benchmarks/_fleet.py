"""A fleet on a virtual clock: real cycles, a store in memory, and nothing that takes time.

Players are hosts: each runs a cycle when its time has come, and says when the next one is due. A
scene starts with some, lets others come, and looks after every cycle whether the fleet is even.

    Scene -> ours | _official.official -> play -> Played
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple, Protocol, cast

from pumphouse.client.base import HubClient, HubProperties
from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost
from pumphouse.leases.model import Granted, Group, Ownership
from pumphouse.leases.store import CheckpointStore, ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.cycle import Cycle
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease, next_delay
from pumphouse.processor.reporting import Reporter

GROUP = Group("virtual.servicebus.windows.net", "sensors")
TOGETHER_S = 0.5  # hosts that are started together start within so long


class Scene(NamedTuple):
    """So many partitions; some hosts that have shared them, and some that come."""

    name: str
    partitions: int
    before: int
    after: int


JOIN = Scene("32 partitions, 1 -> 2 hosts", 32, 1, 2)
FAN_OUT = Scene("31 partitions, 1 -> 16 hosts", 31, 1, 16)
COLD = Scene("256 partitions, 8 hosts from cold", 256, 0, 8)


class Played(NamedTuple):
    """What came of a scene, from the moment at which the last hosts were started."""

    cycles: float  # until even, in intervals; as long as was played if it never was
    seconds: float
    moves: int  # of a partition from one living owner to another
    spread: int  # between the most and the fewest at the end


class VirtualClock:
    """Stands still unless it is set."""

    def __init__(self) -> None:
        self.time_s = 1_000_000.0

    def now(self) -> float:
        return self.time_s

    time = now  # what the official balancer calls it

    def monotonic(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps on a virtual clock")


@dataclass(slots=True)
class SendTotals:
    """Who owns what, and what has moved."""

    owners: dict[str, str] = field(default_factory=dict)
    moves: int = 0

    def wrote(self, partition: str, owner: str) -> None:
        before = self.owners.get(partition, "")
        self.moves += bool(before and owner and before != owner)
        self.owners[partition] = owner

    def spread(self, hosts: Sequence[str]) -> int:
        counts = Counter(self.owners.values())
        return max(counts[host] for host in hosts) - min(counts[host] for host in hosts)

    def even(self, partitions: int, hosts: Sequence[str]) -> bool:
        owned = sum(owner != "" for owner in self.owners.values())
        return owned == partitions and self.spread(hosts) <= 1


class Player(Protocol):
    """A host. A cycle answers with the seconds until the next."""

    name: str

    async def cycle(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One way to balance: a clock, a tally, and hosts by name."""

    clock: VirtualClock
    tally: SendTotals
    host: Callable[[str], Player]
    interval_s: float


# -- ours -----------------------------------------------------------------------------------------


class WatchedStore(MemoryStore):
    """The store in memory, telling a tally what was granted."""

    def __init__(self, clock: VirtualClock, tally: SendTotals) -> None:
        super().__init__(clock)
        self._tally = tally

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        outcomes = await super().claim_ownership(group, claims)
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self._tally.wrote(outcome.row.partition, outcome.row.owner)
        return outcomes


@dataclass(frozen=True, slots=True)
class PartitionsOnly:
    """All that a cycle asks of a hub."""

    partitions: tuple[str, ...]

    async def properties(self) -> HubProperties:
        return HubProperties(GROUP.hub, 0, self.partitions)


class OurHost:
    """The cycle of a processor, without pumps: what it is asked for it hands over at once."""

    def __init__(
        self,
        name: str,
        scene: Scene,
        strategy: Strategy,
        store: MemoryStore,
        clock: VirtualClock,
        rng: Random,
    ) -> None:
        self.name, self.options, self.rng = name, ProcessorOptions(), rng
        self.store: CheckpointStore = store
        self.clock: Clock = clock
        self.group = GROUP
        self.reporter = Reporter(name, on_error=self.failed)
        self.leases = LeaseTable(store, GROUP, self.options, clock, self, self.reporter)
        self.requests: list[str] = []
        partitions = tuple(str(n) for n in range(scene.partitions))
        self.client = cast(HubClient, PartitionsOnly(partitions))
        self._cycle = Cycle(self, strategy, partitions)

    async def cycle(self) -> float:
        report = await self._cycle.once(frozenset())
        while self.requests:
            await self.leases.give_up(self.requests.pop())
        return next_delay(report.outcome, self.options, self.rng)

    def gained(self, lease: Lease) -> None: ...

    def renewed(self, lease: Lease) -> None: ...

    def epoch_raised(self, lease: Lease) -> None: ...

    def requested(self, lease: Lease) -> None:
        self.requests.append(lease.partition)

    def lost(self, partition: str, error: OwnershipLost) -> None: ...

    def failed(self, partition: str | None, error: Exception) -> None:
        raise error


def ours(strategy: Strategy, scene: Scene, rng: Random) -> Side:
    clock, tally = VirtualClock(), SendTotals()
    store = WatchedStore(clock, tally)

    def host(name: str) -> Player:
        return OurHost(name, scene, strategy, store, clock, Random(rng.random()))

    return Side(clock, tally, host, ProcessorOptions().interval_s)


# -- playing --------------------------------------------------------------------------------------


def play(scene: Scene, side: Side, rng: Random, cycles_max: float) -> Played:
    return asyncio.run(_play(scene, side, rng, cycles_max))


async def _play(scene: Scene, side: Side, rng: Random, cycles_max: float) -> Played:
    hosts = [side.host(f"host-{n:02}") for n in range(scene.after)]
    names = [host.name for host in hosts]
    queue = [(side.clock.time_s, n) for n in range(scene.before)]
    if queue:
        # Those that are there share everything, and rest until the others come at any moment.
        rest_s = rng.uniform(5, 6) * side.interval_s
        await _run(queue, hosts, side, lambda: False, scene.partitions * side.interval_s + rest_s)
    start_s, side.tally.moves = side.clock.time_s, 0
    for n in range(scene.before, scene.after):
        heappush(queue, (start_s + rng.uniform(0, TOGETHER_S), n))
    longest_s = cycles_max * side.interval_s
    await _run(queue, hosts, side, lambda: side.tally.even(scene.partitions, names), longest_s)
    seconds = side.clock.time_s - start_s
    cycles, spread = seconds / side.interval_s, side.tally.spread(names)
    return Played(cycles, seconds, side.tally.moves, spread)


async def _run(
    queue: list[tuple[float, int]],
    hosts: Sequence[Player],
    side: Side,
    done: Callable[[], bool],
    longest_s: float,
) -> None:
    """Run the cycles as they come due, until it is done or so long has passed."""
    end_s = side.clock.time_s + longest_s
    while not done():
        if queue[0][0] > end_s:
            side.clock.time_s = end_s
            return
        side.clock.time_s, n = heappop(queue)
        heappush(queue, (side.clock.time_s + await hosts[n].cycle(), n))
