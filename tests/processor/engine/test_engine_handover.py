"""Hand-overs of an engine: deadlines, crashed successors, refusals without a row."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from pumphouse.errors import (
    HandlerStuck,
)
from pumphouse.events import Event
from pumphouse.leases.flaky_store import FlakyStore, RandomFaults
from pumphouse.leases.model import (
    Granted,
    Group,
    Ownership,
    Refused,
    nominate,
)
from pumphouse.leases.store import ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.term import StopReason
from tests.leases.sdk_writes import claim_as_sdk
from tests.processor.support.fleet import Fleet
from tests.processor.support.virtual_time import LoopClock, run


def test_a_handover_never_outlives_its_deadline() -> None:
    """I12 and I11: an owner whose handler is stuck loses the partition at the deadline."""

    async def scenario() -> None:
        options = replace(ProcessorOptions(), hand_off_s=20.0, handler_timeout_s=15.0)
        async with Fleet(2, options=options) as fleet:
            never = asyncio.Event()
            reasons: list[StopReason | None] = []

            async def stuck(partition: PartitionClient, batch: list[Event]) -> None:
                try:
                    await never.wait()
                finally:
                    reasons.append(partition.reason)

            await fleet.add("a", work=stuck)
            await fleet.until_even()
            await fleet.send()
            asked_s = fleet.clock.monotonic()
            await fleet.add("b")
            await fleet.until(lambda: fleet.hosts["b"].owned, "b to take its share")
            taken_s = fleet.clock.monotonic() - asked_s
            assert 20 <= taken_s <= 20 + 2 * options.interval_s
            moved = fleet.hosts["b"].owned[0]
            await fleet.until(
                lambda: any(h.host == "b" for h in fleet.record[moved]), "b to handle it"
            )
            stuck_ones = [failed for _, _, failed in fleet.errors if type(failed) is HandlerStuck]
            assert {failed.partition for failed in stuck_ones} == {"0", "1"}
            never.set()
            await fleet.until(lambda: len(reasons) == 2, "the handlers to come back")
            assert StopReason.LOST in reasons
            await fleet.until_handled()
            fleet.check_order()

    run(scenario())


def test_a_crashed_successor_does_not_keep_the_partition() -> None:
    """I8: it must confirm within one renewal interval, not within a lease."""

    async def scenario() -> None:
        async with Fleet(2) as fleet:
            await fleet.add("a")
            await fleet.until_even()
            await fleet.send()
            await fleet.until_handled()
            asked = nominate((await fleet.rows())["0"], "ghost", 30.0)
            (outcome,) = await fleet.store.claim_ownership(fleet.group, [asked])
            assert isinstance(outcome, Granted)
            await fleet.until(lambda: ("a", "released", "0") in fleet.changes, "a to hand it over")
            assert (await fleet.rows())["0"].owner == "ghost"
            given_s = fleet.clock.monotonic()
            await fleet.until(lambda: len(fleet.hosts["a"].owned) == 2, "a to take it back")
            rested_s = fleet.clock.monotonic() - given_s
            assert rested_s <= fleet.options.renew_s + fleet.options.interval_s + 1
            await fleet.send()
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


class MuteStore(FlakyStore):
    """Refuses without the current row, as blob stores do."""

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        outcomes = await super().claim_ownership(group, claims)
        return [
            Refused(outcome.requested) if isinstance(outcome, Refused) else outcome
            for outcome in outcomes
        ]


def test_a_refusal_without_a_row_is_followed_by_a_listing() -> None:
    """A hand-over and a loss are clean even if only a listing shows them."""

    async def scenario() -> None:
        inner = MemoryStore(LoopClock())
        async with Fleet(4, store=MuteStore(inner)) as fleet:
            await fleet.add("a")
            await fleet.until_even()
            await fleet.send()
            await fleet.add("b")
            await fleet.until_even()
            await fleet.send()
            await fleet.until_handled()
            assert [change for _, change, _ in fleet.changes].count("lost") == 0
            lost = fleet.hosts["a"].owned[0]
            row = (await fleet.rows())[lost]
            claim_as_sdk(inner, fleet.group, replace(row, owner="sdk"))
            await fleet.until(lambda: ("a", "lost", lost) in fleet.changes, "a to notice")
            await fleet.send()
            await fleet.until_handled()
            fleet.check_clean()

    run(scenario())


def test_a_host_that_is_asked_while_it_stops_still_hands_over() -> None:
    """A blob store refuses the release without a row: another host has just requested it."""

    async def scenario() -> None:
        async with Fleet(2) as fleet:
            mute = MuteStore(fleet.store, clock=fleet.clock)
            host = await fleet.add("a", store=mute)
            await fleet.until(lambda: len(host.owned) == 2, "it to own everything")
            asked = [nominate(row, "b", 28.0) for row in (await fleet.rows()).values()]
            await fleet.store.claim_ownership(fleet.group, asked)
            await host.stop()
            assert {row.owner for row in (await fleet.rows()).values()} == {"b"}
            assert fleet.errors == []

    run(scenario())


def test_a_row_that_cannot_be_given_up_is_reported() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            mute = MuteStore(fleet.store, clock=fleet.clock)
            host = await fleet.add("a", store=mute)
            await fleet.until(lambda: host.owned, "it to own it")
            mute.plan = RandomFaults(Random(1), before=1.0)
            await host.stop()
            expected = [str(failed) for _, partition, failed in fleet.errors if partition == "0"]
            assert "partition 0 could not be given up" in expected[-1]

    run(scenario())


def test_two_hosts_with_the_same_name_are_reported() -> None:
    async def scenario() -> None:
        async with Fleet(1) as fleet:
            errors: dict[str, list[str]] = {"first": [], "second": []}

            def collect(name: str) -> Callable[[str | None, Exception], None]:
                return lambda partition, failed: errors[name].append(str(failed))

            first = await fleet.add("a", on_error=collect("first"))
            await fleet.until(lambda: first.owned, "the first to own it")
            await fleet.add("a", on_error=collect("second"))
            expected = "another host is named 'a'"
            await fleet.until(
                lambda: all(any(expected in text for text in texts) for texts in errors.values()),
                "both hosts to be reported",
            )
            await first.stop()

    run(scenario())
