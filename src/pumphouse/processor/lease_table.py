"""What this host holds, and every write it makes to an ownership row.

Claims, renewals, releases and hand-overs all pass here, so that there is never more than one write
under way for a partition, and what comes of it is judged in one place (plan.judge). A write of
which nothing was heard gives us nothing: the next listing tells, and what it says is ours is
written once more before we act on it.

    cycle, watch, pumps -> LeaseTable -> store.claim_ownership -> granted, refused, unknown
                           ^^^^^^^^ this module              -> listener
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

from pumphouse.clock import Clock
from pumphouse.errors import OwnershipLost, StoreError
from pumphouse.leases.model import (
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
from pumphouse.leases.store import CheckpointStore, ClaimOutcome
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.plan import (
    Lease,
    as_of,
    changed,
    given_up,
    hold,
    is_old_news,
    is_ours,
    judge,
    rate_of,
    renewed,
)

GIVE_UP_ATTEMPTS = 3


class Listener(Protocol):
    """Who wants to know when a partition becomes ours, is asked for, or is lost."""

    def gained(self, lease: Lease) -> None: ...

    def renewed(self, lease: Lease) -> None: ...

    def raised(self, lease: Lease) -> None: ...

    def asked_for(self, lease: Lease) -> None: ...

    def lost(self, partition: str, why: OwnershipLost) -> None: ...

    def report(self, partition: str | None, failed: Exception) -> None: ...


class LeaseTable:
    """The partitions that are ours, and the only hand that writes their rows."""

    def __init__(
        self,
        store: CheckpointStore,
        group: Group,
        me: str,
        options: ProcessorOptions,
        clock: Clock,
        listener: Listener,
    ) -> None:
        self.store, self.group, self.me = store, group, me
        self.options, self.clock, self.listener = options, clock, listener
        self.held: dict[str, Lease] = {}
        self.doubts = asyncio.Event()  # a listing is needed to know what we hold
        self._asked: defaultdict[str, set[int]] = defaultdict(set)  # epochs that would be ours
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._counted: defaultdict[str, int] = defaultdict(int)  # events since the last renewal
        self._rates: dict[str, float | None] = {}

    def __repr__(self) -> str:
        return f"<LeaseTable {self.me} | {' '.join(self.held) or 'nothing'}>"

    # -- what others may know ---------------------------------------------------------------------

    def binds(self, partition: str, epoch: int) -> bool:
        """Whether we may still deliver and checkpoint what we hold with this epoch."""
        lease = self.held.get(partition)
        if lease is None or lease.row.epoch != epoch:
            return False
        return self.clock.monotonic() < lease.binds_until(self.options.lease_s)

    def count(self, partition: str, events: int) -> None:
        """So many events were handled: the rate is told with the next renewal."""
        self._counted[partition] += events

    def asks_for(self, partition: str) -> bool:
        """Whether it may yet turn out to be ours: a claim without an answer, or a hand-off."""
        return bool(self._asked.get(partition))

    def writing(self, partition: str) -> bool:
        return self._locks[partition].locked()

    # -- renewing ---------------------------------------------------------------------------------

    async def renew(self, partitions: Iterable[str]) -> None:
        """Renew these, all at once; those that are just being written are left out."""
        chosen = [p for p in partitions if p in self.held and not self.writing(p)]
        if not chosen:
            return
        async with self._writing(chosen):
            chosen = [p for p in chosen if p in self.held]  # given up while we waited for our turn
            sent_s = self.clock.monotonic()
            rows = [renewed(self.held[p], sent_s, self._rate(p, sent_s)) for p in chosen]
            for p in chosen:
                self.held[p] = replace(self.held[p], asked_s=sent_s, due=False)
            outcomes = await self._write(rows) if rows else []
            self.fence()  # what has run out meanwhile is lost, whatever the store says now
            for outcome in outcomes:
                self._heard_of_renewal(outcome, sent_s)

    def _rate(self, partition: str, now_s: float) -> float | None:
        elapsed_s = now_s - self.held[partition].asked_s
        events = self._counted.pop(partition, 0)
        rate = rate_of(self._rates.get(partition), events, elapsed_s)
        self._rates[partition] = rate
        return rate

    def _heard_of_renewal(self, outcome: ClaimOutcome, sent_s: float) -> None:
        partition = _partition(outcome)
        lease = self.held.get(partition)
        if lease is None:
            return  # it was given up while we waited, and what the store says now is too late
        match outcome:
            case Granted(row):
                self.held[partition] = _merged(hold(row, sent_s, self.clock.monotonic()), lease)
                # What we asked for before it, and heard nothing of, can take no effect any more.
                self._asked.pop(partition, None)
                self.listener.renewed(self.held[partition])
            case Refused(_, current):
                self._refused(lease, current, sent_s)
            case Unknown():
                pass  # the lease goes on running

    def _refused(self, lease: Lease, current: Ownership | None, sent_s: float) -> None:
        """Somebody else wrote our row, or we did and never heard of it."""
        if current is None:
            self.held[lease.partition] = replace(lease, doubtful=True)
            self.doubts.set()
            return
        self._judged(lease, current, sent_s)

    def _judged(self, lease: Lease, row: Ownership | None, sent_s: float) -> None:
        after = self._after(lease, row, sent_s)
        if after is None:
            self.drop(lease.partition, row)
        else:
            self._take(after)

    def _after(self, lease: Lease, row: Ownership | None, sent_s: float) -> Lease | None:
        """What a lease becomes once its row was seen; None if it is no longer ours."""
        now_s, asked = self.clock.monotonic(), self._asked.get(lease.partition, set())
        if row is not None and lease.seen_s <= sent_s and is_ours(row, self.me, asked):
            return changed(lease, row, sent_s, now_s)
        return judge(lease, row, sent_s, now_s)

    def drop(self, partition: str, row: Ownership | None = None) -> None:
        """It is no longer ours, or we may no longer act as if it were."""
        lease = self.held.pop(partition, None)
        if lease is None:
            return
        self._rates.pop(partition, None)
        owner, epoch = (row.owner, row.epoch) if row is not None else ("", 0)
        self.listener.lost(partition, OwnershipLost(partition, lease.row.epoch, owner, epoch))

    def fence(self) -> None:
        """Drop what we could not renew in time, and what a successor may have taken by now."""
        now_s = self.clock.monotonic()
        for partition, lease in list(self.held.items()):
            if now_s >= lease.binds_until(self.options.lease_s):
                self.drop(partition)

    # -- claiming ---------------------------------------------------------------------------------

    async def claim(self, rows: Sequence[Ownership]) -> list[str]:
        """Write these claims; those that were granted are ours."""
        sent_s, outcomes = await self._ask(rows, [row.epoch for row in rows])
        return [row.partition for row in _granted(outcomes) if self._take_new(row, sent_s)]

    async def nominate(self, rows: Sequence[Ownership]) -> list[str]:
        """Ask the owners of these rows for them; those that stand now."""
        _, outcomes = await self._ask(rows, [row.epoch + 1 for row in rows])
        return [row.partition for row in _granted(outcomes)]

    async def give_back(self, rows: Sequence[Ownership]) -> None:
        """Write rows that we do not hold, though they are in our name, for those who asked."""
        await self._ask(rows, [])

    async def _ask(
        self, rows: Sequence[Ownership], epochs: Sequence[int]
    ) -> tuple[float, list[ClaimOutcome]]:
        if not rows:
            return self.clock.monotonic(), []
        async with self._writing([row.partition for row in rows]):
            for row, epoch in zip(rows, epochs, strict=False):
                self._asked[row.partition].add(epoch)
            sent_s = self.clock.monotonic()
            outcomes = await self._write(rows)
        for outcome, epoch in zip(outcomes, epochs, strict=False):
            if isinstance(outcome, Refused):
                self._asked[_partition(outcome)].discard(epoch)
        return sent_s, outcomes

    def _take_new(self, row: Ownership, sent_s: float) -> bool:
        if row.partition in self.held:
            return False
        self._take(hold(row, sent_s, self.clock.monotonic()))
        return True

    def _take(self, lease: Lease) -> None:
        before = self.held.get(lease.partition)
        self.held[lease.partition] = lease
        if before is None or before.row.epoch < lease.row.epoch:
            # What was asked for has come; the same row in an old listing must not come twice.
            self._asked.pop(lease.partition, None)
        if before is None:
            self.listener.gained(lease)
        elif before.row.epoch < lease.row.epoch:
            self.listener.raised(lease)  # by a write of ours that was never answered
        if lease.row.successor:
            self.listener.asked_for(lease)

    def heard(self, listing: Listing, sent_s: float) -> list[Ownership]:
        """Judge what we hold by a listing; the rows that are ours by it though we do not hold them.

        They were handed over to us, or a claim of ours got no answer.
        """
        rows = {row.partition: row for row in listing.ownerships}
        for partition, lease in list(self.held.items()):
            row = rows.get(partition)
            if not self.writing(partition) and not is_old_news(lease, row, sent_s):
                self._judged(lease, row, sent_s)
        elapsed_s = self.clock.monotonic() - sent_s
        return [aged(row, elapsed_s) for row in rows.values() if self._is_found(row)]

    async def confirm(self, rows: Sequence[Ownership]) -> list[str]:
        """Take what was heard to be ours, by writing it; what is ours then.

        When it was written before we do not know: its lease begins now.
        """
        return await self.claim([confirm(row) for row in rows])

    def _is_found(self, row: Ownership) -> bool:
        asked = self._asked.get(row.partition, set())
        unheld = row.partition not in self.held and not self.writing(row.partition)
        return unheld and is_ours(row, self.me, asked) and not row.expired(self.options.lease_s)

    # -- giving up, and raising -------------------------------------------------------------------

    async def give_up(self, partition: str) -> bool:
        """Release a partition, or hand it to who has asked; whether we know that it is done."""
        async with self._writing([partition]):
            for _ in range(GIVE_UP_ATTEMPTS):
                if partition not in self.held:
                    return True
                if await self._give_up_once(self.held[partition]):
                    return True
            self.held.pop(partition, None)
        text = f"partition {partition} could not be given up: it is ours until its lease runs out"
        self.listener.report(partition, StoreError(text))
        return False

    async def _give_up_once(self, lease: Lease) -> bool:
        sent_s = self.clock.monotonic()
        row = given_up(as_of(lease, sent_s), self.options)
        (outcome,) = await self._write([row])
        match outcome:
            case Granted():
                self.held.pop(lease.partition, None)
                return True
            case Refused(_, current):
                if current is None:  # blob stores refuse without a word: perhaps somebody has asked
                    sent_s, current = self.clock.monotonic(), await self._row_of(lease.partition)
                after = self._after(lease, current, sent_s)
                if after is None:  # it has gone already: to a thief, or by an attempt of ours
                    self.held.pop(lease.partition, None)
                    return True
                self.held[lease.partition] = after
        return False

    async def _row_of(self, partition: str) -> Ownership | None:
        """A row as it is now; None if there is none, or nobody could tell."""
        try:
            async with asyncio.timeout(self.options.store_s):
                listing = await self.store.list_ownership(self.group)
        except (TimeoutError, StoreError) as failed:
            self.listener.report(partition, StoreError(f"the rows could not be listed: {failed}"))
            return None
        return next((row for row in listing.ownerships if row.partition == partition), None)

    async def settle_epoch(self, partition: str) -> int:
        """The epoch with which it is ours. A raise that was not answered may yet take effect.

        A renewal tells: it comes first, and the raise is refused, or it meets the raised row.
        """
        if self.asks_for(partition):
            await self.renew([partition])
        if partition not in self.held:
            raise OwnershipLost(partition, 0)
        if self.asks_for(partition):
            raise StoreError(f"it is not known with which epoch partition {partition} is ours")
        return self.held[partition].row.epoch

    async def raise_epoch(self, partition: str, above: int) -> int:
        """Raise our epoch above another's; the new one. OwnershipLost if it is not ours to raise.

        Only the rightful owner is granted this write: a stranger's etag is not the row's.
        """
        async with self._writing([partition]):
            while (lease := self.held.get(partition)) is not None:
                sent_s = self.clock.monotonic()
                row = raise_epoch(as_of(lease, sent_s), above)
                self._asked[partition].add(row.epoch)
                (outcome,) = await self._write([row])
                self.fence()
                if partition not in self.held:
                    break
                if isinstance(outcome, Granted):
                    taken = hold(outcome.row, sent_s, self.clock.monotonic())
                    self.held[partition] = _merged(taken, lease)
                    self._asked.pop(partition, None)
                    return outcome.row.epoch
                if isinstance(outcome, Unknown):
                    raise StoreError(
                        f"the epoch of partition {partition} could not be raised: {outcome.why}"
                    )
                self._refused(lease, outcome.current, sent_s)
                after = self.held.get(partition)
                if after is not None and after.row.epoch > above:
                    return after.row.epoch
                if after is not None and after.doubtful:
                    raise StoreError(f"nobody could tell who owns partition {partition} now")
        raise OwnershipLost(partition, above)

    # -- writing ----------------------------------------------------------------------------------

    @asynccontextmanager
    async def _writing(self, partitions: Sequence[str]) -> AsyncIterator[None]:
        """One write at a time for each of these partitions."""
        taken: list[asyncio.Lock] = []
        try:
            # In one order, so that two who want several never wait for each other in a ring.
            for partition in sorted(partitions):
                await self._locks[partition].acquire()
                taken.append(self._locks[partition])
            yield
        finally:
            for lock in taken:
                lock.release()

    async def _write(self, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        """The outcomes of these writes, in their order, before a deadline."""
        outcomes: list[ClaimOutcome]
        try:
            async with asyncio.timeout(self.options.store_s):
                outcomes = await self.store.claim_ownership(self.group, rows)
        except TimeoutError:
            why = f"the store did not answer within {self.options.store_s:g} s"
            outcomes = [Unknown(row, why) for row in rows]
        except StoreError as failed:
            outcomes = [Unknown(row, str(failed)) for row in rows]
        self._report_unknown(outcomes)
        return outcomes

    def _report_unknown(self, outcomes: Iterable[ClaimOutcome]) -> None:
        unknown = [outcome for outcome in outcomes if isinstance(outcome, Unknown)]
        if unknown:
            partitions = ", ".join(outcome.wanted.partition for outcome in unknown)
            why = unknown[0].why or "no answer"
            text = f"it is not known whether the rows of {partitions} were written: {why}"
            self.listener.report(None, StoreError(text))


def _merged(new: Lease, old: Lease) -> Lease:
    """What we know of a partition by two words of it: a lease only grows, a deadline only nears."""
    since_s = max(new.since_s, old.since_s)
    return replace(new, since_s=since_s, deadline_s=min(new.deadline_s, old.deadline_s))


def _partition(outcome: ClaimOutcome) -> str:
    return outcome.row.partition if isinstance(outcome, Granted) else outcome.wanted.partition


def _granted(outcomes: Iterable[ClaimOutcome]) -> list[Ownership]:
    return [outcome.row for outcome in outcomes if isinstance(outcome, Granted)]
