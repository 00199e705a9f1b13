"""Fleets with random faults: lost responses, stale listings, crashes, slow handlers."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from random import Random

import pytest

from pumphouse.events import Event
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.audited_store import AuditedStore
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import LoopClock, run

OPTIONS = ProcessorOptions(checkpoints=CheckpointPolicy(every_events=7))
STRATEGIES = ["steady", "greedy", "balanced", "eph", "eph_js"]


class FaultyFleet:
    """One run by a seed: hosts join and leave while the store has faults, then it recovers."""

    def __init__(self, seed: int, strategy: str) -> None:
        self.rng = Random(seed)
        self.clock = LoopClock()
        self.store = AuditedStore(self.clock)
        self.fleet = Fleet(6, store=self.store, options=OPTIONS, strategy=strategy)
        self.store.handled_up_to = self.handled_up_to
        self.stores: list[FlakyStore] = []
        self.faults: list[str] = []
        self.hosts_made = 0

    def handled_up_to(self, partition: str) -> int:
        handled_numbers = set(self.fleet.sequences(partition))
        return (
            next(
                number
                for number in range(len(handled_numbers) + 1)
                if number not in handled_numbers
            )
            - 1
        )

    async def work(self, partition: PartitionClient, batch: list[Event]) -> None:
        """I1: nothing is handed to a host whose lease has expired."""
        host = self.fleet.record[partition.id][-1].host
        written_s = self.store.written_s.get((host, partition.id))
        age_s = 0.0 if written_s is None else self.clock.monotonic() - written_s
        if age_s > OPTIONS.lease_s:
            self.faults.append(f"{host} handled {partition.id} {age_s:.1f} s after its last write")
        await asyncio.sleep(self.rng.choice([0, 0, 0.3, 2, 20]))

    async def join(self) -> None:
        rates = {"before": 0.1, "after": 0.1, "failed": 0.1, "stale": 0.1, "delay_s_max": 3.0}
        store = FlakyStore(self.store, RandomFaults(Random(self.rng.random()), **rates), self.clock)
        self.stores.append(store)
        self.hosts_made += 1
        await self.fleet.add(f"h{self.hosts_made}", work=self.work, checkpoint=False, store=store)

    async def change_hosts(self) -> None:
        """Let a random host join, leave or crash, or drop the connections."""
        names = list(self.fleet.hosts)
        action = self.rng.choice(["join", "leave", "crash", "drop", "nothing", "nothing"])
        if action == "join" and len(names) < 5:
            await self.join()
        elif action == "leave" and len(names) > 1:
            await self.fleet.leave(self.rng.choice(names))
        elif action == "crash" and len(names) > 1:
            await self.fleet.crash(self.rng.choice(names))
        elif action == "drop":
            self.fleet.hub.drop_connections()

    async def inject_faults(self) -> None:
        for _ in range(2):
            await self.join()
        for _ in range(12):
            await self.change_hosts()
            await self.fleet.send(5)
            await asyncio.sleep(self.rng.uniform(1, 40))

    async def recover(self) -> None:
        for store in self.stores:
            store.plan = NO_FAULTS
        await self.fleet.send(5)
        await self.fleet.until_handled()
        await self.fleet.until_even()

    def check_owners(self) -> None:
        """I1: an epoch of a partition belongs to one host."""
        for partition in self.fleet.partitions:
            hosts = defaultdict(set)
            for handled in self.fleet.record[partition]:
                hosts[handled.epoch].add(handled.host)
            assert all(len(names_of_epoch) == 1 for names_of_epoch in hosts.values()), hosts


@pytest.mark.parametrize(("seed", "strategy"), list(enumerate(STRATEGIES)))
def test_no_event_is_lost_with_store_faults_and_crashes(seed: int, strategy: str) -> None:
    """I1, I3, I4, I5, I7, I9."""

    async def scenario() -> None:
        faulty = FaultyFleet(seed, strategy)
        async with faulty.fleet:
            await faulty.inject_faults()
            await faulty.recover()
            faulty.fleet.check_order()
            faulty.check_owners()
            assert faulty.store.faults == []
            assert faulty.faults == []
            assert sum(store.injected.total() for store in faulty.stores) > 20

    run(scenario())
