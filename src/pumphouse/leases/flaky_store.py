"""A store around another store, with injected faults: lost writes, lost responses, stale listings.

Every outcome is one that the contract of store.py allows, so the code that calls it must
keep its invariants with this store too. Tests script the faults one by one, or draw them by rate
from a seeded generator, and set `plan` to NO_FAULTS to end them.

    processor.cycle -> FlakyStore -> FaultPlan -> Fault -> the inner store
                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, Protocol, Self
from warnings import warn

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError, StoreUnavailable
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership, Unknown, aged_listing
from pumphouse.leases.store import CheckpointOutcome, CheckpointStore, ClaimOutcome

Call = Literal["read", "write"]
Fault = Literal[
    "",  # none
    "before",  # a write that never arrives: unknown, and not written
    "after",  # a write whose response is lost: unknown, and written unless it was refused
    "failed",  # a read, a beat or a leave that fails
    "stale",  # a read that returns the previous listing
]
APPLICABLE: dict[Call, tuple[Fault, ...]] = {
    "read": ("", "failed", "stale"),
    "write": ("", "before", "after"),
}


class FaultPlan(Protocol):
    """The fault of the next call, and how long the call takes."""

    def draw(self, call: Call) -> Fault: ...

    def delay_s(self) -> float: ...


class RandomFaults:
    """Random faults. Each rate is a probability, and each write of a call draws its own fault."""

    def __init__(
        self,
        rng: Random,
        *,
        before: float = 0.0,
        after: float = 0.0,
        failed: float = 0.0,
        stale: float = 0.0,
        delay_s_max: float = 0.0,
    ) -> None:
        if not all(0 <= rate <= 1 for rate in (before, after, failed, stale)):
            rates = f"before={before}, after={after}, failed={failed}, stale={stale}"
            raise OptionError(f"every fault rate must be between 0 and 1 (got {rates})")
        if before + after > 1 or failed + stale > 1:
            raise OptionError(
                "the rates before + after, and failed + stale, must each be at most 1 "
                f"(got {before + after:g} and {failed + stale:g})"
            )
        self._rng, self._delay_s_max = rng, delay_s_max
        self._rates: dict[Call, list[tuple[Fault, float]]] = {
            "write": [("before", before), ("after", after)],
            "read": [("failed", failed), ("stale", stale)],
        }

    def draw(self, call: Call) -> Fault:
        drawn = self._rng.random()
        for fault, rate in self._rates[call]:
            if drawn < rate:
                return fault
            drawn -= rate
        return ""

    def delay_s(self) -> float:
        return self._rng.uniform(0, self._delay_s_max)


class ScriptedFaults:
    """Exactly these faults, one per call that they apply to; then none."""

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        self.left = deque(faults)  # the faults that are not drawn yet

    def draw(self, call: Call) -> Fault:
        if self.left and self.left[0] in APPLICABLE[call]:
            return self.left.popleft()
        return ""

    def delay_s(self) -> float:
        return 0.0


NO_FAULTS: FaultPlan = ScriptedFaults()
WHY = "the store did not respond (injected fault)"


@dataclass(frozen=True, slots=True)
class PreviousListing:
    listing: Listing
    at: float


class FlakyStore:
    """The inner store with the faults that `plan` draws; `injected` counts them by kind.

    Delays pass by `clock`, half of them before a call reaches the store and half after. A renewal
    that arrives late postpones the deadline of a waiting successor by its delay: give a MemoryStore
    a `put_off_s_max` of at least half of `delay_s_max`.
    """

    def __init__(
        self, store: CheckpointStore, plan: FaultPlan = NO_FAULTS, clock: Clock | None = None
    ) -> None:
        self.plan = plan
        self.injected: Counter[Fault] = Counter()
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._previous_rows: dict[Group, PreviousListing] = {}
        self._previous_checkpoints: dict[Group, list[Checkpoint]] = {}

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)

    # -- reading ----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        fault = await self._begin("read")
        previous = self._previous_rows.get(group)
        if fault == "stale" and previous is not None:
            self.injected["stale"] += 1
            return aged_listing(previous.listing, self._clock.monotonic() - previous.at)
        listing = await self._store.list_ownership(group)
        self._previous_rows[group] = PreviousListing(listing, self._clock.monotonic())
        await self._wait()
        return listing

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        fault = await self._begin("read")
        previous = self._previous_checkpoints.get(group)
        if fault == "stale" and previous is not None:
            self.injected["stale"] += 1
            return list(previous)
        checkpoints = await self._store.list_checkpoints(group)
        self._previous_checkpoints[group] = list(checkpoints)
        await self._wait()
        return checkpoints

    # -- writing ----------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        await self._wait()
        drawn = [(row, self._draw("write")) for row in claims]
        arriving = [row for row, fault in drawn if fault != "before"]
        responses = iter(await self._store.claim_ownership(group, arriving) if arriving else [])
        outcomes: list[ClaimOutcome] = []
        for row, fault in drawn:
            response = Unknown(row, WHY) if fault == "before" else next(responses)
            outcomes.append(Unknown(row, WHY) if fault == "after" else response)
        await self._wait()
        return outcomes

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        await self._wait()
        fault = self._draw("write")
        if fault == "before":
            return Unknown(checkpoint, WHY)
        outcome = await self._store.update_checkpoint(checkpoint, rewind=rewind)
        await self._wait()
        return Unknown(checkpoint, WHY) if fault == "after" else outcome

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._begin("read")
        await self._store.beat(group, name, max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._begin("read")
        await self._store.leave(group, name)

    # -- faults -----------------------------------------------------------------------------------

    async def _begin(self, call: Call) -> Fault:
        await self._wait()
        fault = self._draw(call)
        if fault == "failed":
            raise StoreUnavailable(WHY)
        return fault

    def _draw(self, call: Call) -> Fault:
        fault = self.plan.draw(call)
        if fault not in ("", "stale"):  # a stale listing is counted only if there is a previous one
            self.injected[fault] += 1
        return fault

    async def _wait(self) -> None:
        if (delay_s := self.plan.delay_s() / 2) > 0:
            await self._clock.sleep(delay_s)


_RENAMED = {
    "CALM": "NO_FAULTS",
    "Mishap": "Fault",
    "Plan": "FaultPlan",
    "Rates": "RandomFaults",
    "Script": "ScriptedFaults",
}


def __getattr__(name: str) -> Any:
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    new = _RENAMED[name]
    warn(f"{__name__}.{name} is now {new}", DeprecationWarning, stacklevel=2)
    return globals()[new]
