"""The fault schedule: draws the faults of hosts, hub and store, and when they happen.

Faults -> FaultSchedule -> Fleet
          ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from random import Random

from pumphouse.simulation.faults.profiles import Faults
from pumphouse.simulation.fleet import PAUSE_LEASES, Fleet, Host

EXTRA_HOSTS_MAX = 2  # above the size of the scenario
AWAY_S = (2.0, 120.0)  # how long a hub or a store is unreachable
AWAY_LEASES = 1.5  # an outage may last this many lease times, so that all leases expire
FOREIGN_S = (1.0, 60.0)  # how long a foreign reader stays
RESTART_S = (1.0, 300.0)  # after a crash


class FaultSchedule:
    """Injects faults into a fleet for some time."""

    def __init__(self, fleet: Fleet, faults: Faults, rng: Random) -> None:
        self.fleet, self.faults, self.rng = fleet, faults, rng

    async def run(self, seconds: float) -> None:
        fleet, until_s = self.fleet, self.fleet.loop.time() + seconds
        if not self.faults.per_hour:
            await asyncio.sleep(seconds)
            return
        while not fleet.checks.violations:
            wait_s = self.rng.expovariate(self.faults.per_hour / 3600)
            if fleet.loop.time() + wait_s >= until_s:
                await asyncio.sleep(until_s - fleet.loop.time())
                return
            await asyncio.sleep(wait_s)
            getattr(self, self.faults.draw_event(self.rng))()

    def _pick_host(self) -> Host | None:
        """A random host that is not frozen; None if it would be the last one."""
        awake = [host for host in self.fleet.hosts.values() if not host.process.frozen]
        return self.rng.choice(awake) if len(awake) > 1 else None

    def crash(self) -> None:
        if (host := self._pick_host()) is None:
            return
        self.fleet.fault("crash", host.name)
        self.fleet.crash(host)
        name = self.rng.choice([host.name, ""])
        self.fleet.loop.call_later(self.rng.uniform(*RESTART_S), self._start_again, name)

    def _start_again(self, name: str) -> None:
        taken = name in self.fleet.hosts or name in self.fleet.starting
        if not taken and len(self.fleet.hosts) < self.fleet.size:
            self.fleet.fault("restart", name or "a new name")
            self.fleet.start_task(self.fleet.add(name))

    def pause(self) -> None:
        if (host := self._pick_host()) is None:
            return
        seconds = self.rng.uniform(*PAUSE_LEASES) * self.fleet.options.lease_s
        self.fleet.fault("pause", f"{host.name} for {seconds:.3f} s")
        self.fleet.freeze(host, seconds)

    def leave(self) -> None:
        if (host := self._pick_host()) is not None:
            self.fleet.fault("leave", host.name)
            self.fleet.start_task(self.fleet.leave(host))

    def restart(self) -> None:
        if (host := self._pick_host()) is not None:
            self.fleet.fault("restart", host.name)
            self.fleet.start_task(self._stop_and_start(host))

    async def _stop_and_start(self, host: Host) -> None:
        await self.fleet.leave(host)
        if host.name not in self.fleet.hosts and host.name not in self.fleet.starting:
            await self.fleet.add(host.name)

    def join(self) -> None:
        if len(self.fleet.hosts) < self.fleet.size + EXTRA_HOSTS_MAX:
            self.fleet.fault("join", "")
            self.fleet.start_task(self.fleet.add())

    def lost(self) -> None:
        hosts = list(self.fleet.hosts.values())
        if hosts:
            host = self.rng.choice(hosts)
            self.fleet.fault("lost", host.name)
            self.fleet.hub.drop(host.process)

    def evicted(self) -> None:
        hub, partition = self.fleet.hub, self.rng.choice(self.fleet.hub.partitions)
        number = hub.open_foreign_reader(partition, self.rng.randint(1, 5))
        self.fleet.fault("evicted", f"reader of {partition}")
        stays_s = self.rng.uniform(*FOREIGN_S)
        self.fleet.loop.call_later(stays_s, hub.remove_foreign, partition, number)

    def _away_s(self) -> float:
        shortest_s, longest_s = AWAY_S
        lease_s = self.fleet.options.lease_s
        return self.rng.uniform(shortest_s, max(longest_s, AWAY_LEASES * lease_s))

    def hub_away(self) -> None:
        seconds = self._away_s()
        self.fleet.fault("hub away", f"for {seconds:.3f} s")
        self.fleet.hub.unreachable_until_s = self.fleet.loop.time() + seconds
        for host in self.fleet.hosts.values():
            self.fleet.hub.drop(host.process)

    def store_away(self) -> None:
        seconds = self._away_s()
        self.fleet.fault("store away", f"for {seconds:.3f} s")
        self.fleet.store.unreachable_until_s = self.fleet.loop.time() + seconds

    def grow(self) -> None:
        if len(self.fleet.hub.logs) < self.fleet.partitions_max:
            partition = self.fleet.hub.grow()
            self.fleet.fault("grow", f"partition {partition}")
            self.fleet.start_flow(partition)

    def expired(self) -> None:
        """Retention removes events before they are handled."""
        fleet = self.fleet
        if late := fleet.unhandled():
            partition = self.rng.choice(late)
            lost = fleet.expire(partition, self.rng.randint(0, 5))
            fleet.fault("expired", f"{lost} events of {partition}")
