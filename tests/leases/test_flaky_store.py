"""FlakyStore: its faults are allowed by the contract, and a seed repeats them."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from pumphouse.errors import OptionError, StoreUnavailable
from pumphouse.leases.flaky_store import NO_FAULTS, Fault, FlakyStore, RandomFaults, ScriptedFaults
from pumphouse.leases.model import Checkpoint, Granted, Group, Ownership, Unknown, claim, renew
from pumphouse.leases.store import ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore
from tests.leases.contract.calls import first, granted, members, rows, write
from tests.leases.contract.stores import GROUP


class SleepyClock:
    """A clock that advances only by sleep."""

    def __init__(self) -> None:
        self.time = 0.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds


async def test_without_faults_it_is_the_inner_store() -> None:
    store = MemoryStore(SleepyClock())
    async with FlakyStore(store) as flaky:
        row = await first(flaky)
        await flaky.beat(GROUP, "a")
        await flaky.update_checkpoint(Checkpoint(GROUP, "0", 1, "1", 1))
        assert await flaky.list_ownership(GROUP) == await store.list_ownership(GROUP)
        assert await flaky.list_checkpoints(GROUP) == await store.list_checkpoints(GROUP)
        await flaky.leave(GROUP, "a")
        assert await members(store) == {}
        await granted(flaky, renew(row))
    assert not flaky.injected


async def test_a_stale_listing_is_the_previous_one_aged() -> None:
    clock = SleepyClock()
    store = MemoryStore(clock)
    flaky = FlakyStore(store, clock=clock)
    row = await first(store, host="a")
    await store.beat(GROUP, "a")
    await rows(flaky)
    await granted(store, claim(row, "0", "b"))
    clock.time += 10
    flaky.plan = ScriptedFaults(["stale"])
    listing = await flaky.list_ownership(GROUP)
    assert [(each.owner, each.etag, each.age_s) for each in listing.ownerships] == [
        ("a", row.etag, 10)
    ]
    assert [each.age_s for each in listing.members] == [10]
    assert (await rows(flaky))["0"].owner == "b"
    assert flaky.injected == {"stale": 1}


async def test_the_first_listing_cannot_be_stale() -> None:
    store = MemoryStore()
    await first(store)
    flaky = FlakyStore(store, RandomFaults(Random(0), stale=1))
    assert "0" in await rows(flaky)
    assert await flaky.list_checkpoints(GROUP) == []
    assert not flaky.injected


async def test_a_scripted_fault_waits_for_a_call_that_it_applies_to() -> None:
    flaky = FlakyStore(MemoryStore(), ScriptedFaults(["failed", "after"]))
    assert isinstance(await write(flaky, claim(None, "0", "a")), Granted)
    with pytest.raises(StoreUnavailable):
        await flaky.list_ownership(GROUP)
    assert isinstance(await write(flaky, claim(None, "1", "a")), Unknown)
    assert flaky.injected == {"failed": 1, "after": 1}


async def test_a_write_lost_before_the_store_is_not_sent() -> None:
    sent: list[str] = []

    class Watched(MemoryStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            sent.extend(row.partition for row in claims)
            return await super().claim_ownership(group, claims)

    flaky = FlakyStore(Watched(), ScriptedFaults(["before", "", "before"]))
    await flaky.claim_ownership(GROUP, [claim(None, str(n), "a") for n in range(3)])
    assert sent == ["1"]


async def test_delays_pass_by_the_given_clock() -> None:
    clock = SleepyClock()
    flaky = FlakyStore(MemoryStore(clock), RandomFaults(Random(1), delay_s_max=10.0), clock)
    await first(flaky)
    await rows(flaky)
    assert len(clock.slept) == 4  # there and back
    assert all(0 < slept <= 5 for slept in clock.slept)


async def test_a_plan_can_be_replaced() -> None:
    flaky = FlakyStore(MemoryStore(), RandomFaults(Random(0), before=1, failed=1))
    assert isinstance(await write(flaky, claim(None, "0", "a")), Unknown)
    flaky.plan = NO_FAULTS
    await first(flaky)


def test_the_same_seed_draws_the_same_faults() -> None:
    def thrown(seed: int) -> list[Fault]:
        rates = RandomFaults(Random(seed), before=0.2, after=0.3, failed=0.1, stale=0.4)
        return [rates.draw("write" if n % 2 else "read") for n in range(1000)]

    assert thrown(1) == thrown(1)
    assert thrown(1) != thrown(2)
    share = {fault: thrown(1).count(fault) / 500 for fault in ("before", "after", "stale")}
    assert share == pytest.approx({"before": 0.2, "after": 0.3, "stale": 0.4}, abs=0.06)


@pytest.mark.parametrize("rates", [{"before": 1.5}, {"stale": -1}, {"before": 0.6, "after": 0.6}])
def test_rates_are_probabilities(rates: dict[str, float]) -> None:
    with pytest.raises(OptionError, match="rate"):
        RandomFaults(Random(0), **rates)
