"""The store of a simulated fleet: a real MemoryStore behind a network that loses and delays calls.

A call is sent to the store, takes effect there, and its response is sent back. The caller may have
given up, be frozen or be dead by then: the call still takes effect. Every granted write is reported
to the observer.

    host -> HostStore -> (network) -> MemoryStore -> observer
            ^^^^^^^^^ this module

Semantics: `memory` (like SQLite) returns exact ages, and the current row with a refusal. `blob`
has ages in whole seconds, and refusals without the row. `bloblease` knows whether a lease is held,
not for how long.
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
NO_RESPONSE = "the store did not respond (injected fault)"
SLOW_S_MAX = 15.0  # longer than the default deadline of a caller
LATE_S_MAX = 3 * SLOW_S_MAX  # no call arrives later than this
# A host with a limit writes its member record every hour, so records are kept for longer than that.
# Real stores keep them for a day; here most hosts live for minutes, and records would accumulate.
MEMBER_KEPT_S = 2 * 3600.0
T = TypeVar("T")


class StoreObserver(Protocol):
    """Receives the writes that take effect, what hosts send and receive, and injected faults."""

    def row_written(self, process: HostProcess, before: Ownership | None, row: Ownership) -> None:
        """A write of a row took effect."""

    def row_granted(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """A host received the grant of a write that it sent at `sent_s`."""

    def row_received(self, process: HostProcess, row: Ownership, sent_s: float) -> None:
        """A host received a row in the response to a call that it sent at `sent_s`."""

    def checkpoint_sent(self, process: HostProcess, checkpoint: Checkpoint) -> None:
        """A host sends a checkpoint."""

    def checkpoint_written(
        self, process: HostProcess, before: Checkpoint | None, checkpoint: Checkpoint
    ) -> None:
        """A write of a checkpoint took effect."""

    def store_misused(self, process: HostProcess, why: StoreMisused) -> None:
        """A host sent a row that cannot follow the stored one."""

    def store_failed(self, process: HostProcess, kind: str, partitions: Sequence[str]) -> None:
        """A fault was injected into a call: it fails or is delayed."""


class SimStore:
    """The rows that all hosts share."""

    def __init__(
        self, observer: StoreObserver, group: Group, lease_s: float, semantics: str = "memory"
    ) -> None:
        if semantics not in SEMANTICS:
            raise OptionError(f"unknown store {semantics!r}: use one of {', '.join(SEMANTICS)}")
        self.observer, self.group, self.lease_s, self.semantics = (
            observer,
            group,
            lease_s,
            semantics,
        )
        # The network may delay a renewal. The renewal then postpones the deadline of a waiting
        # successor by this delay.
        self.memory = MemoryStore(
            HostClock(), put_off_s_max=LATE_S_MAX + 5.0, member_kept_s=MEMBER_KEPT_S
        )
        self.rows: dict[str, Ownership] = {}
        self.written_s: dict[str, float] = {}  # when each row was last written
        # When the lease of each row's blob was last acquired or renewed.
        self.leased_s: dict[str, float] = {}
        self.received_etags: dict[str, str] = {}  # the last etag of each row that a writer received
        self.checkpoints: dict[str, Checkpoint] = {}
        self.calls: Counter[str] = Counter()
        self.refused = 0
        self.unreachable_until_s = 0.0

    def in_doubt(self) -> list[str]:
        """Owned rows whose last write got no response. The next write, with an old etag, fails."""
        rows = self.rows.items()
        return [p for p, row in rows if row.owner and self.received_etags.get(p) != row.etag]

    def claim(self, process: HostProcess, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        """Apply these writes and report them to the observer."""
        self.calls["row"] += len(rows)
        try:
            outcomes = run_sync(self.memory.claim_ownership(self.group, rows))
        except StoreMisused as why:
            self.observer.store_misused(process, why)
            raise
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self._granted(process, outcome.row)
            else:
                self.refused += 1
        return [self._as_semantics(outcome) for outcome in outcomes]

    def _granted(self, process: HostProcess, row: Ownership) -> None:
        before = self.rows.get(row.partition)
        self.rows[row.partition] = row
        now_s = self.written_s[row.partition] = asyncio.get_running_loop().time()
        # A nomination is written under the owner's lease, and leaves it unchanged.
        if before is None or not is_nomination(before, row):
            self.leased_s[row.partition] = now_s if row.owner else -math.inf
        self.observer.row_written(process, before, row)

    def update(
        self, process: HostProcess, checkpoint: Checkpoint, rewind: bool
    ) -> CheckpointOutcome:
        self.calls["checkpoint"] += 1
        outcome = run_sync(self.memory.update_checkpoint(checkpoint, rewind=rewind))
        if isinstance(outcome, Granted):
            before = self.checkpoints.get(checkpoint.partition)
            self.checkpoints[checkpoint.partition] = outcome.row
            self.observer.checkpoint_written(process, before, outcome.row)
        else:
            self.refused += 1
        if isinstance(outcome, Refused) and self.semantics == "blob":
            return replace(outcome, current=None)
        return outcome

    def list_rows(self) -> Listing:
        self.calls["list"] += 1
        listing = run_sync(self.memory.list_ownership(self.group))
        if self.semantics == "memory":
            return listing
        return replace(listing, ownerships=tuple(map(self._returned, listing.ownerships)))

    def list_checkpoints(self) -> list[Checkpoint]:
        self.calls["list checkpoints"] += 1
        return run_sync(self.memory.list_checkpoints(self.group))

    def beat(self, name: str, max_partitions: int | None) -> None:
        self.calls["beat"] += 1
        run_sync(self.memory.beat(self.group, name, max_partitions))

    def leave(self, name: str) -> None:
        self.calls["leave"] += 1
        run_sync(self.memory.leave(self.group, name))

    # -- semantics ---------------------------------------------------------------------------------

    def _as_semantics(self, outcome: ClaimOutcome) -> ClaimOutcome:
        if not isinstance(outcome, Refused) or self.semantics == "memory":
            return outcome
        if self.semantics == "blob" or outcome.current is None:
            return replace(outcome, current=None)
        return replace(outcome, current=self._returned(outcome.current))

    def _returned(self, row: Ownership) -> Ownership:
        """A row as this kind of store returns it."""
        now_s = asyncio.get_running_loop().time()
        if self.semantics == "bloblease":
            leased = now_s - self.leased_s[row.partition] < self.lease_s
            return replace(row, age_s=0.0 if leased else math.inf)
        seconds = math.floor(now_s) - math.floor(now_s - row.age_s)
        deadline_s = None if row.deadline_s is None else row.deadline_s + now_s % 1
        return replace(row, age_s=max(0.0, seconds - 1.0), deadline_s=deadline_s)


def is_nomination(before: Ownership, row: Ownership) -> bool:
    """Whether a write names a new successor, as BlobLeaseStore detects it."""
    named = bool(row.successor) and row.successor != before.successor
    return named and row.owner == before.owner


class HostStore:
    """One host's connection to the store. `injected` counts its faults by kind."""

    def __init__(
        self, store: SimStore, process: HostProcess, rng: Random, injected: Counter[str]
    ) -> None:
        self.store, self.process, self.rng, self.injected = store, process, rng, injected
        self.faults: Faults = NO_FAULTS
        self._previous: tuple[Listing, float] | None = None
        self._previous_checkpoints: list[Checkpoint] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Nothing to close."""

    # -- reading -----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        sent_s = asyncio.get_running_loop().time()
        listing = await self._list(sent_s)
        for row in listing.ownerships:
            self.store.observer.row_received(self.process, row, sent_s)
        return listing

    async def _list(self, now_s: float) -> Listing:
        if self._previous is not None and self._draw("stale"):
            listing, at_s = self._previous
            return await self._travel(lambda: aged_listing(listing, now_s - at_s))
        listing = await self._read(self.store.list_rows)
        # The ages in the listing were computed before the response travelled back. They are too low
        # and never too high, as in a stale response of a real store.
        self._previous = (listing, asyncio.get_running_loop().time())
        return listing

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        if self._previous_checkpoints is not None and self._draw("stale"):
            previous = list(self._previous_checkpoints)
            return await self._travel(lambda: previous)
        try:
            checkpoints = await self._read(self.store.list_checkpoints)
        except StoreUnavailable:
            # This may prevent a write: a checkpoint in doubt is read before it is written again.
            self.store.observer.store_failed(self.process, "failed", ())
            raise
        self._previous_checkpoints = list(checkpoints)
        return checkpoints

    async def _read(self, read: Callable[[], T]) -> T:
        if self._draw("failed"):
            await self._travel(lambda: None)
            raise StoreUnavailable(NO_RESPONSE)
        return await self._travel(read)

    # -- writing -----------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        sent_s = asyncio.get_running_loop().time()
        drawn = [(row, self._write_fault()) for row in claims]
        arriving = [row for row, fault in drawn if fault != "before"]
        responses = iter(await self._travel(lambda: self._claim(arriving)))
        outcomes = [
            Unknown(row, NO_RESPONSE)
            if fault == "before"
            else _received(next(responses), row, fault)
            for row, fault in drawn
        ]
        for outcome in outcomes:
            if isinstance(outcome, Granted):
                self.store.received_etags[outcome.row.partition] = outcome.row.etag
                self.store.observer.row_granted(self.process, outcome.row, sent_s)
            elif isinstance(outcome, Refused) and outcome.current is not None:
                self.store.observer.row_received(self.process, outcome.current, sent_s)
        return outcomes

    def _claim(self, rows: Sequence[Ownership]) -> list[ClaimOutcome]:
        return self.store.claim(self.process, rows) if rows else []

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        self.store.observer.checkpoint_sent(self.process, checkpoint)
        fault = self._write_fault()
        if fault == "before":
            await self._travel(lambda: None)
            self.store.observer.store_failed(self.process, fault, [checkpoint.partition])
            return Unknown(checkpoint, NO_RESPONSE)
        outcome = await self._travel(
            lambda: self.store.update(self.process, checkpoint, rewind), [checkpoint.partition]
        )
        return Unknown(checkpoint, NO_RESPONSE) if fault == "after" else outcome

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._read(lambda: self.store.beat(name, max_partitions))

    async def leave(self, group: Group, name: str) -> None:
        await self._read(lambda: self.store.leave(name))

    # -- the network -------------------------------------------------------------------------------

    def _draw(self, kind: str) -> bool:
        rate: float = getattr(self.faults, kind)
        if rate and self.rng.random() < rate:
            self.injected[f"store {kind}"] += 1
            return True
        return False

    def _write_fault(self) -> str:
        """The fault of a write: "before" loses the request, "after" the response; "" for none."""
        return "before" if self._draw("before") else "after" if self._draw("after") else ""

    def _delay_s(self) -> float:
        return self.rng.uniform(0.001, 0.02)

    async def _travel(self, act: Callable[[], T], partitions: Sequence[str] = ()) -> T:
        """Run `act` at the store after one delay, and return its result after another."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        if self.process.dead:
            raise asyncio.CancelledError
        request_s, response_s = self._delay_s(), self._delay_s()
        if self._draw("slow"):
            slow_s = self.rng.uniform(1.0, SLOW_S_MAX)
            if self.rng.random() < 0.5:
                request_s = slow_s
            else:
                response_s = slow_s
            self.store.observer.store_failed(self.process, "slow", partitions)
        if loop.time() < self.store.unreachable_until_s:
            self.store.observer.store_failed(self.process, "away", partitions)
            outage_s = self.store.unreachable_until_s - loop.time()
            if self.rng.random() < 0.5 or outage_s > 2 * SLOW_S_MAX:
                await asyncio.sleep(self.rng.uniform(1.0, SLOW_S_MAX))
                raise StoreUnavailable(NO_RESPONSE)
            request_s += outage_s  # some calls without a response take effect after the outage
        response: asyncio.Future[T] = loop.create_future()
        loop.call_later(
            request_s, _arrive, loop, act, response, response_s, context=loop.no_process
        )
        return await response


def _arrive(
    loop: SimLoop, act: Callable[[], T], response: asyncio.Future[T], response_s: float
) -> None:
    try:
        result = act()
    except Exception as failed:
        loop.call_later(response_s, _respond, response, failed, None, context=loop.no_process)
    else:
        loop.call_later(response_s, _respond, response, None, result, context=loop.no_process)


def _respond(response: asyncio.Future[Any], failed: Exception | None, result: Any) -> None:
    if response.done():
        return  # the caller has stopped waiting
    if failed is not None:
        response.set_exception(failed)
    else:
        response.set_result(result)


def _received(outcome: ClaimOutcome, row: Ownership, fault: str) -> ClaimOutcome:
    return Unknown(row, NO_RESPONSE) if fault == "after" else outcome


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that awaits nothing but `asyncio.sleep(0)`."""
    try:
        while True:
            work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
