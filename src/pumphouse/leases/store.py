"""The protocol that every checkpoint store implements, and its contract in prose.

Stores keep rows and take no decisions. Which row may follow which is defined in model.py, what a
host claims in strategies/.

    processor.cycle -> CheckpointStore -> memory | sqlite | blob | blob lease
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
6. **Rows of official SDKs are readable.** Rows in every known spelling are read without an error,
   and never so that events would be skipped.
7. **Failure to read** raises StoreError, with the reason and without any secret. Every call has a
   deadline. A call may be repeated after any failure.
8. **Groups are separate.** The rows of one (namespace, hub, group) are never visible in another.
   Names are compared case-insensitively, as the official clients store them in lower case.
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

        A checkpoint that goes back, or whose epoch is below the stored one's, raises
        CheckpointRefused where the store can detect it. `rewind` is for administrators, who may
        write it.
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
