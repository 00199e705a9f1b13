"""Balancing cycles on a virtual clock, with a store in memory.

Each host runs a cycle when it is due and returns the delay until its next one. A scenario starts
with some hosts, adds others, and checks after every cycle whether the fleet is even.

    Scenario -> ours | _official_balancer.official -> simulate -> Outcome
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
from pumphouse.processor.handling.cancellation import OwnedTasks
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease, next_delay
from pumphouse.processor.reporting import Reporter

GROUP = Group("virtual.servicebus.windows.net", "sensors")
START_SPREAD_S = 0.5  # hosts that are started together start within this time


class Scenario(NamedTuple):
    """A number of partitions, hosts at the beginning, and hosts in the end."""

    name: str
    partitions: int
    before: int
    after: int


JOIN = Scenario("32 partitions, 1 -> 2 hosts", 32, 1, 2)
FAN_OUT = Scenario("31 partitions, 1 -> 16 hosts", 31, 1, 16)
COLD = Scenario("256 partitions, 8 hosts from cold", 256, 0, 8)


class Outcome(NamedTuple):
    """The results of a scenario, counted from the start of the last hosts."""

    cycles: float  # until even, in intervals; the whole time if it never was
    seconds: float
    moves: int  # of a partition from one living owner to another
    spread: int  # between the most and the fewest partitions at the end


class VirtualClock:
    """A clock that moves only when it is set."""

    def __init__(self) -> None:
        self.time_s = 1_000_000.0

    def now(self) -> float:
        return self.time_s

    time = now  # the name that the official balancer uses

    def monotonic(self) -> float:
        return self.time_s

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a virtual clock cannot sleep")


@dataclass(slots=True)
class MoveCounter:
    """The owners of all partitions, and the number of moves."""

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


class BalancingHost(Protocol):
    """A host. `cycle` returns the seconds until the next one."""

    name: str

    async def cycle(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Side:
    """One balancer: a clock, a counter, and hosts by name."""

    clock: VirtualClock
    counter: MoveCounter
    host: Callable[[str], BalancingHost]
    interval_s: float


# -- ours -----------------------------------------------------------------------------------------


class WatchedStore(MemoryStore):
    """The store in memory; it counts granted claims."""

    def __init__(self, clock: VirtualClock, counter: MoveCounter) -> None:
        super().__init__(clock)
        self._tally = counter

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
    """The part of a hub client that a cycle uses."""

    partitions: tuple[str, ...]
    namespace, hub = GROUP.namespace, GROUP.hub

    async def properties(self) -> HubProperties:
        return HubProperties(GROUP.hub, 0, self.partitions)


class OurHost:
    """The cycle of a processor without pumps. It hands a requested partition over at once."""

    def __init__(
        self,
        name: str,
        scenario: Scenario,
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
        self.tasks = OwnedTasks()
        partitions = tuple(str(n) for n in range(scenario.partitions))
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

    def state(self, partition: str) -> str:
        return ""

    def resumed(self, lease: Lease) -> None: ...

    def lost(self, partition: str, error: OwnershipLost) -> None: ...

    def failed(self, partition: str | None, error: Exception) -> None:
        raise error


def ours(strategy: Strategy, scenario: Scenario, rng: Random) -> Side:
    clock, counter = VirtualClock(), MoveCounter()
    store = WatchedStore(clock, counter)

    def host(name: str) -> BalancingHost:
        return OurHost(name, scenario, strategy, store, clock, Random(rng.random()))

    return Side(clock, counter, host, ProcessorOptions().interval_s)


# -- simulating -----------------------------------------------------------------------------------


def simulate(scenario: Scenario, side: Side, rng: Random, cycles_max: float) -> Outcome:
    return asyncio.run(_simulate(scenario, side, rng, cycles_max))


async def _simulate(scenario: Scenario, side: Side, rng: Random, cycles_max: float) -> Outcome:
    hosts = [side.host(f"host-{n:02}") for n in range(scenario.after)]
    names = [host.name for host in hosts]
    queue = [(side.clock.time_s, n) for n in range(scenario.before)]
    if queue:
        # The first hosts share all partitions and rest until the others start at a random time.
        rest_s = rng.uniform(5, 6) * side.interval_s
        await _run(
            queue, hosts, side, lambda: False, scenario.partitions * side.interval_s + rest_s
        )
    start_s, side.counter.moves = side.clock.time_s, 0
    for n in range(scenario.before, scenario.after):
        heappush(queue, (start_s + rng.uniform(0, START_SPREAD_S), n))
    longest_s = cycles_max * side.interval_s
    await _run(queue, hosts, side, lambda: side.counter.even(scenario.partitions, names), longest_s)
    seconds = side.clock.time_s - start_s
    cycles, spread = seconds / side.interval_s, side.counter.spread(names)
    return Outcome(cycles, seconds, side.counter.moves, spread)


async def _run(
    queue: list[tuple[float, int]],
    hosts: Sequence[BalancingHost],
    side: Side,
    done: Callable[[], bool],
    longest_s: float,
) -> None:
    """Run the cycles when they are due, until `done` holds or the time is over."""
    end_s = side.clock.time_s + longest_s
    while not done():
        if queue[0][0] > end_s:
            side.clock.time_s = end_s
            return
        side.clock.time_s, n = heappop(queue)
        heappush(queue, (side.clock.time_s + await hosts[n].cycle(), n))
