"""The store of a simulated fleet: a real MemoryStore behind a network that loses and delays.

A call travels to the store, takes effect there, and its answer travels back. The caller may have
given up, be frozen or be dead by then: what was on its way arrives all the same, as in life. What
is granted is told to whoever watches.

    host -> HostStore -> (travels) -> MemoryStore -> observer
            ^^^^^^^^^ this module

Semantics: `memory` (SQLite is alike) tells exact ages, and the current row when it refuses. `blob`
shows whole seconds and refuses without a word. `bloblease` knows whether a lease is held, not for
how long.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol, Self, TypeVar

from pumphouse.errors import OptionError, StoreMisused, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    Unknown,
    aged_listing,
)
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.simulation.faults.profiles import NO_FAULTS, Faults
from pumphouse.simulation.loop import HostClock, HostProcess, SimLoop

SEMANTICS = ("memory", "blob", "bloblease")
WHY = "the store did not answer (a fault on purpose)"
SLOW_S_MAX = 15.0  # longer than a caller waits, by default
LATE_S_MAX = 3 * SLOW_S_MAX  # after that nothing from before arrives
MEMBER_KEPT_S = 2 * 3600.0  # hosts tell their limit once an hour; most names live for minutes
T = TypeVar("T")


class StoreObserver(Protocol):
    """Hears of everything that was granted, as it takes effect."""

    def row_written(
        self, process: HostProcess, before: Ownership | None, row: Ownership
    ) -> None: ...

    def row_answered(self, process: HostProcess, row: Ownership, sent_s: float) -> None: ...

    def row_heard(self, process: HostProcess, row: Ownership, sent_s: float) -> None: ...

    def checkpoint_sent(self, process: HostProcess, mark: Checkpoint) -> None: ...

    def checkpoint_written(
        self, process: HostProcess, before: Checkpoint | None, mark: Checkpoint
    ) -> None: ...

    def misused(self, process: HostProcess, why: StoreMisused) -> None: ...

    def store_failed(self, process: HostProcess, kind: str, partitions: Sequence[str]) -> None: ...


class SimStore:
    """What all hosts share."""

    def __init__(
        self, observer: StoreObserver, group: Group, lease_s: float, semantics: str = "memory"
    ) -> None:
        if semantics not in SEMANTICS:
            raise OptionError(f"{semantics!r} is no store; use one of {', '.join(SEMANTICS)}")
        self.observer, self.group, self.lease_s, self.semantics = (
            observer,
            group,
            lease_s,
            semantics,
        )
        # A write may be under way for long; that much a renewal puts a deadline off.
        self.memory = MemoryStore(
            HostClock(), put_off_s_max=LATE_S_MAX + 5.0, member_kept_s=MEMBER_KEPT_S
        )
        self.rows: dict[str, Ownership] = {}
        self.written_s: dict[str, float] = {}  # when each row was last written
        self.leased_s: dict[str, float] = {}  # when the lease of its blob was last made or renewed
        self.heard: dict[str, str] = {}  # the etag of each row that a writer was last told
        self.marks: dict[str, Checkpoint] = {}
        self.calls: Counter[str] = Counter()
        self.refused = 0
        self.away_until_s = 0.0

    def in_doubt(self) -> list[str]:
        """Owned rows of which the last write was never answered: the next one will be refused."""
        rows = self.rows.items()
        return [p for p, row in rows if row.owner and self.heard.get(p) != row.etag]

    def claim(self, process: HostProcess, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        """Let these writes take effect, and tell the observer."""
        self.calls["row"] += len(rows)
        try:
            outcomes = at_once(self.memory.claim_ownership(self.group, rows))
        except StoreMisused as why:
            self.observer.misused(process, why)
            raise
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self._granted(process, outcome.row)
            else:
                self.refused += 1
        return [self._shown_outcome(outcome) for outcome in outcomes]

    def _granted(self, process: HostProcess, row: Ownership) -> None:
        before = self.rows.get(row.partition)
        self.rows[row.partition] = row
        now_s = self.written_s[row.partition] = asyncio.get_running_loop().time()
        # Who asks for a partition writes under the lease of its owner, and leaves it as it is.
        if before is None or not asks(before, row):
            self.leased_s[row.partition] = now_s if row.owner else -math.inf
        self.observer.row_written(process, before, row)

    def update(
        self, process: HostProcess, checkpoint: Checkpoint, rewind: bool
    ) -> CheckpointOutcome:
        self.calls["checkpoint"] += 1
        outcome = at_once(self.memory.update_checkpoint(checkpoint, rewind=rewind))
        if isinstance(outcome, Granted):
            before = self.marks.get(checkpoint.partition)
            self.marks[checkpoint.partition] = outcome.row
            self.observer.checkpoint_written(process, before, outcome.row)
        else:
            self.refused += 1
        if isinstance(outcome, Refused) and self.semantics == "blob":
            return replace(outcome, current=None)
        return outcome

    def list_rows(self) -> Listing:
        self.calls["list"] += 1
        listing = at_once(self.memory.list_ownership(self.group))
        if self.semantics == "memory":
            return listing
        return replace(listing, ownerships=tuple(map(self._shown, listing.ownerships)))

    def list_checkpoints(self) -> list[Checkpoint]:
        self.calls["list checkpoints"] += 1
        return at_once(self.memory.list_checkpoints(self.group))

    def beat(self, name: str, most: int | None) -> None:
        self.calls["beat"] += 1
        at_once(self.memory.beat(self.group, name, most))

    def leave(self, name: str) -> None:
        self.calls["leave"] += 1
        at_once(self.memory.leave(self.group, name))

    # -- semantics ---------------------------------------------------------------------------------

    def _shown_outcome(self, outcome: ClaimOutcome) -> ClaimOutcome:
        if not isinstance(outcome, Refused) or self.semantics == "memory":
            return outcome
        if self.semantics == "blob" or outcome.current is None:
            return replace(outcome, current=None)
        return replace(outcome, current=self._shown(outcome.current))

    def _shown(self, row: Ownership) -> Ownership:
        """A row as this kind of store tells it."""
        now_s = asyncio.get_running_loop().time()
        if self.semantics == "bloblease":
            leased = now_s - self.leased_s[row.partition] < self.lease_s
            return replace(row, age_s=0.0 if leased else math.inf)
        seconds = math.floor(now_s) - math.floor(now_s - row.age_s)
        left_s = None if row.deadline_s is None else row.deadline_s + now_s % 1
        return replace(row, age_s=max(0.0, seconds - 1.0), deadline_s=left_s)


def asks(before: Ownership, row: Ownership) -> bool:
    """Whether a write is a nomination, as BlobLeaseStore sees it."""
    named = bool(row.successor) and row.successor != before.successor
    return named and row.owner == before.owner


class HostStore:
    """One host's way to the store. `injected` counts what went wrong on it, by kind."""

    def __init__(
        self, store: SimStore, process: HostProcess, rng: Random, injected: Counter[str]
    ) -> None:
        self.store, self.process, self.rng, self.injected = store, process, rng, injected
        self.faults: Faults = NO_FAULTS
        self._seen: tuple[Listing, float] | None = None
        self._marks_seen: list[Checkpoint] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close."""

    # -- reading -----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        sent_s = asyncio.get_running_loop().time()
        listing = await self._list(sent_s)
        for row in listing.ownerships:
            self.store.observer.row_heard(self.process, row, sent_s)
        return listing

    async def _list(self, now_s: float) -> Listing:
        if self._seen is not None and self._draw("stale"):
            listing, at_s = self._seen
            return await self._travel(lambda: aged_listing(listing, now_s - at_s))
        listing = await self._read(self.store.list_rows)
        # Its ages are those of the moment it was read, which was on the way: from the answer on
        # they are too young, and never too old, as an old answer of a real store is.
        self._seen = (listing, asyncio.get_running_loop().time())
        return listing

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        if self._marks_seen is not None and self._draw("stale"):
            seen = list(self._marks_seen)
            return await self._travel(lambda: seen)
        try:
            marks = await self._read(self.store.list_checkpoints)
        except StoreUnavailable:  # a checkpoint in doubt is read back before it is written again
            self.store.observer.store_failed(self.process, "failed", ())
            raise
        self._marks_seen = list(marks)
        return marks

    async def _read(self, read: Callable[[], T]) -> T:
        if self._draw("failed"):
            await self._travel(lambda: None)
            raise StoreUnavailable(WHY)
        return await self._travel(read)

    # -- writing -----------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        sent_s = asyncio.get_running_loop().time()
        fates = [(row, self._fate()) for row in claims]
        arriving = [row for row, fate in fates if fate != "before"]
        answers = iter(await self._travel(lambda: self._claim(arriving)))
        outcomes = [
            Unknown(row, WHY) if fate == "before" else _told(next(answers), row, fate)
            for row, fate in fates
        ]
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self.store.heard[outcome.row.partition] = outcome.row.etag
                self.store.observer.row_answered(self.process, outcome.row, sent_s)
            elif isinstance(outcome, Refused) and outcome.current is not None:
                self.store.observer.row_heard(self.process, outcome.current, sent_s)
        return outcomes

    def _claim(self, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        return self.store.claim(self.process, rows) if rows else []

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        self.store.observer.checkpoint_sent(self.process, checkpoint)
        fate = self._fate()
        if fate == "before":
            await self._travel(lambda: None)
            self.store.observer.store_failed(self.process, fate, [checkpoint.partition])
            return Unknown(checkpoint, WHY)
        outcome = await self._travel(
            lambda: self.store.update(self.process, checkpoint, rewind), [checkpoint.partition]
        )
        return Unknown(checkpoint, WHY) if fate == "after" else outcome

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._read(lambda: self.store.beat(name, max_partitions))

    async def leave(self, group: Group, name: str) -> None:
        await self._read(lambda: self.store.leave(name))

    # -- the way there and back --------------------------------------------------------------------

    def _draw(self, kind: str) -> bool:
        rate: float = getattr(self.faults, kind)
        if rate and self.rng.random() < rate:
            self.injected[f"store {kind}"] += 1
            return True
        return False

    def _fate(self) -> str:
        return "before" if self._draw("before") else "after" if self._draw("after") else ""

    def _delay_s(self) -> float:
        return self.rng.uniform(0.001, 0.02)

    async def _travel(self, act: Callable[[], T], about: Sequence[str] = ()) -> T:
        """Let this happen at the store after a while; what comes of it, after another."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        if self.process.dead:
            raise asyncio.CancelledError
        there_s, back_s = self._delay_s(), self._delay_s()
        if self._draw("slow"):
            late_s = self.rng.uniform(1.0, SLOW_S_MAX)
            there_s, back_s = (late_s, back_s) if self.rng.random() < 0.5 else (there_s, late_s)
            self.store.observer.store_failed(self.process, "slow", about)
        if loop.time() < self.store.away_until_s:
            self.store.observer.store_failed(self.process, "away", about)
            left_s = self.store.away_until_s - loop.time()
            if self.rng.random() < 0.5 or left_s > 2 * SLOW_S_MAX:
                await asyncio.sleep(self.rng.uniform(1.0, SLOW_S_MAX))
                raise StoreUnavailable(WHY)
            there_s += left_s  # some of what nobody answers takes effect once the store is back
        answer: asyncio.Future[T] = loop.create_future()
        loop.call_later(there_s, _arrive, loop, act, answer, back_s, context=loop.nowhere)
        return await answer


def _arrive(loop: SimLoop, act: Callable[[], T], answer: asyncio.Future[T], back_s: float) -> None:
    try:
        result = act()
    except Exception as failed:
        loop.call_later(back_s, _answer, answer, failed, None, context=loop.nowhere)
    else:
        loop.call_later(back_s, _answer, answer, None, result, context=loop.nowhere)


def _answer(answer: asyncio.Future[Any], failed: Exception | None, result: Any) -> None:
    if answer.done():
        return  # nobody waits for it any more
    if failed is not None:
        answer.set_exception(failed)
    else:
        answer.set_result(result)


def _told(outcome: ClaimOutcome, row: Ownership, fate: str) -> ClaimOutcome:
    return Unknown(row, WHY) if fate == "after" else outcome


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine comes to that only ever lets others go first: here nobody is in between."""
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
