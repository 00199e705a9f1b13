"""One cycle at a time, with a real hub and the strict memory store."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pumphouse.errors import StoreError
from pumphouse.leases.flaky_store import FlakyStore, ScriptedFaults
from pumphouse.leases.model import Checkpoint, claim
from pumphouse.leases.strategies import parse_strategy
from pumphouse.processor.cycle import Cycle
from tests.processor.support.bare_host import BareHost
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import run


def cycle_of(fleet: Fleet, host: str, strategy: str = "steady") -> Cycle:
    store = FlakyStore(fleet.store, clock=fleet.clock)
    bare = BareHost(host, fleet.client, store, fleet.group, fleet.options, fleet.clock)
    return Cycle(bare, parse_strategy(strategy), tuple(fleet.partitions))


def test_a_new_host_joins_first_and_then_claims_its_share() -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            a, b = cycle_of(fleet, "a"), cycle_of(fleet, "b")
            for newcomer in (a, b):
                report = await newcomer.once(set())
                assert (report.requested, report.outcome.joined) == ((), False)
            got = [(await cycle.once(set())).gained for cycle in (a, b)]
            assert [len(taken) for taken in got] == [2, 2]
            assert set(got[0]) | set(got[1]) == set(fleet.partitions)
            report = await a.once(set())
            fields = " ".join(f"{name}={value}" for name, value in report.log_fields().items())
            assert fields == "requested=- gained=- lost=- owned=2/4 hosts=2"
            assert report.settled

    run(scenario())


@pytest.mark.parametrize("owned", [True, False])
def test_a_balanced_host_claims_one_partition_per_interval(owned: bool) -> None:
    """This holds for free and for requested partitions, also if cycles come early."""

    async def scenario() -> None:
        async with Fleet(8) as fleet:
            if owned:
                await cycle_of(fleet, "a", "greedy").once(set())
            cycle = cycle_of(fleet, "b", "balanced")
            for interval in range(3):
                reports = [await cycle.once(set()) for _ in range(5)]
                assert [len(report.requested) for report in reports] == [1, 0, 0, 0, 0], interval
                assert not any(report.settled for report in reports)
                await asyncio.sleep(fleet.options.interval_s)

    run(scenario())


def test_a_refused_renewal_removes_the_partition() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            await cycle.once(set())
            (row,) = (await fleet.store.list_ownership(fleet.group)).ownerships
            await fleet.store.claim_ownership(fleet.group, [claim(row, "0", "b")])
            await cycle.host.leases.renew(["0"])  # no listing is needed to notice it
            assert cycle.host.leases.held == {}

    run(scenario())


def test_a_failed_listing_changes_no_lease() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            await cycle.once(set())
            held = dict(cycle.host.leases.held)
            assert len(held) == 2
            store = cycle.host.store
            assert isinstance(store, FlakyStore)
            store.plan = ScriptedFaults(["failed"])
            with pytest.raises(StoreError):
                await cycle.once(set())
            assert cycle.host.leases.held == held
            assert (await cycle.once(set())).owned == 2

    run(scenario())


def test_an_eager_strategy_repeats_the_cycle_while_it_gains() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            assert (await cycle.once(set())).outcome.hurries
            assert not (await cycle.once(set())).outcome.hurries

    run(scenario())


@pytest.mark.parametrize(("strategy", "soon"), [("eph_js", True), ("eph", False)])
def test_a_javascript_host_that_stole_runs_its_next_cycle_sooner(strategy: str, soon: bool) -> None:
    async def scenario() -> None:
        async with Fleet(4) as fleet:
            assert (await cycle_of(fleet, "a", "greedy").once(set())).owned == 4
            thief = cycle_of(fleet, "b", strategy)
            report = await thief.once(set())
            assert report.gained
            assert report.outcome.waiting is soon
            later = [await thief.once(set()) for _ in range(2)][-1]
            assert not later.outcome.waiting, "nothing was stolen: it sleeps for longer"

    run(scenario())


def test_a_first_claim_is_above_the_epoch_of_the_checkpoint() -> None:
    """I1: the row is missing or has no epoch; the checkpoint has it."""

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            await fleet.store.update_checkpoint(Checkpoint(fleet.group, "0", 5, "5", epoch=7))
            await cycle_of(fleet, "a", "greedy").once(set())
            assert (await fleet.rows())["0"].epoch == 8

    run(scenario())


def test_a_partition_whose_old_pump_still_ends_is_not_claimed() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            report = await cycle_of(fleet, "a", "greedy").once({"0"})
            assert report.gained == ("1",)

    run(scenario())


def test_a_partition_that_expires_in_a_cycle_waits_for_its_pump_to_end() -> None:
    """I2: its row is in our name, but it is neither claimed again nor given away."""

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            assert (await cycle.once(set())).gained == ("0",)
            await asyncio.sleep(fleet.options.lease_s)
            before = await fleet.rows()
            # The expiry was not noticed yet, so its pump does not count as busy.
            report = await cycle.once(set())
            assert (report.requested, report.gained, report.owned) == ((), (), 0)
            assert (await fleet.rows())["0"].etag == before["0"].etag
            assert (await cycle.once({"0"})).requested == (), "the pump is still ending"
            assert (await cycle.once(set())).gained == ("0",)
            assert (await fleet.rows())["0"].epoch == 2

    run(scenario())


def test_a_row_that_cannot_be_confirmed_is_confirmed_in_the_next_cycle() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            store = cycle.host.store
            assert isinstance(store, FlakyStore)
            store.plan = ScriptedFaults(["after", "before"])
            assert [(await cycle.once(set())).owned for _ in range(3)] == [0, 0, 1]
            row = (await fleet.rows())["0"]
            assert (row.owner, row.epoch) == ("a", 1), "it was claimed once"

    run(scenario())


def test_an_unavailable_hub_does_not_stop_the_cycle() -> None:
    async def scenario() -> None:
        async with Fleet(2) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            await fleet.hub.stop()
            assert (await cycle.once(set())).owned == 2

    run(scenario())


def test_refused_claims_are_not_ours() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cycle = cycle_of(fleet, "a", "greedy")
            real = cycle.host.store.list_ownership

            async def overtaken(group: object):  # type: ignore[no-untyped-def]
                listing = await real(fleet.group)
                await fleet.store.claim_ownership(fleet.group, [claim(None, "0", "b")])
                return listing

            cycle.host.store.list_ownership = overtaken  # type: ignore[method-assign]
            report = await cycle.once(set())
            assert (report.requested, report.gained, report.owned) == (("0",), (), 0)

    run(scenario())


@pytest.mark.parametrize(("quicker", "got"), [(0, 1), (2, 1), (3, 1), (4, 0)])
def test_a_fixed_host_that_lost_a_race_claims_another_at_once(quicker: int, got: int) -> None:
    """The fixed-partition processor attempts each blob until it gains one."""

    async def scenario() -> None:
        async with Fleet(4) as fleet:
            cycle, others = cycle_of(fleet, "a", "fixed:2"), Random(quicker)
            real = cycle.host.store.list_ownership

            async def overtaken(group: object):  # type: ignore[no-untyped-def]
                listing = await real(fleet.group)
                claims = [claim(None, p, "b") for p in others.sample(fleet.partitions, quicker)]
                await fleet.store.claim_ownership(fleet.group, claims)
                return listing

            cycle.host.store.list_ownership = overtaken  # type: ignore[method-assign]
            report = await cycle.once(set())
            assert (len(report.gained), report.owned) == (got, got), "one assignment a cycle"

    run(scenario())


def test_a_claim_without_a_response_is_not_a_lost_race() -> None:
    """It may be ours: with another claim a fixed host could own one too many."""

    async def scenario() -> None:
        async with Fleet(4) as fleet:
            cycle = cycle_of(fleet, "a", "fixed:1")
            store = cycle.host.store
            assert isinstance(store, FlakyStore)
            store.plan = ScriptedFaults(["after"])
            assert (await cycle.once(set())).gained == ()
            owners = [row.owner for row in (await fleet.rows()).values()]
            assert owners == ["a"]
            report = await cycle.once(set())
            assert (len(report.gained), report.owned) == (1, 1)

    run(scenario())


class SilentClient:
    """A client of a hub that does not respond."""

    hub, namespace = "eh", "hub.example:5671"

    async def properties(self) -> None:
        await asyncio.sleep(1e6)


def test_a_call_that_times_out_names_the_call_the_host_and_the_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cycle = cycle_of(fleet, "a")
            cycle.host.client = SilentClient()  # type: ignore[assignment]
            await cycle.once(set())

    run(scenario())
    (failed,) = [
        r.getMessage() for r in caplog.records if "hub_properties_failed" in r.msg % r.args
    ]
    assert (
        'error="ConnectionFailed: the number of partitions could not be read: the hub eh at '
        "hub.example:5671 did not respond within "
    ) in failed


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("list_ownership", "the owners of"),
        ("beat", "the member record of this host could not be written"),
    ],
)
def test_a_store_that_times_out_is_named_with_the_call(
    method: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def hang(*args: object) -> None:
        await asyncio.sleep(1e6)

    async def scenario() -> None:
        async with Fleet(1) as fleet:
            cycle = cycle_of(fleet, "a")
            setattr(cycle.host.store, method, hang)
            try:
                await cycle.once(set())
            except StoreError as error:
                cycle.host.reporter.failed("cycle_failed", None, error)

    run(scenario())
    (failed,) = [record.getMessage() for record in caplog.records]
    assert f'error="StoreUnavailable: {text}' in failed
    assert "the checkpoint store did not respond within " in failed
