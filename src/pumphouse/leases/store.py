"""The protocol that every checkpoint store implements, and its contract in prose.

Stores keep rows and take no decisions. Which row may follow which is defined in model.py, what a
host claims in strategies/.

    processor.cycle -> CheckpointStore -> memory | sqlite | postgres | blob | blob lease
                       ^^^^^^^^^^^^^^^ this module

The contract, proved for all stores by one test suite (tests/leases/contract):

1. **Compare and set.** A row or checkpoint is written only if the stored one has the given etag; ""
   means that none may be stored. Every granted write changes the etag. Of any number of writers
   with the same etag exactly one is granted.
2. **Three outcomes.** Granted, refused (another write came first), or unknown (no response, or one
   that does not say whether the write took effect). A store never turns unknown into one of the
   others. The outcome of one claim is independent of the others, and outcomes come in the order
   of the claims.
3. **The store's own clock.** `age_s` and `deadline_s` are durations by the clock of the system that
   keeps the rows. In a write `age_s` is ignored, and `deadline_s` counts from the write.
4. **Nothing is forgotten.** A released row keeps its epoch. A row is never deleted.
5. **Copies.** What a store returns is frozen; what it receives is not kept by reference.
6. **Rows of official SDKs are readable.** Rows in every known spelling are read without an error.
   No spelling makes a reader skip events.
7. **Failure to read** raises StoreError, and its subclass StoreUnavailable if a later call may
   succeed (for example after a time-out). The text gives the reason and contains no secret. Every
   call has a deadline. A call may be repeated after any failure.
8. **Groups are separate.** The rows of one (namespace, hub, group) are never visible in another.
   Names are compared case-insensitively, as the official clients store them in lower case.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Ownership,
    Refused,
    Unknown,
)

ClaimOutcome = Granted[Ownership] | Refused[Ownership] | Unknown[Ownership]
CheckpointOutcome = Granted[Checkpoint] | Refused[Checkpoint] | Unknown[Checkpoint]


def granted_rows(outcomes: Iterable[ClaimOutcome]) -> list[Ownership]:
    """The rows that were written."""
    return [outcome.row for outcome in outcomes if isinstance(outcome, Granted)]


class CheckpointStore(Protocol):
    """Keeps ownerships, checkpoints and members. `async with` opens and closes it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def list_ownership(self, group: Group) -> Listing:
        """All rows and members of a group, in one request to the backend."""

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        """Write rows: claims, renewals, releases and hand-overs; concurrently where possible."""

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]: ...

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        """Write one checkpoint over the one with its etag.

        Raises CheckpointRefused, if the store can detect it, for a checkpoint that goes back or has
        a lower epoch than the stored one. `rewind`, for administrators, turns this check off.
        """

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        """Record that this host is alive, and its `max_partitions` if it has a limit."""

    async def leave(self, group: Group, name: str) -> None:
        """Remove a host's member record; not an error if there is none."""


@runtime_checkable
class SupportsInitialise(Protocol):
    """A store that creates an entry for each partition before the first claim."""

    async def initialise(self, group: Group, partitions: Iterable[str]) -> None:
        """Create what is missing; existing entries stay unchanged."""


@dataclass(frozen=True, slots=True)
class Change:
    """A row has changed, so a listing may show something new."""

    partition: str = ""  # "" if several may have changed
    hosts: frozenset[str] | None = None  # the hosts that it concerns; None: all

    def concerns(self, host: str) -> bool:
        return self.hosts is None or host in self.hosts


@runtime_checkable
class SupportsChanges(Protocol):
    """A store that notifies hosts of changed rows, so that they need not wait for a listing.

    A change may be lost: hosts list at their interval as well.
    """

    def changes(self, group: Group) -> AsyncGenerator[Change, None]:
        """Changes of the group's rows, until it is closed.

        The first one concerns all hosts and means that notifications arrive from now on. Raises
        StoreError if they end; the caller may iterate again.
        """


class StoreTransaction(Protocol):
    """A transaction of the database that keeps the rows. What is written in it commits together."""

    @property
    def connection(self) -> Any:
        """The connection of the database's own package, for the rows of the user."""

    async def update_checkpoint(self, checkpoint: Checkpoint) -> CheckpointOutcome:
        """Write a checkpoint as part of the transaction. It takes effect if that commits."""


@runtime_checkable
class SupportsTransactions(Protocol):
    """A store in a database in which the user may keep rows, too."""

    def transaction(self) -> AbstractAsyncContextManager[StoreTransaction]:
        """A transaction that commits at the end of its block, and is rolled back if that raises.

        Raises StoreUnavailable if it is unknown whether it has committed.
        """

    async def settled_checkpoint(self, group: Group, partition: str) -> Checkpoint | None:
        """The stored checkpoint, after every transaction that may still write it has ended."""


@runtime_checkable
class SupportsGroups(Protocol):
    """A store that knows the groups of a hub."""

    async def groups(self, namespace: str, hub: str) -> set[str]:
        """The names of the groups of which there are rows or checkpoints."""
