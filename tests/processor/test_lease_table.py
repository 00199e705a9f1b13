"""What a host holds, write by write, on the strict store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pumphouse.errors import OwnershipLost, StoreError
from pumphouse.leases.model import (
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    claim,
    hand_over,
    nominate,
)
from pumphouse.leases.store import ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.lease_table import LeaseTable
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import Lease, due_on_watch
from tests.leases.flaky_store import FlakyStore, RandomFaults, ScriptedFaults

GROUP = Group("n", "h")
OPTIONS = ProcessorOptions()


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class Ears:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def gained(self, lease: Lease) -> None:
        self.heard.append(("gained", lease.partition))

    def renewed(self, lease: Lease) -> None:
        self.heard.append(("renewed", lease.partition))

    def raised(self, lease: Lease) -> None:
        self.heard.append(("raised", str(lease.row.epoch)))

    def asked_for(self, lease: Lease) -> None:
        self.heard.append(("asked", lease.row.successor))

    def lost(self, partition: str, why: OwnershipLost) -> None:
        self.heard.append(("lost", why.owner))

    def report(self, partition: str | None, failed: Exception) -> None:
        self.heard.append(("failed", type(failed).__name__))


class Desk:
    """One host's leases on a store that others write too."""

    def __init__(self) -> None:
        self.clock, self.ears = Hand(), Ears()
        self.store = MemoryStore(self.clock)
        self.flaky = FlakyStore(self.store, clock=self.clock)
        self.leases = LeaseTable(self.flaky, GROUP, "me", OPTIONS, self.clock, self.ears)

    async def own(self, partition: str = "0") -> None:
        assert await self.leases.claim([claim(None, partition, "me")]) == [partition]

    async def row(self, partition: str = "0") -> Ownership:
        listing = await self.store.list_ownership(GROUP)
        return next(row for row in listing.ownerships if row.partition == partition)

    async def write(self, row: Ownership) -> None:
        (outcome,) = await self.store.claim_ownership(GROUP, [row])
        assert isinstance(outcome, Granted)

    async def list(self) -> list[str]:
        sent_s = self.clock.monotonic()
        named = self.leases.heard(await self.flaky.list_ownership(GROUP), sent_s)
        return await self.leases.confirm(named)


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def test_only_the_epoch_that_we_hold_binds_and_only_for_a_lease(desk: Desk) -> None:
    await desk.own()
    assert desk.leases.binds("0", 1)
    assert not desk.leases.binds("0", 2)
    assert not desk.leases.binds("1", 1)
    desk.clock.time = OPTIONS.lease_s
    assert not desk.leases.binds("0", 1)
    desk.leases.fence()
    assert desk.ears.heard[-1] == ("lost", "")


