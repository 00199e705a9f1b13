"""LeaseTable: the leases of this host, and every write it makes to an ownership row.

Claims, renewals, releases and hand-overs all go through this table. So there is never more than one
write under way for a partition, and every outcome is evaluated in one place (plan.next_lease). A
write without a response grants nothing: the next listing shows what is stored, and a row that turns
out to be ours is written again before it is used.

    cycle, watch, pumps -> LeaseTable -> store.claim_ownership -> granted, refused, unknown
                           ^^^^^^^^^^ this module              -> listener, log
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost, PumphouseError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    RESUME,
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    Unknown,
    aged,
    confirm,
    raise_epoch,
)
from pumphouse.leases.store import CheckpointStore, ClaimOutcome, granted_rows
from pumphouse.processor.health.ownership_log import OwnershipLog
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import (
    Lease,
    claim_reason,
    given_up_row,
    granted_lease,
    is_expected,
    is_stale,
    merged_lease,
    next_lease,
    renewal_deadline_s,
    renewal_row,
    row_at,
    smoothed_rate,
    updated_lease,
)
from pumphouse.processor.recording.recorder import CLAIM, RAISE_EPOCH, RELEASE, RENEW, REQUEST
from pumphouse.processor.reporting import Reporter

GIVE_UP_ATTEMPTS = 3


class Listener(Protocol):
    """Called when a partition becomes ours, is renewed, requested or lost."""

    def gained(self, lease: Lease) -> None: ...

    def renewed(self, lease: Lease) -> None: ...

    def epoch_raised(self, lease: Lease) -> None: ...

    def requested(self, lease: Lease) -> None: ...

    def state(self, partition: str) -> str: ...

    def resumed(self, lease: Lease) -> None: ...

    def lost(self, partition: str, error: OwnershipLost) -> None: ...


class LeaseTable:
    """The partitions that are ours. No other object writes their rows."""

    def __init__(
        self,
        store: CheckpointStore,
        group: Group,
        options: ProcessorOptions,
        clock: Clock,
        listener: Listener,
        reporter: Reporter,
    ) -> None:
        self.store, self.group, self.host = store, group, reporter.host
        self.options, self.clock = options, clock
        self.listener, self.reporter = listener, reporter
        self.log = OwnershipLog(reporter, options)
        self.held: dict[str, Lease] = {}
        self.listing_needed = asyncio.Event()  # a store refused a write without returning the row
        # A row in our name with one of these epochs is ours: they are the epochs of our requests,
        # and of claims and raises that got no response.
        self._expected: defaultdict[str, set[int]] = defaultdict(set)
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._counted: defaultdict[str, int] = defaultdict(int)  # events since the last renewal
        self._rates: dict[str, float | None] = {}

    def __repr__(self) -> str:
        return f"<LeaseTable {self.host} | {' '.join(self.held) or 'nothing'}>"

    def is_valid(self, partition: str, epoch: int) -> bool:
        """Whether this host may deliver and checkpoint now, by the lease with this epoch."""
        lease = self.held.get(partition)
        if lease is None or lease.row.epoch != epoch:
            return False
        return self.clock.monotonic() < lease.valid_until(self.options.lease_s)

    def count(self, partition: str, events: int) -> None:
        """Add handled events to the rate that the next renewal writes."""
        self._counted[partition] += events

    def may_become_ours(self, partition: str) -> bool:
        """Whether a claim without a response, or a request, may still give us the partition."""
        return bool(self._expected.get(partition))

    def is_writing(self, partition: str) -> bool:
        return self._locks[partition].locked()

    # -- renewing ---------------------------------------------------------------------------------

    async def renew(self, partitions: Iterable[str]) -> None:
        """Renew these in one call, except those that are being written."""
        chosen = [p for p in partitions if p in self.held and not self.is_writing(p)]
        if not chosen:
            return
        async with self._writing(chosen):
            chosen = [p for p in chosen if p in self.held]  # some may be given up by now
            sent_s = self.clock.monotonic()
            rows = [self._renewal_row(self.held[p], sent_s) for p in chosen]
            for p in chosen:
                self.held[p] = replace(self.held[p], renewal_sent_s=sent_s, renewal_due=False)
            outcomes = await self._write_renewals(rows) if rows else []
            self.fence()  # a lease that has expired meanwhile is lost, even if it is granted now
            for outcome in outcomes:
                self._apply_renewal(outcome, sent_s)

    async def _write_renewals(self, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        leases = [self.held[row.partition] for row in rows]
        deadline_s = renewal_deadline_s(leases, self.clock.monotonic(), self.options)
        return await self._write(RENEW, rows, deadline_s)

    def _renewal_row(self, lease: Lease, now_s: float) -> Ownership:
        partition, elapsed_s = lease.partition, now_s - lease.renewal_sent_s
        events = self._counted.pop(partition, 0)
        rate = smoothed_rate(self._rates.get(partition), events, elapsed_s)
        self._rates[partition] = rate
        return renewal_row(lease, now_s, rate, self.listener.state(partition))

    def _apply_renewal(self, outcome: ClaimOutcome, sent_s: float) -> None:
        partition = _partition(outcome)
        lease = self.held.get(partition)
        if lease is None:
            return  # it was given up meanwhile: the response comes too late
        match outcome:
            case Granted(row):
                renewed = granted_lease(row, sent_s, self.clock.monotonic())
                self.held[partition] = merged_lease(renewed, lease)
                # An earlier write without a response can no longer take effect.
                self._expected.pop(partition, None)
                self.listener.renewed(self.held[partition])
            case Refused(_, current):
                self._apply_refusal(lease, current, sent_s)
            case Unknown():
                # The lease keeps running. The next check of the watch retries.
                self.held[partition] = replace(lease, renewal_due=True)

    def _apply_refusal(self, lease: Lease, current: Ownership | None, sent_s: float) -> None:
        """Another host wrote our row, or one of our writes took effect without a response."""
        if current is None:
            self.held[lease.partition] = replace(lease, doubtful=True)
            self.listing_needed.set()
            return
        self._apply_row(lease, current, sent_s)

    def _apply_row(self, lease: Lease, row: Ownership | None, sent_s: float) -> None:
        after = self._next_lease(lease, row, sent_s)
        if after is None:
            self.lose(lease.partition, row)
        else:
            self._update(after)

    def _next_lease(self, lease: Lease, row: Ownership | None, sent_s: float) -> Lease | None:
        """The lease after its row was read; None if it is no longer ours."""
        now_s, expected = self.clock.monotonic(), self._expected.get(lease.partition, set())
        if row is not None and lease.known_s <= sent_s and is_expected(row, self.host, expected):
            return updated_lease(lease, row, sent_s, now_s)
        return next_lease(lease, row, sent_s, now_s)

    def lose(self, partition: str, row: Ownership | None = None) -> None:
        """Remove a lease: its row has another owner, or (without a row) it is no longer valid."""
        lease = self.held.pop(partition, None)
        if lease is None:
            return
        self._rates.pop(partition, None)
        self.listener.lost(partition, self.log.lost(lease, row, self.clock.monotonic()))

    def fence(self) -> None:
        """Remove leases that were not renewed in time, or that a successor may have taken."""
        now_s = self.clock.monotonic()
        for partition, lease in list(self.held.items()):
            if now_s >= lease.valid_until(self.options.lease_s):
                self.lose(partition)

    # -- claiming ---------------------------------------------------------------------------------

    async def claim(
        self, rows: Sequence[Ownership], listed: Mapping[str, Ownership] | None = None
    ) -> list[str]:
        """Write claims; returns the granted partitions. `listed` has the rows before the claims."""
        before = listed or {}
        sent_s, outcomes = await self._request(CLAIM, rows, [row.epoch for row in rows])
        granted = granted_rows(outcomes)
        gained = [row for row in granted if self._gain(row, sent_s, before.get(row.partition))]
        return [row.partition for row in gained]

    async def nominate(self, rows: Sequence[Ownership]) -> list[str]:
        """Request these partitions from their owners; returns those whose request was granted."""
        _, outcomes = await self._request(REQUEST, rows, [row.epoch + 1 for row in rows])
        return [row.partition for row in granted_rows(outcomes)]

    async def return_rows(self, rows: Sequence[Ownership]) -> None:
        """Give rows away that are in our name but not held."""
        _, outcomes = await self._request(RELEASE, rows, [])
        for row in granted_rows(outcomes):
            self.log.returned(row)

    async def _request(
        self, operation: str, rows: Sequence[Ownership], epochs: Sequence[int]
    ) -> tuple[float, list[ClaimOutcome]]:
        if not rows:
            return self.clock.monotonic(), []
        async with self._writing([row.partition for row in rows]):
            for row, epoch in zip(rows, epochs, strict=False):
                self._expected[row.partition].add(epoch)
            sent_s = self.clock.monotonic()
            outcomes = await self._write(operation, rows)
        for outcome, epoch in zip(outcomes, epochs, strict=False):
            if isinstance(outcome, Refused):
                self._expected[_partition(outcome)].discard(epoch)
        return sent_s, outcomes

    def _gain(self, row: Ownership, sent_s: float, before: Ownership | None) -> bool:
        """Add a lease for a granted claim; returns whether it is new."""
        if row.partition in self.held:
            return False
        lease = granted_lease(row, sent_s, self.clock.monotonic())
        self.log.claimed(row, before, claim_reason(before, self.host, self.options.lease_s))
        self._update(lease)
        return True

    def _update(self, lease: Lease) -> None:
        before = self.held.get(lease.partition)
        self.held[lease.partition] = lease
        if before is None or before.row.epoch < lease.row.epoch:
            # The expected row has arrived; a stale listing with it must not count again.
            self._expected.pop(lease.partition, None)
        if before is None:
            self.listener.gained(lease)
        elif before.row.epoch < lease.row.epoch:
            self.listener.epoch_raised(lease)  # by a write of ours without a response
        if lease.row.successor:
            self.listener.requested(lease)
        if lease.row.state == RESUME:
            self.listener.resumed(lease)

    def apply_listing(self, listing: Listing, sent_s: float) -> list[Ownership]:
        """Update the leases from a listing; returns the rows that are ours but not held.

        Those were handed over to us, or our claim got no response.
        """
        rows = {row.partition: row for row in listing.ownerships}
        for partition, lease in list(self.held.items()):
            row = rows.get(partition)
            if not self.is_writing(partition) and not is_stale(lease, row, sent_s):
                self._apply_row(lease, row, sent_s)
        elapsed_s = self.clock.monotonic() - sent_s
        return [aged(row, elapsed_s) for row in rows.values() if self._is_ours_unheld(row)]

    async def confirm(self, rows: Sequence[Ownership]) -> list[str]:
        """Write the rows that `apply_listing` returned; returns the partitions that are now ours.

        When they were written before is unknown, so their leases begin with this write.
        """
        listed = {row.partition: row for row in rows}
        return await self.claim([confirm(row) for row in rows], listed)

    def _is_ours_unheld(self, row: Ownership) -> bool:
        expected = self._expected.get(row.partition, set())
        unheld = row.partition not in self.held and not self.is_writing(row.partition)
        expired = row.expired(self.options.lease_s)
        return unheld and is_expected(row, self.host, expected) and not expired

    # -- giving up, and raising epochs ------------------------------------------------------------

    async def give_up(self, partition: str, reason: str = "shutdown") -> bool:
        """Release a partition, or hand it over to its successor; True if that is certain."""
        async with self._writing([partition]):
            for _ in range(GIVE_UP_ATTEMPTS):
                if partition not in self.held:
                    return True
                if await self._give_up_once(self.held[partition], reason):
                    return True
            self.held.pop(partition, None)
        text = f"partition {partition} could not be given up: it stays ours until its lease expires"
        self.reporter.failed("release_failed", partition, StoreError(text))
        return False

    async def _give_up_once(self, lease: Lease, reason: str) -> bool:
        sent_s = self.clock.monotonic()
        row = given_up_row(row_at(lease, sent_s), self.options)
        (outcome,) = await self._write(RELEASE, [row])
        match outcome:
            case Granted():
                self.held.pop(lease.partition, None)
                self.log.given_up(lease, outcome.row, reason, self.clock.monotonic())
                return True
            case Refused(_, current):
                if current is None:  # blob stores return no row: the partition may be requested
                    sent_s, current = self.clock.monotonic(), await self._row_of(lease.partition)
                after = self._next_lease(lease, current, sent_s)
                if after is None:  # another host has taken it, or an earlier attempt took effect
                    self.held.pop(lease.partition, None)
                    if current is not None:
                        self.log.given_up(lease, current, reason, self.clock.monotonic())
                    return True
                self.held[lease.partition] = after
        return False

    async def _row_of(self, partition: str) -> Ownership | None:
        """The row as it is stored now; None if there is none, or the store did not respond."""
        try:
            async with asyncio.timeout(self.options.store_s):
                listing = await self.store.list_ownership(self.group)
        except Exception as error:
            _, why = unknown_cause(error, self.options.store_s)
            listing_error = StoreError(f"the rows of {self.group} could not be listed: {why}")
            self.reporter.failed("release_failed", partition, listing_error)
            return None
        return next((row for row in listing.ownerships if row.partition == partition), None)

    async def settle_epoch(self, partition: str) -> int:
        """The epoch of our row, for certain: a raise without a response may still take effect.

        A renewal settles it. Either it is granted, and the raise will be refused, or it is refused
        by the raised row.
        """
        if self.may_become_ours(partition):
            await self.renew([partition])
        if partition not in self.held:
            raise OwnershipLost(partition, 0)
        if self.may_become_ours(partition):
            raise StoreError(f"the epoch of partition {partition} is unknown: no response")
        return self.held[partition].row.epoch

    async def raise_epoch(self, partition: str, above: int) -> int:
        """Raise our epoch above `above` and return it. OwnershipLost if the row is not ours.

        Only the rightful owner is granted this write: the etag of any other host is stale.
        """
        async with self._writing([partition]):
            while (lease := self.held.get(partition)) is not None:
                sent_s = self.clock.monotonic()
                row = raise_epoch(row_at(lease, sent_s), above)
                self._expected[partition].add(row.epoch)
                (outcome,) = await self._write(RAISE_EPOCH, [row])
                self.fence()
                if partition not in self.held:
                    break
                if isinstance(outcome, Granted):
                    raised = granted_lease(outcome.row, sent_s, self.clock.monotonic())
                    self.held[partition] = merged_lease(raised, lease)
                    self._expected.pop(partition, None)
                    return outcome.row.epoch
                if isinstance(outcome, Unknown):
                    raise StoreError(
                        f"the epoch of partition {partition} could not be raised: {outcome.why}"
                    )
                self._apply_refusal(lease, outcome.current, sent_s)
                after = self.held.get(partition)
                if after is not None and after.row.epoch > above:
                    return after.row.epoch
                if after is not None and after.doubtful:
                    raise StoreError(f"the owner of partition {partition} is unknown: no row")
        raise OwnershipLost(partition, above)

    # -- writing ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _writing(self, partitions: Sequence[str]) -> AsyncIterator[None]:
        """One write at a time for each of these partitions."""
        acquired: list[asyncio.Lock] = []
        try:
            # Always in the same order, so that two writers of several partitions cannot deadlock.
            for partition in sorted(partitions):
                await self._locks[partition].acquire()
                acquired.append(self._locks[partition])
            yield
        finally:
            for lock in acquired:
                lock.release()

    async def _write(
        self, operation: str, rows: Sequence[Ownership], deadline_s: float | None = None
    ) -> list[ClaimOutcome]:
        """The outcomes of these writes, in their order, within a deadline."""
        deadline_s = self.options.store_s if deadline_s is None else deadline_s
        outcomes: list[ClaimOutcome]
        kind: type[StoreError] = StoreUnavailable
        try:
            async with asyncio.timeout(deadline_s):
                outcomes = await self.store.claim_ownership(self.group, rows)
        except Exception as error:
            kind, why = unknown_cause(error, self.options.store_s)
            outcomes = [Unknown(row, why) for row in rows]
        self.reporter.recorder.wrote(operation, outcomes)
        self._report_unknown(outcomes, kind)
        return outcomes

    def _report_unknown(self, outcomes: Iterable[ClaimOutcome], kind: type[StoreError]) -> None:
        unknown = [outcome for outcome in outcomes if isinstance(outcome, Unknown)]
        if not unknown:
            self.reporter.recovered("ownership_write_failed")
            return
        partitions = ", ".join(outcome.requested.partition for outcome in unknown)
        why = unknown[0].why or "no response"
        text = f"the ownership of partition {partitions} may not have been written: {why}"
        self.reporter.failed("ownership_write_failed", None, kind(text))


def _partition(outcome: ClaimOutcome) -> str:
    return outcome.row.partition if isinstance(outcome, Granted) else outcome.requested.partition


def unknown_cause(error: Exception, limit_s: float) -> tuple[type[StoreError], str]:
    """Why the outcome of a call is unknown. A store of the user's own may raise any exception.

    Raises other errors of this package: they are bugs.
    """
    if isinstance(error, TimeoutError):
        return StoreUnavailable, f"the store did not respond in time (at most {limit_s:g} s)"
    if isinstance(error, StoreError):
        return type(error), str(error)
    if isinstance(error, PumphouseError):
        raise error
    return StoreUnavailable if isinstance(error, OSError) else StoreError, repr(error)
