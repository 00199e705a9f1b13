"""One cycle: renew, list, judge, confirm, decide, claim.

    renew what is mine -> list -> confirm -> census -> strategy -> choose -> claim, nominate
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

At rest that is one listing and one write per partition that is due, and nothing else. If the
listing fails the cycle ends there: what we hold stays ours until its lease runs out.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from pumphouse.errors import PumphouseError, StoreError
from pumphouse.leases.census import Census, take_census, without
from pumphouse.leases.model import Listing
from pumphouse.leases.strategies import Strategy, settled
from pumphouse.processor.plan import (
    Choice,
    Outcome,
    Situation,
    choose,
    due_in_cycle,
    epochs_needed,
    epochs_of,
)
from pumphouse.processor.pump import House

log = logging.getLogger("pumphouse.processor")

TELL_LIMIT_S = 3600.0  # stores forget members that have not beaten for a day


@dataclass(frozen=True, slots=True)
class Report:
    """What a cycle found and did."""

    asked: tuple[str, ...]
    got: tuple[str, ...]
    lost: tuple[str, ...]
    owned: int
    partitions: int
    processors: int
    settled: bool
    outcome: Outcome

    @property
    def changed(self) -> bool:
        return bool(self.got or self.lost)

    def __str__(self) -> str:
        return (
            f"cycle asked={names(self.asked)} got={names(self.got)} lost={names(self.lost)} "
            f"owns={self.owned}/{self.partitions} processors={self.processors}"
        )


def names(partitions: Iterable[str]) -> str:
    return ",".join(partitions) or "-"


class Cycle:
    """Runs cycles for one host. It keeps the partitions of the hub, and its last census."""

    def __init__(self, house: House, strategy: Strategy, partitions: tuple[str, ...]) -> None:
        self.house, self.strategy, self.partitions = house, strategy, partitions
        self.lost: list[str] = []  # since the last report
        self._before: Census | None = None
        self._beaten_s = -math.inf

    async def once(self, busy: Set[str]) -> Report:
        """One cycle. `busy` are partitions of which an earlier pump has not ended yet."""
        house, started_s = self.house, self.house.clock.monotonic()
        held = set(house.leases.held)
        house.leases.fence()
        await self._renew()
        await self._ask_partitions()
        listing, sent_s = await self._list()
        named = house.leases.heard(listing, sent_s)
        found = await house.leases.confirm(named)
        if self.strategy.max_partitions is not None:
            await self._beat()  # others shall know of the limit before they see what we own
        census = take_census(
            house.host, self.partitions, listing, house.options.lease_s, before=self._before
        )
        self._before = census
        # What was ours in this cycle and is not any more has a pump that is still leaving. What is
        # ours by the listing and could not be confirmed is looked at again in the next one.
        held.update(row.partition for row in named)
        leaving = held - house.leases.held.keys()
        choice, got = await self._act(census, listing, busy | leaving)
        if self.strategy.max_partitions is None:
            await self._beat()  # unless we are visible by what we have just claimed
        return self._report(census, choice, (*found, *got), started_s)

    async def _renew(self) -> None:
        now_s, leases = self.house.clock.monotonic(), self.house.leases
        held = list(leases.held.values())
        due = [h.partition for h in held if due_in_cycle(h, now_s, self.house.options)]
        await leases.renew(due)

    async def _ask_partitions(self) -> None:
        """New partitions are noticed while we run; a hub that is away changes nothing."""
        try:
            async with asyncio.timeout(self.house.options.store_s):
                self.partitions = (await self.house.client.properties()).partitions
        except (TimeoutError, PumphouseError) as failed:
            self.house.report(None, failed)

    async def _list(self) -> tuple[Listing, float]:
        sent_s = self.house.clock.monotonic()
        try:
            async with asyncio.timeout(self.house.options.store_s):
                return await self.house.store.list_ownership(self.house.group), sent_s
        except TimeoutError:
            raise StoreError(
                f"the ownerships of {self.house.group} were not listed within "
                f"{self.house.options.store_s:g} s"
            ) from None

    async def _beat(self) -> None:
        """Be visible. An owner is, by its rows; but those do not tell the limit that it has."""
        house, most = self.house, self.strategy.max_partitions
        told = most is None or house.clock.monotonic() < self._beaten_s + TELL_LIMIT_S
        if house.leases.held and told:
            return
        try:
            async with asyncio.timeout(house.options.store_s):
                await house.store.beat(house.group, house.host, most)
            self._beaten_s = house.clock.monotonic()
        except (TimeoutError, StoreError) as failed:
            self.house.report(None, failed)

    async def _act(
        self, census: Census, listing: Listing, busy: Set[str]
    ) -> tuple[Choice, list[str]]:
        """Decide and write, again if a race was lost; what was chosen, and what is ours by it."""
        choice, got = await self._act_once(census, listing, busy)
        while self.strategy.tries_on and not got and (lost := self._lost_races(choice)):
            census, busy = without(census, lost), busy | lost
            choice, got = await self._act_once(census, listing, busy)
        return choice, got

    def _lost_races(self, choice: Choice) -> set[str]:
        """What somebody else was quicker to claim. Of an unknown outcome that cannot be said."""
        leases, wanted = self.house.leases, {row.partition for row in choice.claims}
        return {p for p in wanted if p not in leases.held and not leases.asks_for(p)}

    async def _act_once(
        self, census: Census, listing: Listing, busy: Set[str]
    ) -> tuple[Choice, list[str]]:
        """Decide, then write what was decided."""
        leases = self.house.leases
        wants = tuple(self.strategy(census, self.house.rng))
        held = frozenset(leases.held)
        strategy = self.strategy
        now = Situation(census, listing, held, busy, wants, strategy.grabs, not strategy.yields)
        choice = choose(now, self.house.options, await self._epochs(now))
        got = await leases.claim(choice.claims)
        await leases.nominate(choice.nominations)
        await leases.give_back(choice.returns)
        return choice, got

    async def _epochs(self, now: Situation) -> Mapping[str, int]:
        """The epochs of checkpoints, where a row does not tell any."""
        if now.listing.epochs is not None or not epochs_needed(now):
            return now.listing.epochs or {}
        async with asyncio.timeout(self.house.options.store_s):
            return epochs_of(await self.house.store.list_checkpoints(self.house.group))

    def _stole(self, census: Census, got: tuple[str, ...]) -> bool:
        """Whether we took what others held, and may soon find more."""
        held = {p for p, host in census.whose.items() if host != census.me}
        return self.strategy.looks_again and not held.isdisjoint(got)

    def _report(
        self, census: Census, choice: Choice, got: tuple[str, ...], started_s: float
    ) -> Report:
        lost, self.lost = tuple(self.lost), []
        outcome = Outcome(
            elapsed_s=self.house.clock.monotonic() - started_s,
            joined=census.joined or not self.strategy.joins_first,
            waiting=bool(choice.nominations or census.coming) or self._stole(census, got),
            hurries=self.strategy.eager and bool(got),
        )
        return Report(
            asked=choice.asked,
            got=got,
            lost=lost,
            owned=len(self.house.leases.held),
            partitions=len(self.partitions),
            processors=len(census.members),
            settled=settled(census, choice.asked),
            outcome=outcome,
        )
