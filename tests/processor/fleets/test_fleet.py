"""Whole hosts on a real hub: they share partitions, join, leave, crash, and lose no event."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Self

from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership
from pumphouse.leases.store import CheckpointOutcome, CheckpointStore, ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import LoopClock, run


class CountingStore:
    """Counts the calls to a store."""

    def __init__(self, store: CheckpointStore) -> None:
        self.store = store
        self.calls: Counter[str] = Counter()

    async def __aenter__(self) -> Self:
        await self.store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.store.__aexit__(*exc)

    async def list_ownership(self, group: Group) -> Listing:
        self.calls["list_ownership"] += 1
        return await self.store.list_ownership(group)

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        self.calls["claim_ownership"] += 1
        self.calls["rows"] += len(claims)
        return await self.store.claim_ownership(group, claims)

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        self.calls["list_checkpoints"] += 1
        return await self.store.list_checkpoints(group)

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        self.calls["update_checkpoint"] += 1
        return await self.store.update_checkpoint(checkpoint, rewind=rewind)

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        self.calls["beat"] += 1
        await self.store.beat(group, name, max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self.store.leave(group, name)


def test_hosts_that_start_together_share_all_partitions() -> None:
    async def scenario() -> None:
        async with Fleet(16) as fleet:
            for name in ("a", "b", "c", "d", "e"):
                await fleet.add(name)
            await fleet.send()
            await fleet.until_handled()
            await fleet.until_even()
            assert sorted(fleet.counts().values()) == [3, 3, 3, 3, 4]
            fleet.check_clean()
            assert [change for _, change, _ in fleet.changes].count("lost") == 0

    run(scenario())


def test_a_new_host_gets_its_share_without_a_duplicate() -> None:
    """I2, I6, I9: in a clean move the old handler has returned before the new one starts."""

    async def scenario() -> None:
        async with Fleet(8) as fleet:

            async def slow(partition: PartitionClient, batch: list[Event]) -> None:
                await asyncio.sleep(0.7)

            await fleet.add("a", work=slow)
            await fleet.until_even()
            await fleet.add("b", work=slow)
            await fleet.add("c", work=slow)
            for _ in range(40):
                await fleet.send(3)
                await asyncio.sleep(1)
            await fleet.until_handled()
            await fleet.until_even()
            fleet.check_clean()
            moved = [p for p in fleet.partitions if len({h.host for h in fleet.record[p]}) > 1]
            assert len(moved) == 5, "the minimum: a had 8 and keeps 3"

    run(scenario())


def test_the_partitions_of_a_host_that_leaves_are_claimed_by_the_others() -> None:
    """I6 and I13: stop() finishes the current batch, and other hosts continue behind it."""

    async def scenario() -> None:
        async with Fleet(8) as fleet:
            for name in ("a", "b", "c"):
                await fleet.add(name)
            await fleet.send()
            await fleet.until_even()
            await fleet.leave("a")
            rows = await fleet.rows()
            assert "a" not in {row.owner for row in rows.values()}
            listing = await fleet.store.list_ownership(fleet.group)
            assert "a" not in {member.name for member in listing.members}
            await fleet.send()
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


def test_a_stop_releases_all_partitions_and_keeps_the_epochs() -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            await fleet.add("a")
            await fleet.send()
            await fleet.until_handled()
            await fleet.leave("a")
            rows = await fleet.rows()
            assert {(row.owner, row.epoch) for row in rows.values()} == {("", 1)}
            await fleet.add("b")
            await fleet.send()
            await fleet.until_handled()
            assert {row.epoch for row in (await fleet.rows()).values()} == {2}
            fleet.check_clean()

    run(scenario())


def test_a_crash_is_taken_over_within_lease_and_interval() -> None:
    """I3, I8 and I6: only events behind the checkpoint are handled twice."""

    async def scenario() -> None:
        async with Fleet(8) as fleet:
            await fleet.add("a", checkpoint=False)
            await fleet.add("b")
            await fleet.send()
            await fleet.until_handled()
            await fleet.until_even()
            crashed_s = fleet.clock.monotonic()
            theirs = set(fleet.hosts["a"].owned)
            await fleet.crash("a")
            await fleet.send()
            await fleet.until_handled()
            taken_s = max(next(h.at_s for h in fleet.record[p] if h.host == "b") for p in theirs)
            bound_s = fleet.options.lease_s + fleet.options.interval_s
            assert fleet.options.lease_s / 2 < taken_s - crashed_s <= bound_s + 1
            fleet.check_order()
            assert fleet.overlaps == []
            assert fleet.duplicates() == 10 * len(theirs), "everything since the last checkpoint"

    run(scenario())


def test_a_restart_continues_behind_the_checkpoint() -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            await fleet.add("a")
            await fleet.send(100)
            await fleet.until_handled()
            await fleet.leave("a")
            await fleet.send(100)
            await fleet.add("a")
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


def test_a_restarted_host_of_the_same_name_claims_its_rows_at_once() -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            await fleet.add("a")
            await fleet.send()
            await fleet.until_handled()
            await fleet.crash("a")
            started_s = fleet.clock.monotonic()
            await fleet.add("a")
            await fleet.send()
            await fleet.until_handled()
            assert fleet.clock.monotonic() - started_s < fleet.options.lease_s / 2
            assert {row.epoch for row in (await fleet.rows()).values()} == {2}
            fleet.check_order()

    run(scenario())


def test_a_settled_fleet_moves_nothing_and_a_cycle_costs_one_listing() -> None:
    """I7 and I10."""

    async def scenario() -> None:
        counting = CountingStore(MemoryStore(LoopClock()))
        async with Fleet(8, store=counting) as fleet:
            for name in ("a", "b", "c"):
                await fleet.add(name)
            await fleet.until_even()
            await asyncio.sleep(60)
            owned = {name: host.owned for name, host in fleet.hosts.items()}
            counting.calls.clear()
            started_s = fleet.clock.monotonic()
            await asyncio.sleep(300)
            assert owned == {name: host.owned for name, host in fleet.hosts.items()}
            cycles = counting.calls["list_ownership"] / 3
            assert 300 / 10 <= cycles <= 300 / 9 + 1
            assert counting.calls["rows"] <= 8 * (cycles + 1), "one write per partition and cycle"
            assert set(counting.calls) == {"list_ownership", "claim_ownership", "rows"}
            assert started_s < fleet.clock.monotonic()

    run(scenario())