async def test_what_was_given_up_while_a_renewal_waited_for_its_turn_is_left_out(
    desk: Desk,
) -> None:
    """A lock that was released and goes to a waiter says that it is free."""
    await desk.own("0")
    await desk.own("1")
    gate = asyncio.Event()

    class Slow(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            await gate.wait()
            return await super().claim_ownership(group, claims)

    second: list[asyncio.Task[None]] = []

    class Hasty(Ears):
        """Renews once more, as soon as the answer is there."""

        def renewed(self, lease: Lease) -> None:
            if not second:
                second.append(asyncio.create_task(desk.leases.renew(["0", "1"])))

    desk.leases.store, desk.leases.listener = Slow(desk.store, clock=desk.clock), Hasty()
    first = asyncio.create_task(desk.leases.renew(["0", "1"]))
    await asyncio.sleep(0.01)
    leaving = asyncio.create_task(desk.leases.give_up("1"))
    await asyncio.sleep(0.01)
    gate.set()
    await first
    assert await leaving
    await second[0]
    assert list(desk.leases.held) == ["0"]
    assert (await desk.row("1")).owner == ""


async def test_an_answer_that_comes_after_the_lease_ran_out_gives_nothing_back(desk: Desk) -> None:
    """Whatever the store says later."""
    await desk.own()
    gate = asyncio.Event()

    class Late(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            outcomes = await super().claim_ownership(group, claims)
            await gate.wait()
            return outcomes

    desk.leases.store = Late(desk.store, clock=desk.clock)
    renewing = asyncio.create_task(desk.leases.renew(["0"]))
    await asyncio.sleep(0.01)
    desk.clock.time = OPTIONS.lease_s
    gate.set()
    await renewing
    assert desk.ears.heard[-1] == ("lost", "")
    assert desk.leases.held == {}
    assert not desk.leases.binds("0", 1)


async def test_a_listing_says_nothing_of_what_is_just_being_written(desk: Desk) -> None:
    await desk.own()
    await desk.write(nominate(await desk.row(), "b", 20.0))
    await desk.list()
    written, gate = asyncio.Event(), asyncio.Event()

    class Late(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            outcomes = await super().claim_ownership(group, claims)
            written.set()
            await gate.wait()
            return outcomes

    desk.leases.store = Late(desk.store, clock=desk.clock)
    giving = asyncio.create_task(desk.leases.give_up("0"))
    await written.wait()
    await desk.list()
    gate.set()
    assert await giving
    assert ("lost", "b") not in desk.ears.heard, "it was given, not lost"


async def test_a_refusal_that_says_nothing_calls_for_a_listing(desk: Desk) -> None:
    class Mute(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            return [Refused(row) for row in claims]

    await desk.own()
    desk.leases.store = Mute(desk.store, clock=desk.clock)
    await desk.leases.renew(["0"])
    assert desk.leases.doubts.is_set()
    assert desk.leases.held["0"].doubtful
    await desk.list()
    assert not desk.leases.held["0"].doubtful


async def test_renewals_tell_the_rate(desk: Desk) -> None:
    await desk.own()
    desk.leases.count("0", 50)
    desk.clock.time = 10.0
    await desk.leases.renew(["0"])
    assert (await desk.row()).rate == 5.0
    assert ("renewed", "0") in desk.ears.heard


async def test_a_successor_is_heard_of_and_gets_it(desk: Desk) -> None:
    await desk.own()
    await desk.write(nominate(await desk.row(), "b", 20.0))
    desk.clock.time = 5.0
    await desk.leases.renew(["0"])
    assert desk.ears.heard[-1] == ("asked", "b")
    desk.clock.time = 12.0
    await desk.leases.renew(["0"])
    assert (await desk.row()).deadline_s == pytest.approx(8.0), "not put off by the renewal"
    assert await desk.leases.give_up("0")
    row = await desk.row()
    assert (row.owner, row.epoch, row.successor) == ("b", 2, "")
    assert row.handed
    assert row.deadline_s == OPTIONS.renew_s, "so long b has to say that it is there"


@pytest.mark.parametrize("mishaps", [["before"], ["after"], ["before", "after"]])
async def test_giving_up_is_tried_until_it_is_known(desk: Desk, mishaps: list[str]) -> None:
    await desk.own()
    desk.flaky.plan = ScriptedFaults(mishaps)  # type: ignore[arg-type]
    assert await desk.leases.give_up("0")
    assert (await desk.row()).owner == ""
    assert desk.leases.held == {}


async def test_giving_up_ends_even_if_nobody_answers(desk: Desk) -> None:
    await desk.own()
    desk.flaky.plan = RandomFaults(Random(1), before=1.0)
    assert not await desk.leases.give_up("0")
    assert desk.leases.held == {}


async def test_a_row_that_we_asked_for_is_taken_once(desk: Desk) -> None:
    """An old listing must not bring back what was given up."""
    await desk.write(claim(None, "0", "b"))
    assert await desk.leases.nominate([nominate(await desk.row(), "me", 20.0)]) == ["0"]
    await desk.write(hand_over(await desk.row()))
    old = await desk.store.list_ownership(GROUP)
    assert await desk.list() == ["0"]
    assert desk.leases.held["0"].row.epoch == 2
    assert await desk.leases.give_up("0")
    assert desk.leases.heard(old, desk.clock.monotonic()) == []


async def test_an_unknown_claim_that_is_too_old_is_not_taken(desk: Desk) -> None:
    desk.flaky.plan = ScriptedFaults(["after"])
    assert await desk.leases.claim([claim(None, "0", "me")]) == []
    desk.clock.time = OPTIONS.lease_s
    assert await desk.list() == []


class Ageless(FlakyStore):
    """Tells that a lease is held, and not since when, as a blob's lease does."""

    async def list_ownership(self, group: Group) -> Listing:
        listing = await super().list_ownership(group)
        rows = tuple(replace(row, age_s=0.0) for row in listing.ownerships)
        return replace(listing, ownerships=rows)


@pytest.mark.parametrize("kind", [FlakyStore, Ageless])
async def test_what_was_handed_over_is_written_before_it_binds(
    desk: Desk, kind: type[FlakyStore]
) -> None:
    """Its lease counts from our write: how old the row was, a store may not be able to tell."""
    desk.flaky = desk.leases.store = kind(desk.store, clock=desk.clock)
    await desk.write(claim(None, "0", "b"))
    await desk.leases.nominate([nominate(await desk.row(), "me", 60.0)])
    await desk.write(hand_over(await desk.row(), OPTIONS.renew_s))
    desk.clock.time = 9.0
    assert await desk.list() == ["0"]
    assert (await desk.row()).age_s == 0.0
    assert not (await desk.row()).handed
    assert desk.leases.held["0"].binds_until(OPTIONS.lease_s) == 9.0 + OPTIONS.lease_s


@pytest.mark.parametrize("mishap", ["before", "after"])
async def test_a_claim_without_an_answer_binds_once_a_write_of_it_is_granted(
    desk: Desk, mishap: str
) -> None:
    desk.flaky.plan = ScriptedFaults(["after", mishap])  # type: ignore[list-item]
    assert await desk.leases.claim([claim(None, "0", "me")]) == []
    desk.clock.time = 2.0
    assert await desk.list() == []
    assert desk.leases.held == {}
    desk.clock.time = 4.0
    assert await desk.list() == ["0"]
    assert desk.leases.held["0"].since_s == 4.0
    assert desk.leases.held["0"].row.epoch == 1, "no epoch is wasted"


async def test_a_renewal_without_an_answer_is_made_again_at_once(desk: Desk) -> None:
    await desk.own()
    desk.flaky.plan = ScriptedFaults(["after"])
    desk.clock.time = 10.0
    desk.leases.count("0", 100)
    await desk.leases.renew(["0"])
    await desk.list()
    held = desk.leases.held["0"]
    assert held.binds_until(OPTIONS.lease_s) == OPTIONS.lease_s
    assert due_on_watch(held, desk.clock.time, OPTIONS)
    desk.clock.time = 11.0
    await desk.leases.renew(["0"])
    held = desk.leases.held["0"]
    assert held.binds_until(OPTIONS.lease_s) == 11.0 + OPTIONS.lease_s
    assert not due_on_watch(held, desk.clock.time, OPTIONS)
    assert (await desk.row()).rate == 5.0, "half of the ten a second that were told in vain"


# -- raising --------------------------------------------------------------------------------------


async def test_only_the_owner_can_raise_the_epoch(desk: Desk) -> None:
    await desk.own()
    assert await desk.leases.raise_epoch("0", 50) == 51
    assert (await desk.row()).epoch == 51
    await desk.write(claim(await desk.row(), "0", "b"))
    with pytest.raises(OwnershipLost):
        await desk.leases.raise_epoch("0", 60)
    assert desk.leases.held == {}
    assert (await desk.row()).epoch == 52


@pytest.mark.parametrize(("mishap", "epoch"), [("before", 1), ("after", 51)])
async def test_a_raise_without_an_answer_is_found_out(desk: Desk, mishap: str, epoch: int) -> None:
    await desk.own()
    desk.flaky.plan = ScriptedFaults([mishap])  # type: ignore[list-item]
    with pytest.raises(StoreError, match="could not be raised"):
        await desk.leases.raise_epoch("0", 50)
    assert (await desk.row()).epoch == epoch
    assert await desk.leases.raise_epoch("0", 50) == 51
    assert desk.leases.binds("0", 51)


async def test_a_raise_finds_that_somebody_has_asked(desk: Desk) -> None:
    await desk.own()
    await desk.write(nominate(await desk.row(), "b", 20.0))
    assert await desk.leases.raise_epoch("0", 50) == 51
    row = await desk.row()
    assert (row.successor, row.epoch) == ("b", 51)
    assert ("asked", "b") in desk.ears.heard


async def test_two_writes_of_a_partition_never_overlap(desk: Desk) -> None:
    await desk.own()
    under_way = 0

    class Watching(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            nonlocal under_way
            under_way += 1
            assert under_way == 1
            await asyncio.sleep(0.01)
            under_way -= 1
            return await super().claim_ownership(group, claims)

    desk.leases.store = Watching(desk.store, clock=desk.clock)
    await asyncio.gather(
        desk.leases.renew(["0"]),
        desk.leases.renew(["0"]),
        desk.leases.raise_epoch("0", 5),
        desk.leases.give_up("0"),
    )
    assert (await desk.row()).owner == ""


async def test_our_own_raise_that_was_not_answered_is_no_loss(desk: Desk) -> None:
    await desk.own()
    desk.flaky.plan = ScriptedFaults(["after"])
    with pytest.raises(StoreError, match="could not be raised"):
        await desk.leases.raise_epoch("0", 50)
    assert await desk.list() == []
    assert desk.ears.heard[-1] == ("raised", "51")
    assert desk.leases.binds("0", 51)
    assert "lost" not in dict(desk.ears.heard)
