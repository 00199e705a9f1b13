"""An engine with a failing store: expired leases, lost responses, bounded stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pumphouse.errors import (
    OwnershipLost,
    StoreError,
)
from pumphouse.events import Event
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults, ScriptedFaults
from pumphouse.leases.model import (
    Checkpoint,
    Group,
    Ownership,
    Unknown,
)
from pumphouse.leases.store import CheckpointOutcome, CheckpointStore, ClaimOutcome
from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.fleet import OPTIONS, Fleet
from tests.processor.support.virtual_time import LoopClock, run

SILENT = {"before": 1.0, "failed": 1.0}


class DeafStore(FlakyStore):
    """Ownership rows get no response any more; checkpoints are still written."""

    deaf = False

    def __init__(self, store: CheckpointStore, *, clock: LoopClock) -> None:
        super().__init__(store, clock=clock)
        self.marked_s: list[float] = []

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        self.marked_s.append(asyncio.get_running_loop().time())
        return await super().update_checkpoint(checkpoint, rewind=rewind)

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        if self.deaf:
            return [Unknown(row, "deaf on purpose") for row in claims]
        return await super().claim_ownership(group, claims)


def silence(store: FlakyStore) -> None:
    store.plan = RandomFaults(Random(1), **SILENT)


# -- leases that expire ---------------------------------------------------------------------------


OFTEN = replace(OPTIONS, checkpoints=CheckpointPolicy(every_s=2.0))


def test_an_owner_that_cannot_renew_delivers_nothing_after_its_lease() -> None:
    """Self-fencing, and I8: another host takes over, and no event is lost."""

    async def scenario() -> None:
        async with Fleet(2, options=OFTEN) as fleet:
            cut_off = DeafStore(fleet.store, clock=fleet.clock)
            await fleet.add("a", store=cut_off, checkpoint=False)
            await fleet.add("b", checkpoint=False)
            await fleet.until_even()
            (lost,) = fleet.hosts["a"].owned
            await fleet.send()
            await fleet.until_handled()
            cut_off.deaf, silent_s = True, fleet.clock.monotonic()
            for _ in range(60):
                await fleet.send(1)
                await asyncio.sleep(1)
            await fleet.until_handled()
            last_s = max(h.at_s for h in fleet.record[lost] if h.host == "a")
            assert 10 < last_s - silent_s <= fleet.options.lease_s
            # The store would still accept checkpoints: the owner itself writes none.
            assert 10 < max(cut_off.marked_s) - silent_s <= fleet.options.lease_s
            assert ("a", "lost", lost) in fleet.changes
            assert fleet.hosts["b"].owned == tuple(fleet.partitions)
            assert fleet.record[lost][-1].host == "b"
            assert fleet.overlaps == []
            fleet.check_order()

    run(scenario())


def test_after_an_outage_longer_than_the_lease_partitions_are_claimed_again() -> None:
    """Events after the last checkpoint are handled again, and none before it."""

    async def scenario() -> None:
        async with Fleet(2, options=OFTEN) as fleet:
            away = FlakyStore(fleet.store, clock=fleet.clock)
            await fleet.add("a", store=away, checkpoint=False)
            await fleet.until_even()
            await fleet.send()
            await fleet.until_handled()
            await asyncio.sleep(5)
            silence(away)
            for _ in range(60):
                await fleet.send(1)
                await asyncio.sleep(1)
            assert fleet.hosts["a"].owned == ()
            away.plan = NO_FAULTS
            await fleet.until_handled()
            again = {n for p in fleet.partitions for n in fleet.sequences(p)
                     if fleet.sequences(p).count(n) > 1}  # fmt: skip
            assert again
            assert min(again) == 10  # the first event behind the checkpoint
            fleet.check_order()

    run(scenario())


def test_a_batch_received_before_the_lease_expired_is_not_handed_out_after() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cut_off = FlakyStore(fleet.store, clock=fleet.clock)
            await fleet.add("a", store=cut_off)
            await fleet.until_even()
            fleet.hosts["a"].pause()
            await fleet.send()
            silence(cut_off)
            await asyncio.sleep(fleet.options.lease_s + 1)
            fleet.hosts["a"].resume()
            await asyncio.sleep(5)
            assert fleet.record["0"] == []

    run(scenario())


def test_an_owner_with_a_slow_clock_cannot_checkpoint_and_is_evicted() -> None:
    """I1: a host that was suspended continues as if no time had passed."""

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            asleep, awake = asyncio.Event(), asyncio.Event()
            raised: list[Exception] = []

            class Frozen(LoopClock):
                def monotonic(self) -> float:
                    return 0.0

            async def work(partition: PartitionClient, batch: list[Event]) -> None:
                asleep.set()
                await awake.wait()
                try:
                    await partition.checkpoint()
                except OwnershipLost as lost:
                    raised.append(lost)
                assert not partition.live

            deaf = DeafStore(fleet.store, clock=fleet.clock)
            await fleet.add("a", store=deaf, clock=Frozen(), work=work, checkpoint=False)
            await fleet.until(lambda: fleet.hosts["a"].owned, "a to own it")
            await fleet.send()
            await asleep.wait()
            deaf.deaf = True
            await fleet.add("b")
            await fleet.until(lambda: fleet.hosts["b"].owned, "b to take it")
            await fleet.until(lambda: len(fleet.record["0"]) == 20, "b to handle it again")
            assert (await fleet.checkpoints())["0"] == 9
            deaf.deaf = False
            awake.set()
            await fleet.until(lambda: raised, "a to be refused")
            await fleet.until(lambda: not fleet.hosts["a"].owned, "a to see it")
            assert fleet.hosts["b"].owned == ("0",)
            fleet.check_order()

    run(scenario())


def test_a_store_outage_shorter_than_the_lease_does_not_affect_handlers() -> None:
    async def scenario() -> None:
        async with Fleet(4, options=OFTEN) as fleet:
            shaky = FlakyStore(fleet.store, clock=fleet.clock)
            for name in ("a", "b"):
                await fleet.add(name, store=shaky, checkpoint=False)
            await fleet.until_even()
            silence(shaky)
            for _ in range(15):
                await fleet.send(1)
                await asyncio.sleep(1)
            await fleet.until_handled()
            assert set((await fleet.checkpoints()).values()) == {None}
            shaky.plan = NO_FAULTS
            await asyncio.sleep(5)
            assert set((await fleet.checkpoints()).values()) == {14}  # they were delayed
            await asyncio.sleep(60)
            await fleet.send(1)
            await fleet.until_handled()
            fleet.check_clean()
            assert [change for _, change, _ in fleet.changes].count("lost") == 0
            assert fleet.errors
            assert all(isinstance(failed, StoreError) for _, _, failed in fleet.errors)

    run(scenario())


def test_a_listing_that_hangs_does_not_block_renewals() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:

            class Slow(FlakyStore):
                async def list_ownership(self, group: Group):  # type: ignore[no-untyped-def]
                    if fleet.hosts.get("a") and fleet.hosts["a"].owned:
                        await asyncio.sleep(1e6)
                    return await super().list_ownership(group)

            await fleet.add("a", store=Slow(fleet.store, clock=fleet.clock))
            await fleet.until(lambda: len(fleet.hosts["a"].owned) == 2, "a to own everything")
            await asyncio.sleep(300)
            ages = [row.age_s for row in (await fleet.rows()).values()]
            assert max(ages) < fleet.options.lease_s / 2
            assert len(fleet.hosts["a"].owned) == 2

    run(scenario())


def test_leases_are_renewed_between_cycles_that_are_far_apart() -> None:
    async def scenario() -> None:
        options = ProcessorOptions(interval_s=300.0)
        async with Fleet(2, options=options, strategy="greedy") as fleet:
            await fleet.add("a")
            await fleet.until(lambda: len(fleet.hosts["a"].owned) == 2, "a to own everything")
            for _ in range(10):
                await asyncio.sleep(23)
                ages = [row.age_s for row in (await fleet.rows()).values()]
                assert max(ages) < options.lease_s / 2
            assert len(fleet.hosts["a"].owned) == 2

    run(scenario())


# -- lost responses -------------------------------------------------------------------------------


def test_a_claim_without_a_response_is_ours_once_the_listing_shows_it() -> None:
    """Unknown is not owned: nothing is handed out before, and the epoch rises once."""

    async def scenario() -> None:
        async with Fleet(1, strategy="greedy") as fleet:
            lossy = FlakyStore(fleet.store, ScriptedFaults(["after"]), fleet.clock)
            await fleet.send()
            await fleet.add("a", store=lossy)
            await fleet.until(lambda: lossy.injected["after"], "the response to be lost")
            assert fleet.hosts["a"].owned == ()
            assert (await fleet.rows())["0"].owner == "a"
            await fleet.until_handled()
            assert (await fleet.rows())["0"].epoch == 1
            fleet.check_clean()

    run(scenario())


def test_a_claim_that_never_arrived_is_retried() -> None:
    async def scenario() -> None:
        async with Fleet(1, strategy="greedy") as fleet:
            await fleet.add(
                "a", store=FlakyStore(fleet.store, ScriptedFaults(["before"]), fleet.clock)
            )
            await fleet.send()
            await fleet.until_handled()
            assert (await fleet.rows())["0"].epoch == 1

    run(scenario())


@pytest.mark.parametrize("mishap", ["before", "after"])
def test_a_handover_without_a_response_moves_the_partition_once(mishap: str) -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            lossy = FlakyStore(fleet.store, clock=fleet.clock)
            await fleet.add("a", store=lossy)
            await fleet.until_even()
            await fleet.send()
            await fleet.until_handled()

            async def lose_next_hand_over() -> None:
                asked = {("a", "asked", partition) for partition in fleet.partitions}
                await fleet.until(lambda: asked & set(fleet.changes), "a to be asked for it")
                lossy.plan = ScriptedFaults([mishap])  # type: ignore[list-item]

            await asyncio.gather(fleet.add("b"), lose_next_hand_over())
            await fleet.until_even()
            await fleet.send()
            await fleet.until_handled()
            assert lossy.injected[mishap] == 1  # type: ignore[index]
            fleet.check_clean()
            assert sorted(row.epoch for row in (await fleet.rows()).values()) == [1, 2]

    run(scenario())


# -- stopping -------------------------------------------------------------------------------------


def test_stop_is_bounded_whatever_a_handler_does() -> None:
    """I13."""

    async def scenario() -> None:
        async with Fleet(2) as fleet:

            async def deaf(partition: PartitionClient, batch: list[Event]) -> None:
                for _ in range(1000):
                    try:
                        await asyncio.sleep(1000)
                    except asyncio.CancelledError:
                        continue

            host = await fleet.add("a", work=deaf)
            await fleet.until_even()
            await fleet.send()
            await fleet.until(lambda: fleet.inside["0"], "the handler to be called")
            started_s = fleet.clock.monotonic()
            await host.stop()
            options = fleet.options
            assert fleet.clock.monotonic() - started_s <= options.stop_s + 6 * options.store_s
            assert {row.owner for row in (await fleet.rows()).values()} == {"a"}, "left to expire"

    run(scenario())


def test_stop_is_bounded_when_the_store_does_not_respond() -> None:
    """I13."""

    async def scenario() -> None:
        async with Fleet(2) as fleet:
            cut_off = FlakyStore(fleet.store, clock=fleet.clock)
            host = await fleet.add("a", store=cut_off)
            await fleet.until_even()

            class Hanging(ScriptedFaults):
                def delay_s(self) -> float:
                    return 1e6

            cut_off.plan = Hanging()
            started_s = fleet.clock.monotonic()
            await host.stop()
            options = fleet.options
            assert fleet.clock.monotonic() - started_s <= options.stop_s + 6 * options.store_s

    run(scenario())
