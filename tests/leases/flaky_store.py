"""A store around a store, with mishaps: answers that get lost, calls that fail, lists that are old.

Every outcome it gives is one that the contract of store.py allows, so whoever stands above must
keep its promises with it too. Tests script the mishaps one by one; a simulation draws them by rate
from a die with a known seed, and sets `plan` to NO_FAULTS when the weather is to clear.

    processor.cycle -> FlakyStore -> FaultPlan -> Fault -> the store within, and what is told of it
                       ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol, Self

from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership, Unknown, aged_listing
from pumphouse.leases.store import CheckpointOutcome, CheckpointStore, ClaimOutcome

Call = Literal["read", "write"]
Fault = Literal[
    "",  # all goes well
    "before",  # a write that never arrives: unknown, and not written
    "after",  # a write whose answer is lost: unknown, and written unless it was refused
    "failed",  # a read, a beat or a farewell that fails
    "stale",  # a read that tells what was told before
]
FITTING: dict[Call, tuple[Fault, ...]] = {
    "read": ("", "failed", "stale"),
    "write": ("", "before", "after"),
}


class FaultPlan(Protocol):
    """Which mishap befalls the next call, and how long it takes."""

    def draw(self, call: Call) -> Fault: ...

    def delay_s(self) -> float: ...


class RandomFaults:
    """Mishaps by chance; each rate is a probability, and each write of a call draws its own."""

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
            raise OptionError("every rate of a mishap lies between 0 and 1")
        if before + after > 1 or failed + stale > 1:
            raise OptionError("the rates of the mishaps of one kind of call exceed 1 together")
        self._rng, self._delay_s_max = rng, delay_s_max
        self._rates: dict[Call, list[tuple[Fault, float]]] = {
            "write": [("before", before), ("after", after)],
            "read": [("failed", failed), ("stale", stale)],
        }

    def draw(self, call: Call) -> Fault:
        thrown = self._rng.random()
        for mishap, rate in self._rates[call]:
            if thrown < rate:
                return mishap
            thrown -= rate
        return ""

    def delay_s(self) -> float:
        return self._rng.uniform(0, self._delay_s_max)


class ScriptedFaults:
    """Exactly these mishaps, one per call that they fit; then all goes well."""

    def __init__(self, mishaps: Iterable[Fault] = ()) -> None:
        self.left = deque(mishaps)

    def draw(self, call: Call) -> Fault:
        if self.left and self.left[0] in FITTING[call]:
            return self.left.popleft()
        return ""

    def delay_s(self) -> float:
        return 0.0


NO_FAULTS: FaultPlan = ScriptedFaults()
WHY = "the store did not answer (a mishap on purpose)"


@dataclass(frozen=True, slots=True)
class Seen:
    """A listing as it was told, and when."""

    listing: Listing
    at: float


class FlakyStore:
    """The store within, with mishaps as `plan` draws them; `injected` counts them by kind.

    Delays pass by `clock`, half of them before a call reaches the store and half after.
    """

    def __init__(
        self, store: CheckpointStore, plan: FaultPlan = NO_FAULTS, clock: Clock | None = None
    ) -> None:
        self.plan = plan
        self.injected: Counter[Fault] = Counter()
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._rows_seen: dict[Group, Seen] = {}
        self._checkpoints_seen: dict[Group, list[Checkpoint]] = {}

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)

    # -- reading ----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        mishap = await self._set_out("read")
        seen = self._rows_seen.get(group)
        if mishap == "stale" and seen is not None:
            self.injected["stale"] += 1
            return aged_listing(seen.listing, self._clock.monotonic() - seen.at)
        listing = await self._store.list_ownership(group)
        self._rows_seen[group] = Seen(listing, self._clock.monotonic())
        await self._wait()
        return listing

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        mishap = await self._set_out("read")
        seen = self._checkpoints_seen.get(group)
        if mishap == "stale" and seen is not None:
            self.injected["stale"] += 1
            return list(seen)
        found = await self._store.list_checkpoints(group)
        self._checkpoints_seen[group] = list(found)
        await self._wait()
        return found

    # -- writing ----------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        await self._wait()
        fates = [(row, self._draw("write")) for row in claims]
        arriving = [row for row, mishap in fates if mishap != "before"]
        answers = iter(await self._store.claim_ownership(group, arriving) if arriving else [])
        outcomes: list[ClaimOutcome] = []
        for row, mishap in fates:
            answer = Unknown(row, WHY) if mishap == "before" else next(answers)
            outcomes.append(Unknown(row, WHY) if mishap == "after" else answer)
        await self._wait()
        return outcomes

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        await self._wait()
        mishap = self._draw("write")
        if mishap == "before":
            return Unknown(checkpoint, WHY)
        outcome = await self._store.update_checkpoint(checkpoint, rewind=rewind)
        await self._wait()
        return Unknown(checkpoint, WHY) if mishap == "after" else outcome

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._set_out("read")
        await self._store.beat(group, name, max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._set_out("read")
        await self._store.leave(group, name)

    # -- mishaps ----------------------------------------------------------------------------------

    async def _set_out(self, call: Call) -> Fault:
        await self._wait()
        mishap = self._draw(call)
        if mishap == "failed":
            raise StoreError(WHY)
        return mishap

    def _draw(self, call: Call) -> Fault:
        mishap = self.plan.draw(call)
        if mishap not in ("", "stale"):  # an old listing is counted where there is one to tell
            self.injected[mishap] += 1
        return mishap

    async def _wait(self) -> None:
        if (delay_s := self.plan.delay_s() / 2) > 0:
            await self._clock.sleep(delay_s)
