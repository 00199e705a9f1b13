"""The protocol that every checkpoint store follows, and its contract in prose.

Stores keep rows; they decide nothing. Which row may follow which is said in model.py, who claims
what in strategies.py.

    processor.cycle -> CheckpointStore -> memory | sqlite | blob | blob lease
                       ^^^^^^^^^^^^^^^ this module

The contract, held by one suite for all stores (tests/leases/contract):

1. **Compare and set.** A row or checkpoint is written only if the stored one has the etag that is
   given; "" means that there must be none. Every write that is granted changes the etag. Of any
   number of writers with the same etag exactly one is granted.
2. **Three outcomes.** Granted, refused (somebody else wrote first), or unknown (no answer came, or
   none that says whether it was written). A store never turns unknown into one of the others. One
   claim's outcome says nothing of another's, and the outcomes come in the order of the claims.
3. **The store's own clock.** `age_s` and `deadline_s` are durations by the clock of whatever keeps
   the rows. In a write `age_s` is ignored, and `deadline_s` counts from the moment of the write.
4. **Nothing is forgotten.** A released row keeps its epoch. A row is never deleted.
5. **Copies.** What a store hands out is frozen; what it was handed is not kept by reference.
6. **Others' rows are read with mercy.** Rows that an official SDK wrote, in every spelling known,
   are read without an error and never so that events would be skipped.
7. **Failure to read** raises StoreError, with the reason and without any secret. Every call has a
   deadline. A call may be repeated after any failure.
8. **Groups are apart.** What belongs to one (namespace, hub, group) is never seen from another.
   Names are compared without regard to case, as the official clients file them in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, Self, runtime_checkable

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


class CheckpointStore(Protocol):
    """Keeps ownerships, checkpoints and members. `async with` opens and closes what it needs."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def list_ownership(self, group: Group) -> Listing:
        """All rows and members of a group, in one call to whatever keeps them."""

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        """Write rows: claims, renewals, releases and hand-offs alike; at once where possible."""

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]: ...

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        """Write one checkpoint over the one with its etag.

        One that goes back, or whose epoch is below the stored one's, raises CheckpointRefused
        where the store can see it, unless `rewind` says that an administrator wants it so.
        """

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        """Say that this host takes part and lives, and the most it will own if it has a bound."""

    async def leave(self, group: Group, name: str) -> None:
        """Remove a host's member record; not an error if there is none."""


@runtime_checkable
class SupportsInitialise(Protocol):
    """A store that wants to know the partitions first, to make a place for each."""

    async def initialise(self, group: Group, partitions: Iterable[str]) -> None:
        """Make what is missing; what is there is left as it is."""
