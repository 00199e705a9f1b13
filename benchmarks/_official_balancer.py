"""The official balancer on a virtual clock: the unchanged OwnershipManager of azure-eventhub.

It runs with a hub that has only partition ids, and with a store in memory that compares etags as
the blob store does. Its `time.time` is the virtual clock. Its cycle, interval and jitter are those
of its EventProcessor: claim, then sleep for 30 to 36 seconds.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from azure.eventhub import LoadBalancingStrategy
from azure.eventhub.aio._eventprocessor import _ownership_manager
from azure.eventhub.aio._eventprocessor._ownership_manager import OwnershipManager

from benchmarks._balancing import GROUP, BalancingHost, MoveCounter, Scenario, Side, VirtualClock

OFFICIAL = "azure-eventhub"
KINDS = ("greedy", "balanced")
INTERVAL_S = 30.0
JITTER = 0.2
TIMEOUT_S = 6 * INTERVAL_S


class EtagStore:
    """A store in memory with compare-and-set; rows are copied in and out."""

    def __init__(self, clock: VirtualClock, counter: MoveCounter) -> None:
        self._clock, self._tally = clock, counter
        self._rows: dict[str, dict[str, Any]] = {}
        self._writes = 0

    async def list_ownership(self, *_: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self._rows.values()]

    async def claim_ownership(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [dict(self._write(row)) for row in rows if self._may_write(row)]

    def _may_write(self, row: dict[str, Any]) -> bool:
        stored = self._rows.get(row["partition_id"], {})
        return bool(stored.get("etag") == row.get("etag"))

    def _write(self, row: dict[str, Any]) -> dict[str, Any]:
        self._writes += 1
        written = {**row, "etag": str(self._writes), "last_modified_time": self._clock.now()}
        self._rows[row["partition_id"]] = written
        self._tally.wrote(row["partition_id"], row["owner_id"])
        return written


class Address:
    hostname = GROUP.namespace


class PartitionsOnly:
    """The part of a client that the balancer uses."""

    _address = Address
    eventhub_name = GROUP.hub

    def __init__(self, partitions: int) -> None:
        self._partitions = [str(n) for n in range(partitions)]

    async def get_partition_ids(self) -> list[str]:
        return self._partitions


def balancer(name: str, kind: str, partitions: int, store: Any) -> OwnershipManager:
    client: Any = PartitionsOnly(partitions)
    strategy = LoadBalancingStrategy(kind)
    return OwnershipManager(client, GROUP.name, name, store, TIMEOUT_S, strategy, None)


class OfficialHost:
    def __init__(self, name: str, manager: OwnershipManager, rng: Random) -> None:
        self.name, self._manager, self._rng = name, manager, rng

    async def cycle(self) -> float:
        random.seed(self._rng.random())  # the balancer uses the global generator
        await self._manager.claim_ownership()
        return INTERVAL_S * (1 + JITTER * self._rng.random())


def official(kind: str, scenario: Scenario, rng: Random) -> Side:
    clock, counter = VirtualClock(), MoveCounter()
    vars(_ownership_manager)["time"] = clock
    store = EtagStore(clock, counter)

    def host(name: str) -> BalancingHost:
        manager = balancer(name, kind, scenario.partitions, store)
        return OfficialHost(name, manager, Random(rng.random()))

    return Side(clock, counter, host, INTERVAL_S)


# -- one decision ---------------------------------------------------------------------------------


def one_decision(me: str, owners: dict[str, str]) -> Callable[[], list[dict[str, Any]]]:
    """A call that returns the claims of the balancer. It changes its rows: use it once."""
    clock = VirtualClock()
    vars(_ownership_manager)["time"] = clock
    manager = balancer(me, "greedy", len(owners), EtagStore(clock, MoveCounter()))
    rows = [
        {"partition_id": partition, "owner_id": owner, "last_modified_time": clock.now()}
        for partition, owner in owners.items()
    ]
    return partial(manager._balance_ownership, rows, list(owners))
