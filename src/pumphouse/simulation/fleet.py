"""A fleet of simulated hosts on one hub and one store: hosts start, stop, crash and freeze.

Scenario -> Fleet -> processes, adapters, faults -> checks
            ^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from pumphouse.errors import PoisonEvent
from pumphouse.leases.model import Group
from pumphouse.leases.strategies import choose_strategy
from pumphouse.processor.engine import Engine
from pumphouse.processor.options import STOP, STOP_KEY, ProcessorOptions
from pumphouse.simulation.adapters import PULL, HostAdapter, HostParts, open_adapter
from pumphouse.simulation.faults.profiles import NO_FAULTS, Faults
from pumphouse.simulation.handler import POISON, Handler, SimulatedHandler
from pumphouse.simulation.history import History
from pumphouse.simulation.hub import HUB, NAMESPACE, SimHub
from pumphouse.simulation.invariants.checks import Checks
from pumphouse.simulation.loop import HostClock, HostProcess, SimLoop
from pumphouse.simulation.operator import Operator
from pumphouse.simulation.store import HostStore, SimStore

LINGER_S = 90.0  # how long a hub may keep the connection of a dead host
PAUSE_LEASES = (0.5, 4.0)  # how long a host is frozen, in leases
BURST = (1, 12)  # events
KEYED_BURST = (1, 40)  # with concurrency
KEYS = ("a", "a", "a", "b", "b", "c", "d", "e", "f", None)  # some have more events than others


@dataclass(slots=True)
class Host:
    """One running host."""

    process: HostProcess
    adapter: HostAdapter
    handler: SimulatedHandler
    store: HostStore
    frozen_at_s: float | None = None

    @property
    def name(self) -> str:
        return self.process.name


class Fleet:
    """The hosts, hub and store of one run. The fault schedule decides when faults happen."""

    def __init__(
        self,
        *,
        partitions: int,
        hosts: int,
        strategy: str,
        face: str,
        store: str,
        options: ProcessorOptions,
        rng: Random,
        burst_s: float,
        handler: Handler | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        self.loop, self.rng, self.face, self.handler = loop, rng, face, handler
        self.options, self.size, self.burst_s = options, hosts, burst_s
        self.partitions_max = 2 * partitions
        self.strategy = choose_strategy(
            f"fixed:{self.share}" if face == "fixed" else strategy, options.max_partitions
        )
        self.history = History()
        self.checks = Checks(self.history, options, grabs=self.strategy.grabs)
        self.store = SimStore(self.checks, Group(NAMESPACE, HUB), options.lease_s, store)
        self.hub = SimHub(partitions, self.child(), self.checks.reader_opened)
        self.hosts: dict[str, Host] = {}
        self.injected: Counter[str] = Counter()
        self.starting: set[str] = set()
        self.faults: Faults = NO_FAULTS
        self.faults_ended = asyncio.Event()
        self.operator = Operator(self)
        self._starts: Counter[str] = Counter()  # by name
        self._names_used = 0
        self._running: dict[asyncio.Task[Any], None] = {}
        self._flows: list[asyncio.Task[None]] = []

    def child(self) -> Random:
        """A separate random generator, so that draws of one part do not change another."""
        return Random(self.rng.getrandbits(64))

    # -- faults ------------------------------------------------------------------------------------

    def set_faults(self, faults: Faults) -> None:
        self.faults = faults
        for host in self.hosts.values():
            host.store.faults = host.handler.faults = faults
        if faults is NO_FAULTS:
            self.hub.unreachable_until_s = self.store.unreachable_until_s = 0.0
            self.faults_ended.set()
            self.operator.repair_all()
        else:
            self.faults_ended.clear()

    def fault(self, kind: str, text: str) -> None:
        self.injected[kind] += 1
        self.checks.record("fault", f"{kind} {text}")

    # -- hosts -------------------------------------------------------------------------------------

    @property
    def share(self) -> int:
        """How many partitions each fixed host claims.

        It is enough for all partitions, even if the hub has grown and one host is missing.
        """
        return -(-self.partitions_max // max(1, self.size - 1))

    async def add(self, name: str = "") -> Host:
        """Start a host, with a new name or with the name of one that ran before."""
        if not name:
            self._names_used += 1
            name = f"host-{self._names_used}"
        self._starts[name] += 1
        process, rng = HostProcess(name, self._starts[name]), self.child()
        handler = SimulatedHandler(
            process,
            self.checks,
            self.child(),
            self.injected,
            self.faults_ended,
            self.handler,
            self.operator.repaired,
        )
        store = HostStore(self.store, process, self.child(), self.injected)
        handler.faults = store.faults = self.faults
        parts = HostParts(
            name,
            lambda: self.hub.client(process, rng),
            store,
            self.strategy,
            self.options,
            self._clock(rng),
            self.child(),
            handler,
            lambda partition, failed: self._reported(process, partition, failed),
        )
        self.checks.record("host", f"{process} starts")
        context = self.loop.context_of(process)
        adapter = context.run(open_adapter, self.face, parts, self.share)
        host = Host(process, adapter, handler, store)
        self.starting.add(name)
        await self.loop.create_task(self._start(host), context=context)
        self.starting.discard(name)
        return host

    async def _start(self, host: Host) -> None:
        """Start a host; one that cannot start is dead, and another one is added later."""
        try:
            await host.adapter.start()
            # The faults may have changed during the start.
            host.store.faults = host.handler.faults = self.faults
            self.hosts[host.name] = host
        except Exception as failed:
            self._reported(host.process, None, failed)
            host.process.dead = True

    def _clock(self, rng: Random) -> HostClock:
        skew_s, drift = self.faults.skew_s, self.faults.drift
        if skew_s or drift:
            self.injected["clock wrong"] += 1
        return HostClock(rng.uniform(-skew_s, skew_s), 1 + rng.uniform(-drift, drift))

    def _reported(self, process: HostProcess, partition: str | None, failed: Exception) -> None:
        if not process.dead:
            self.checks.reported(process, partition, failed)
            if isinstance(failed, PoisonEvent):
                self.operator.poison_reported(failed)

    def crash(self, host: Host) -> None:
        """kill -9. The hub may keep its connection for a while."""
        self.hosts.pop(host.name)
        self.loop.kill(host.process)
        self.checks.process_died(host.process)
        self.loop.call_later(self.rng.choice([0.0, 0.1, LINGER_S]), self.hub.drop, host.process)

    def freeze(self, host: Host, seconds: float) -> None:
        """SIGSTOP, a long garbage collection, or a migration of the machine."""
        host.process.frozen, host.frozen_at_s = True, self.loop.time()
        self.loop.call_later(seconds, self.thaw, host)
        if seconds > LINGER_S:
            self.loop.call_later(LINGER_S, self.hub.drop, host.process)

    def thaw(self, host: Host) -> None:
        if host.process.dead or host.frozen_at_s is None:
            return
        frozen_s, host.frozen_at_s = self.loop.time() - host.frozen_at_s, None
        self.checks.frozen_s[host.process] = self.checks.frozen_s.get(host.process, 0.0) + frozen_s
        self.checks.record("host", f"{host.process} resumes after {frozen_s:.3f} s")
        self.loop.thaw(host.process)

    async def leave(self, host: Host) -> None:
        """Stop a host gracefully, within its time limit (I13)."""
        self.hosts.pop(host.name)
        # Time for the handler (stop_s), for four calls to the store, and for callbacks and closing.
        bound_s = host.adapter.engine.options.stop_s + 6 * self.options.store_s + 1.0
        fault_free = self.faults is NO_FAULTS
        stopping = self.loop.create_task(
            self._stop(host), context=self.loop.context_of(host.process)
        )
        _, late = await asyncio.wait([stopping], timeout=bound_s)
        if late:
            self.checks.add_violation(
                "I13", f"{host.process} has not stopped after {bound_s:.1f} s"
            )
        elif fault_free and self.faults is NO_FAULTS:
            self._check_left(host)
        self.checks.record("host", f"{host.process} has stopped")
        # Tasks that the host has left running end with its process.
        self.loop.kill(host.process)
        self.checks.process_died(host.process)
        self.hub.drop(host.process)

    def _check_left(self, host: Host) -> None:
        """A host that leaves without faults leaves no row in its name.

        A row that was handed to it just then and is unconfirmed becomes free again.
        """
        rows = self.store.rows.values()
        kept = [row.partition for row in rows if row.owner == host.name and not row.unconfirmed]
        if kept:
            self.checks.add_violation(
                "I13", f"{host.process} has left and still owns {' '.join(kept)}"
            )

    async def _stop(self, host: Host) -> None:
        try:
            await host.adapter.stop()
        except Exception as failed:
            self.checks.add_violation("I0", f"{host.process} failed to stop: {failed!r}")

    def start_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start or stop a host in the background."""
        task = self.loop.create_task(work)
        self._running[task] = None
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def all_done(self) -> None:
        """Wait until every host has started or stopped."""
        while self._running:
            await asyncio.wait(list(self._running))

    async def close(self) -> None:
        """Stop every host gracefully, and end the flow of events."""
        for host in list(self.hosts.values()):
            self.thaw(host)
            self.start_task(self.leave(host))
        await self.all_done()
        for flow in self._flows:
            flow.cancel()
        await asyncio.wait(self._flows)

    # -- events ------------------------------------------------------------------------------------

    def publish(self, partition: str, rng: Random) -> None:
        log = self.hub.logs[partition]
        keyed = self.options.key_order is not None
        count = rng.randint(*(KEYED_BURST if keyed else BURST))
        bodies = [b"%d" % (log.end + n) for n in range(count)]
        keys = [rng.choice(KEYS) for _ in bodies] if keyed else []
        poison = self.faults.poison
        # With STOP the handler raises until the operator has repaired it.
        stops = self.options.poison.then in (STOP, STOP_KEY)
        if poison and self.face not in PULL:
            for n in range(len(bodies)):
                if rng.random() < poison:
                    bodies[n] = POISON
                    self.injected["poison"] += 1
                    record = self.checks.broken if stops else self.checks.poisoned
                    record(partition, log.end + n)
        self.checks.sent(partition, log.end, keys)
        self.hub.publish(partition, bodies, keys)

    def expire(self, partition: str, kept: int) -> int:
        """Retention keeps the last `kept` events; returns how many unhandled ones it removed."""
        self.hub.retain(partition, kept)
        return self.checks.expired(partition, self.hub.logs[partition].first)

    def start_flow(self, partition: str) -> None:
        self._flows.append(self.loop.create_task(self._flow(partition, self.child())))

    async def _flow(self, partition: str, rng: Random) -> None:
        """Publish events of one partition, in bursts, until the run ends."""
        while True:
            await asyncio.sleep(rng.expovariate(1 / self.burst_s))
            self.publish(partition, rng)

    # -- state -------------------------------------------------------------------------------------

    def engines(self) -> list[Engine]:
        return [host.adapter.engine for host in self.hosts.values()]

    def owned(self) -> dict[str, int]:
        return {name: len(host.adapter.engine.owned) for name, host in self.hosts.items()}

    def unowned(self) -> list[str]:
        owned = {p for host in self.hosts.values() for p in host.adapter.engine.owned}
        return [p for p in self.hub.partitions if p not in owned]

    def unhandled(self) -> list[str]:
        """Partitions with events that are not handled yet."""
        logs = self.hub.logs.items()
        return [p for p, log in logs if self.checks.partition(p).handled < log.end - 1]

    def spread(self) -> int:
        counts = self.owned().values()
        return max(counts, default=0) - min(counts, default=0)
