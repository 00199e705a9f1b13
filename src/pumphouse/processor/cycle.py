"""One cycle of a host: renew, list, confirm, decide, claim.

    renew our leases -> list -> confirm -> census -> strategy -> choose -> claim, nominate
    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

In a settled fleet a cycle costs one listing and one write per lease that is due. If the listing
fails, the cycle ends there: our partitions stay ours until their leases expire.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from pumphouse.errors import PumphouseError, StoreError
from pumphouse.leases.census import Census, take_census, without_free
from pumphouse.leases.model import Listing
from pumphouse.leases.strategies import Strategy, settled
from pumphouse.processor.plan import (
    Choice,
    Outcome,
    Situation,
    choose,
    due_in_cycle,
    epochs_of,
    is_early,
    needs_checkpoint_epochs,
)
from pumphouse.processor.term import Host, hub_within, store_within

READ_PARTITIONS = "the number of partitions could not be read"
CLOSE = "the connections could not be closed"
WRITE_MEMBER = "the member record of this host could not be written"
MEMBER_EVERY_S = 3600.0  # stores forget members that were not written for a day


@dataclass(frozen=True, slots=True)
class CycleReport:
    """What a cycle requested, gained and lost."""

    requested: tuple[str, ...]
    gained: tuple[str, ...]
    lost: tuple[str, ...]
    owned: int
    partitions: int
    hosts: int
    settled: bool
    outcome: Outcome

    def log_fields(self) -> dict[str, object]:
        return {
            "requested": names(self.requested),
            "gained": names(self.gained),
            "lost": names(self.lost),
            "owned": f"{self.owned}/{self.partitions}",
            "hosts": self.hosts,
        }


def names(partitions: Iterable[str]) -> str:
    return ",".join(partitions) or "-"


class Cycle:
    """Runs cycles for one host. It remembers the hub's partitions and the last census."""

    def __init__(self, host: Host, strategy: Strategy, partitions: tuple[str, ...]) -> None:
        self.host, self.strategy, self.partitions = host, strategy, partitions
        self.lost: list[str] = []  # since the last report
        self._last_census: Census | None = None
        self._member_written_s = -math.inf
        self._claimed_s = -math.inf  # when a paced strategy last had claims
        self.store_responded_s = self.hub_responded_s = -math.inf  # the last response of each
        self._held_back = False  # whether a paced strategy waits with its claims

    async def once(self, busy: Set[str]) -> CycleReport:
        """Run one cycle. The earlier pumps of `busy` partitions have not ended yet."""
        host, leases, started_s = self.host, self.host.leases, self.host.clock.monotonic()
        held = set(leases.held)
        leases.fence()
        await self._renew()
        await self._read_partitions()
        listing, sent_s = await self._list()
        unheld = leases.apply_listing(listing, sent_s)
        confirmed = await leases.confirm(unheld)
        if self.strategy.max_partitions is not None:
            await self._write_member()  # before we claim: others must know our limit
        census = take_census(
            host.name, self.partitions, listing, host.options.lease_s, before=self._last_census
        )
        self._log_hosts(census)
        self._last_census = census
        # The pump of a partition that was lost during this cycle may still run. A partition that
        # is ours in the listing but could not be confirmed waits for the next cycle.
        held.update(row.partition for row in unheld)
        ending = held - leases.held.keys()
        choice, claimed = await self._act(census, listing, busy | ending)
        if self.strategy.max_partitions is None:
            await self._write_member()  # after the claims: the rows of an owner make it visible too
        return self._report(census, choice, (*confirmed, *claimed), started_s)

    async def _renew(self) -> None:
        now_s, leases = self.host.clock.monotonic(), self.host.leases
        held = list(leases.held.values())
        due = [lease.partition for lease in held if due_in_cycle(lease, now_s, self.host.options)]
        await leases.renew(due)

    async def _read_partitions(self) -> None:
        """Notice new partitions. If the hub does not respond, the known ones stay."""
        try:
            hub = f"the hub {self.host.client.hub} at {self.host.client.namespace}"
            async with hub_within(self.host.options.store_s, READ_PARTITIONS, hub):
                self.partitions = (await self.host.client.properties()).partitions
        except PumphouseError as error:
            self.host.reporter.failed("hub_properties_failed", None, error)
        else:
            self.hub_responded_s = self.host.clock.monotonic()
            self.host.reporter.recovered("hub_properties_failed")

    async def _list(self) -> tuple[Listing, float]:
        sent_s = self.host.clock.monotonic()
        what = f"the owners of {self.host.group} could not be listed"
        async with store_within(self.host.options.store_s, what):
            listing = await self.host.store.list_ownership(self.host.group)
        self.store_responded_s = self.host.clock.monotonic()
        return listing, sent_s

    async def _write_member(self) -> None:
        """Write our member record, so that others see this host.

        The rows of an owner make it visible too, but do not contain its limit.
        """
        host, limit = self.host, self.strategy.max_partitions
        fresh = limit is None or host.clock.monotonic() < self._member_written_s + MEMBER_EVERY_S
        if host.leases.held and fresh:
            return
        try:
            async with store_within(host.options.store_s, WRITE_MEMBER):
                await host.store.beat(host.group, host.name, limit)
            self._member_written_s = host.clock.monotonic()
        except StoreError as error:
            host.reporter.failed("membership_write_failed", None, error)
        else:
            host.reporter.recovered("membership_write_failed")

    async def _act(
        self, census: Census, listing: Listing, busy: Set[str]
    ) -> tuple[Choice, list[str]]:
        """Decide and write. If every claim was lost, a strategy may repeat this (`retries_claims`).

        Returns the last choice and the partitions that it claimed.
        """
        choice, claimed = await self._act_once(census, listing, busy)
        while self.strategy.retries_claims and not claimed and (lost := self._lost_races(choice)):
            census, busy = without_free(census, lost), busy | lost
            choice, claimed = await self._act_once(census, listing, busy)
        return choice, claimed

    def _lost_races(self, choice: Choice) -> set[str]:
        """The partitions that another host claimed first. An unknown outcome does not count."""
        leases, requested = self.host.leases, {row.partition for row in choice.claims}
        return {p for p in requested if p not in leases.held and not leases.may_become_ours(p)}

    async def _act_once(
        self, census: Census, listing: Listing, busy: Set[str]
    ) -> tuple[Choice, list[str]]:
        """Decide, then write what was decided."""
        leases, strategy = self.host.leases, self.strategy
        targets = self._paced(tuple(strategy(census, self.host.rng)))
        held = frozenset(leases.held)
        now = Situation(census, listing, held, busy, targets, strategy.grabs, not strategy.yields)
        choice = choose(now, self.host.options, await self._epochs(now))
        claimed = await leases.claim(choice.claims, now.rows)
        await leases.nominate(choice.nominations)
        await leases.return_rows(choice.returns)
        return choice, claimed

    def _paced(self, targets: tuple[str, ...]) -> tuple[str, ...]:
        """The targets, or none if the strategy is paced and had some less than an interval ago."""
        now_s = self.host.clock.monotonic()
        self._held_back = (
            bool(targets)
            and self.strategy.paced
            and is_early(self._claimed_s, now_s, self.host.options)
        )
        if self._held_back:
            return ()
        self._claimed_s = now_s if targets else self._claimed_s
        return targets

    async def _epochs(self, now: Situation) -> Mapping[str, int]:
        """Epochs by partition, from the checkpoints. These are read only if a row has no epoch."""
        if now.listing.epochs is not None or not needs_checkpoint_epochs(now):
            return now.listing.epochs or {}
        what = f"the checkpoints of {self.host.group} could not be listed"
        async with store_within(self.host.options.store_s, what):
            return epochs_of(await self.host.store.list_checkpoints(self.host.group))

    def _stole(self, census: Census, gained: tuple[str, ...]) -> bool:
        """Whether we took partitions from other hosts, and may find more soon."""
        held_by_others = {p for p, host in census.assigned.items() if host != census.me}
        return self.strategy.looks_again and not held_by_others.isdisjoint(gained)

    def _log_hosts(self, census: Census) -> None:
        before = set(self._last_census.members) if self._last_census is not None else {census.me}
        joined = sorted(set(census.members) - before)
        left = sorted(before - set(census.members))
        if joined or left:
            self.host.reporter.info(
                "hosts_changed", joined=names(joined), left=names(left), hosts=len(census.members)
            )

    def _report(
        self, census: Census, choice: Choice, gained: tuple[str, ...], started_s: float
    ) -> CycleReport:
        lost, self.lost = tuple(self.lost), []
        outcome = Outcome(
            elapsed_s=self.host.clock.monotonic() - started_s,
            joined=census.joined or not self.strategy.joins_first,
            waiting=bool(choice.nominations or census.incoming) or self._stole(census, gained),
            hurries=self.strategy.eager and bool(gained),
        )
        return CycleReport(
            requested=choice.requested,
            gained=gained,
            lost=lost,
            owned=len(self.host.leases.held),
            partitions=len(self.partitions),
            hosts=len(census.members),
            settled=settled(census, choice.requested) and not self._held_back,
            outcome=outcome,
        )
