"""LeaseTable: each write and each listing, with the strict memory store."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pumphouse.errors import OwnershipLost, StoreError
from pumphouse.leases.flaky_store import FlakyStore, RandomFaults, ScriptedFaults
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
from pumphouse.processor.reporting import Reporter
from tests.processor.support.bare_host import RecordingListener

GROUP = Group("n", "h")
OPTIONS = ProcessorOptions()


class ManualClock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


class Table:
    """The leases of one host, in a store that the test writes too."""

    def __init__(self) -> None:
        self.clock, self.listener = ManualClock(), RecordingListener()
        self.store = MemoryStore(self.clock)
        self.flaky = FlakyStore(self.store, clock=self.clock)
        reporter = Reporter("me", on_error=self.listener.failed)
        self.leases = LeaseTable(self.flaky, GROUP, OPTIONS, self.clock, self.listener, reporter)

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
        unheld = self.leases.apply_listing(await self.flaky.list_ownership(GROUP), sent_s)
        return await self.leases.confirm(unheld)


@pytest.fixture
def table() -> Table:
    return Table()


async def test_a_lease_is_valid_for_its_epoch_and_its_duration_only(table: Table) -> None:
    await table.own()
    assert table.leases.is_valid("0", 1)
    assert not table.leases.is_valid("0", 2)
    assert not table.leases.is_valid("1", 1)
    table.clock.time = OPTIONS.lease_s
    assert not table.leases.is_valid("0", 1)
    table.leases.fence()
    assert table.listener.calls[-1] == ("lost", "")


async def test_a_renewal_skips_a_partition_that_was_given_up_meanwhile(
    table: Table,
) -> None:
    """A lock that is passed to a waiter looks free for a moment."""
    await table.own("0")
    await table.own("1")
    gate = asyncio.Event()

    class Slow(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            await gate.wait()
            return await super().claim_ownership(group, claims)

    second: list[asyncio.Task[None]] = []

    class Hasty(RecordingListener):
        """Renews again as soon as the response has arrived."""

        def renewed(self, lease: Lease) -> None:
            if not second:
                second.append(asyncio.create_task(table.leases.renew(["0", "1"])))

    table.leases.store, table.leases.listener = Slow(table.store, clock=table.clock), Hasty()
    first = asyncio.create_task(table.leases.renew(["0", "1"]))
    await asyncio.sleep(0.01)
    leaving = asyncio.create_task(table.leases.give_up("1"))
    await asyncio.sleep(0.01)
    gate.set()
    await first
    assert await leaving
    await second[0]
    assert list(table.leases.held) == ["0"]
    assert (await table.row("1")).owner == ""


async def test_a_renewal_response_after_expiry_does_not_restore_the_lease(
    table: Table,
) -> None:
    """The response comes too late."""
    await table.own()
    gate = asyncio.Event()

    class Late(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            outcomes = await super().claim_ownership(group, claims)
            await gate.wait()
            return outcomes

    table.leases.store = Late(table.store, clock=table.clock)
    renewing = asyncio.create_task(table.leases.renew(["0"]))
    await asyncio.sleep(0.01)
    table.clock.time = OPTIONS.lease_s
    gate.set()
    await renewing
    assert table.listener.calls[-1] == ("lost", "")
    assert table.leases.held == {}
    assert not table.leases.is_valid("0", 1)


async def test_a_listing_does_not_change_a_lease_that_is_being_written(table: Table) -> None:
    await table.own()
    await table.write(nominate(await table.row(), "b", 20.0))
    await table.list()
    written, gate = asyncio.Event(), asyncio.Event()

    class Late(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            outcomes = await super().claim_ownership(group, claims)
            written.set()
            await gate.wait()
            return outcomes

    table.leases.store = Late(table.store, clock=table.clock)
    giving = asyncio.create_task(table.leases.give_up("0"))
    await written.wait()
    await table.list()
    gate.set()
    assert await giving
    assert ("lost", "b") not in table.listener.calls, "it was given, not lost"


async def test_a_refusal_without_a_row_requires_a_listing(table: Table) -> None:
    class Mute(FlakyStore):
        async def claim_ownership(
            self, group: Group, claims: Sequence[Ownership]
        ) -> list[ClaimOutcome]:
            return [Refused(row) for row in claims]

    await table.own()
    table.leases.store = Mute(table.store, clock=table.clock)
    await table.leases.renew(["0"])
    assert table.leases.listing_needed.is_set()
    assert table.leases.held["0"].doubtful
    await table.list()
    assert not table.leases.held["0"].doubtful


async def test_renewals_write_the_event_rate(table: Table) -> None:
    await table.own()
    table.leases.count("0", 50)
    table.clock.time = 10.0
    await table.leases.renew(["0"])
    assert (await table.row()).rate == 5.0
    assert ("renewed", "0") in table.listener.calls


async def test_a_successor_is_reported_and_gets_the_partition(table: Table) -> None:
    await table.own()
    await table.write(nominate(await table.row(), "b", 20.0))
    table.clock.time = 5.0
    await table.leases.renew(["0"])
    assert table.listener.calls[-1] == ("requested", "b")
    table.clock.time = 12.0
    await table.leases.renew(["0"])
    assert (await table.row()).deadline_s == pytest.approx(8.0), "not put off by the renewal"
    assert await table.leases.give_up("0")
    row = await table.row()
    assert (row.owner, row.epoch, row.successor) == ("b", 2, "")
    assert row.unconfirmed
    assert row.deadline_s == OPTIONS.renew_s, "the time that b has to confirm"


@pytest.mark.parametrize("mishaps", [["before"], ["after"], ["before", "after"]])
async def test_giving_up_is_retried_until_the_outcome_is_known(
    table: Table, mishaps: list[str]
) -> None:
    await table.own()
    table.flaky.plan = ScriptedFaults(mishaps)  # type: ignore[arg-type]
    assert await table.leases.give_up("0")
    assert (await table.row()).owner == ""
    assert table.leases.held == {}


async def test_giving_up_ends_without_any_response(table: Table) -> None:
    await table.own()
    table.flaky.plan = RandomFaults(Random(1), before=1.0)
    assert not await table.leases.give_up("0")
    assert table.leases.held == {}


async def test_a_requested_row_is_claimed_once(table: Table) -> None:
    """A stale listing must not restore a partition that was given up."""
    await table.write(claim(None, "0", "b"))
    assert await table.leases.nominate([nominate(await table.row(), "me", 20.0)]) == ["0"]
    await table.write(hand_over(await table.row()))
    old = await table.store.list_ownership(GROUP)
    assert await table.list() == ["0"]
    assert table.leases.held["0"].row.epoch == 2
    assert await table.leases.give_up("0")
    assert table.leases.apply_listing(old, table.clock.monotonic()) == []


async def test_an_unknown_claim_that_has_expired_is_not_confirmed(table: Table) -> None:
    table.flaky.plan = ScriptedFaults(["after"])
    assert await table.leases.claim([claim(None, "0", "me")]) == []
    table.clock.time = OPTIONS.lease_s
    assert await table.list() == []


class Ageless(FlakyStore):
    """Reports that a lease is held, but not since when, like a blob lease."""

    async def list_ownership(self, group: Group) -> Listing:
        listing = await super().list_ownership(group)
        rows = tuple(replace(row, age_s=0.0) for row in listing.ownerships)
        return replace(listing, ownerships=rows)


@pytest.mark.parametrize("kind", [FlakyStore, Ageless])
async def test_a_handed_over_row_is_written_before_its_lease_is_valid(
    table: Table, kind: type[FlakyStore]
) -> None:
    """The lease counts from our write: a store may not know the age of the row."""
    table.flaky = table.leases.store = kind(table.store, clock=table.clock)
    await table.write(claim(None, "0", "b"))
    await table.leases.nominate([nominate(await table.row(), "me", 60.0)])
    await table.write(hand_over(await table.row(), OPTIONS.renew_s))
    table.clock.time = 9.0
    assert await table.list() == ["0"]
    assert (await table.row()).age_s == 0.0
    assert not (await table.row()).unconfirmed
    assert table.leases.held["0"].valid_until(OPTIONS.lease_s) == 9.0 + OPTIONS.lease_s


@pytest.mark.parametrize("mishap", ["before", "after"])
async def test_a_claim_without_a_response_is_valid_once_confirmed(
    table: Table, mishap: str
) -> None:
    table.flaky.plan = ScriptedFaults(["after", mishap])  # type: ignore[list-item]
    assert await table.leases.claim([claim(None, "0", "me")]) == []
    table.clock.time = 2.0
    assert await table.list() == []
    assert table.leases.held == {}
    table.clock.time = 4.0
    assert await table.list() == ["0"]
    assert table.leases.held["0"].since_s == 4.0
    assert table.leases.held["0"].row.epoch == 1, "no epoch is wasted"


async def test_a_renewal_without_a_response_is_repeated_at_once(table: Table) -> None:
    await table.own()
    table.flaky.plan = ScriptedFaults(["after"])
    table.clock.time = 10.0
    table.leases.count("0", 100)
    await table.leases.renew(["0"])
    await table.list()
    held = table.leases.held["0"]
    assert held.valid_until(OPTIONS.lease_s) == OPTIONS.lease_s
    assert due_on_watch(held, table.clock.time, OPTIONS)
    table.clock.time = 11.0
    await table.leases.renew(["0"])
    held = table.leases.held["0"]
    assert held.valid_until(OPTIONS.lease_s) == 11.0 + OPTIONS.lease_s
    assert not due_on_watch(held, table.clock.time, OPTIONS)
    assert (await table.row()).rate == 5.0, "half of the ten per second of the lost renewal"


# -- raising epochs -------------------------------------------------------------------------------


async def test_only_the_owner_can_raise_the_epoch(table: Table) -> None:
    await table.own()
    assert await table.leases.raise_epoch("0", 50) == 51
    assert (await table.row()).epoch == 51
    await table.write(claim(await table.row(), "0", "b"))
    with pytest.raises(OwnershipLost):
        await table.leases.raise_epoch("0", 60)
    assert table.leases.held == {}
    assert (await table.row()).epoch == 52


@pytest.mark.parametrize(("mishap", "epoch"), [("before", 1), ("after", 51)])
async def test_an_epoch_raise_without_a_response_is_settled_by_a_renewal(
    table: Table, mishap: str, epoch: int
) -> None:
    await table.own()
    table.flaky.plan = ScriptedFaults([mishap])  # type: ignore[list-item]
    with pytest.raises(StoreError, match="could not be raised"):
        await table.leases.raise_epoch("0", 50)
    assert (await table.row()).epoch == epoch
    assert await table.leases.raise_epoch("0", 50) == 51
    assert table.leases.is_valid("0", 51)


async def test_an_epoch_raise_detects_a_request(table: Table) -> None:
    await table.own()
    await table.write(nominate(await table.row(), "b", 20.0))
    assert await table.leases.raise_epoch("0", 50) == 51
    row = await table.row()
    assert (row.successor, row.epoch) == ("b", 51)
    assert ("requested", "b") in table.listener.calls


async def test_two_writes_of_a_partition_never_overlap(table: Table) -> None:
    await table.own()
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

    table.leases.store = Watching(table.store, clock=table.clock)
    await asyncio.gather(
        table.leases.renew(["0"]),
        table.leases.renew(["0"]),
        table.leases.raise_epoch("0", 5),
        table.leases.give_up("0"),
    )
    assert (await table.row()).owner == ""


async def test_our_own_epoch_raise_without_a_response_is_not_a_loss(table: Table) -> None:
    await table.own()
    table.flaky.plan = ScriptedFaults(["after"])
    with pytest.raises(StoreError, match="could not be raised"):
        await table.leases.raise_epoch("0", 50)
    assert await table.list() == []
    assert table.listener.calls[-1] == ("raised", "51")
    assert table.leases.is_valid("0", 51)
    assert "lost" not in dict(table.listener.calls)
