"""A checkpoint store whose requests are measured.

engine -> MeteredStore -> the store of the user
          ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Self, TypeVar

from pumphouse.clock import Clock
from pumphouse.leases.model import Checkpoint, Group, Listing, Ownership, Unknown
from pumphouse.leases.store import (
    CheckpointOutcome,
    CheckpointStore,
    ClaimOutcome,
    SupportsInitialise,
)

T = TypeVar("T")
OK, UNKNOWN, CANCELLED = "ok", "unknown", "cancelled"
Record = Callable[[str, str, float], None]  # operation, outcome, seconds


class MeteredStore:
    """Passes every call on and measures it. A host that stops waiting cancels its request."""

    def __init__(self, store: CheckpointStore, clock: Clock, record: Record) -> None:
        self._store, self._clock, self._record = store, clock, record

    def __repr__(self) -> str:
        return repr(self._store)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)  # what a store has beyond the protocol

    async def __aenter__(self) -> Self:
        await self._store.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._store.__aexit__(*exc)

    async def list_ownership(self, group: Group) -> Listing:
        return await self._measured("list_ownership", self._store.list_ownership(group))

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        return await self._measured("claim_ownership", self._store.claim_ownership(group, claims))

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        return await self._measured("list_checkpoints", self._store.list_checkpoints(group))

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        updating = self._store.update_checkpoint(checkpoint, rewind=rewind)
        return await self._measured("update_checkpoint", updating)

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._measured("beat", self._store.beat(group, name, max_partitions))

    async def leave(self, group: Group, name: str) -> None:
        await self._measured("leave", self._store.leave(group, name))

    async def _measured(self, operation: str, request: Awaitable[T]) -> T:
        began_s, outcome = self._clock.monotonic(), OK
        try:
            response = await request
            outcome = outcome_of(response)
            return response
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        except Exception as error:
            outcome = type(error).__name__
            raise
        finally:
            self._record(operation, outcome, self._clock.monotonic() - began_s)


class MeteredInitialisingStore(MeteredStore):
    """The same for a store that creates an entry for each partition."""

    async def initialise(self, group: Group, partitions: Iterable[str]) -> None:
        assert isinstance(self._store, SupportsInitialise)
        await self._measured("initialise", self._store.initialise(group, partitions))


def metered_store(store: CheckpointStore, clock: Clock, record: Record) -> MeteredStore:
    kind = MeteredInitialisingStore if isinstance(store, SupportsInitialise) else MeteredStore
    return kind(store, clock, record)


def outcome_of(response: object) -> str:
    """`unknown` if the store does not know whether one of the writes took effect."""
    outcomes = response if isinstance(response, list) else [response]
    return UNKNOWN if any(isinstance(outcome, Unknown) for outcome in outcomes) else OK
