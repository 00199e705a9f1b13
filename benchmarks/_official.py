"""The official balancer on a virtual clock: azure-eventhub's own OwnershipManager, unchanged.

It is given a hub that only names its partitions and a store in memory that compares etags, as the
blob store does; `time.time` inside it is the virtual clock. Its cycle, interval and jitter are
those of its EventProcessor: claim, then sleep for 30 to 36 seconds.
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

from benchmarks._fleet import GROUP, Player, Scene, SendTotals, Side, VirtualClock

OFFICIAL = "azure-eventhub"
KINDS = ("greedy", "balanced")
INTERVAL_S = 30.0
JITTER = 0.2
TIMEOUT_S = 6 * INTERVAL_S


class EtagStore:
    """List, and compare and set; rows are copied in and out."""

    def __init__(self, clock: VirtualClock, tally: SendTotals) -> None:
        self._clock, self._tally = clock, tally
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
    """All that the balancer asks of a client."""

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
        random.seed(self._rng.random())  # it draws from the one that everybody shares
        await self._manager.claim_ownership()
        return INTERVAL_S * (1 + JITTER * self._rng.random())


def official(kind: str, scene: Scene, rng: Random) -> Side:
    clock, tally = VirtualClock(), SendTotals()
    vars(_ownership_manager)["time"] = clock
    store = EtagStore(clock, tally)

    def host(name: str) -> Player:
        manager = balancer(name, kind, scene.partitions, store)
        return OfficialHost(name, manager, Random(rng.random()))

    return Side(clock, tally, host, INTERVAL_S)


# -- one decision ---------------------------------------------------------------------------------


def one_decision(me: str, owners: dict[str, str]) -> Callable[[], list[dict[str, Any]]]:
    """What it would claim, as a call: it changes the rows that it is given, so make it anew."""
    clock = VirtualClock()
    vars(_ownership_manager)["time"] = clock
    manager = balancer(me, "greedy", len(owners), EtagStore(clock, SendTotals()))
    rows = [
        {"partition_id": partition, "owner_id": owner, "last_modified_time": clock.now()}
        for partition, owner in owners.items()
    ]
    return partial(manager._balance_ownership, rows, list(owners))
