"""Rows in the format of the Event Processor Host: one leased blob per partition, with checkpoint.

A host with this store shares the partitions of a group with legacy hosts that write the same
spelling. The blob's own lease shows which owners are alive; etags guard every write as well.

    processor.cycle -> BlobLeaseStore -> LeasedBlobs -> Container -> Azure
                       ^^^^^^^^^^^^^^ this module

Differences from the other stores:

* A row is 0 s old while its lease is held, and infinitely old when it is not.
* Blobs have the names that legacy hosts use: `{prefix}{group}/{partition}`, case-sensitive. A
  prefix with `{namespace}` and `{hub}` separates the hubs of one container, and `fold_case` makes
  names case-insensitive; legacy hosts do neither.
* A renewal or claim takes two or three requests (the lease, then the body) instead of one.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random, SystemRandom
from typing import Any, Unpack

from pumphouse.errors import CheckpointRefused, OptionError, StoreError, StoreUnavailable
from pumphouse.leases.model import (
    Checkpoint,
    Granted,
    Group,
    Listing,
    Member,
    Ownership,
    Refused,
    Unknown,
)
from pumphouse.leases.rules import checkpoint_fault
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.blob.container import ContainerOptions, ContainerStore
from pumphouse.leases.stores.blob.members import MemberBlobs
from pumphouse.leases.stores.blob.names import (
    case_preserving_prefix,
    checked_partition,
    escaped,
    unescaped,
)
from pumphouse.leases.stores.blob.responses import store_error
from pumphouse.leases.stores.blob.rows import ListedBlob
from pumphouse.leases.stores.blob_lease.blobs import BlobState, LeasedBlobs
from pumphouse.leases.stores.blob_lease.body import (
    SPELLINGS,
    Spelling,
    checkpoint_of,
    ownership_of,
)
from pumphouse.leases.stores.blob_lease.steps import STALE_STATE_CODES

# Azure's own bounds of a lease that expires.
LEASE_S_MIN, LEASE_S_MAX = 15, 60
# An owner that checkpoints during a steal changes the blob. After this many attempts we give up.
ATTEMPTS = 5
# A consumer group cannot contain "~", so no legacy host mistakes a member record for a lease.
MEMBERS = "~members/"
CONTENDED = f"the blob was changed by other hosts during each of {ATTEMPTS} attempts"


class BlobLeaseStore(ContainerStore):
    """Leases of `lease_s` seconds in a container, which is created if it is missing.

    `spelling` is how bodies are written: "net", "java" (JavaScript too) or "python". The other
    options are those of BlobStore.
    """

    def __init__(
        self,
        account_url: str | None,
        container: str,
        credential: Any = None,
        *,
        connection_string: str | None = None,
        prefix: str = "",
        spelling: Spelling = "net",
        lease_s: float = 30,
        fold_case: bool = False,
        rng: Random | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise OptionError(f"lease_s must be {LEASE_S_MIN} to {LEASE_S_MAX} (got {lease_s})")
        if spelling not in SPELLINGS:
            raise OptionError(f"spelling must be one of {', '.join(SPELLINGS)} (got {spelling!r})")
        options.setdefault("create_container", True)
        super().__init__(account_url, container, credential, connection_string, options)
        # Azure leases last whole seconds. Rounded up: a lease must not end before its owner stops.
        whole_s = math.ceil(lease_s)
        self._blobs = LeasedBlobs(self._container, spelling, whole_s, rng or SystemRandom())
        self._members = MemberBlobs(self._container)
        self._prefix, self._fold_case, self._spelling = prefix, fold_case, spelling
        # Our own checkpoints and renewals of one blob run one after another.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def __repr__(self) -> str:
        return f"<BlobLeaseStore {self._container.url} | {self._spelling}>"

    async def initialise(self, group: Group, partitions: Iterable[str]) -> None:
        """Create the missing blobs of these partitions; existing ones stay unchanged."""
        blobs = [(self._blob(group, partition), partition) for partition in partitions]
        for response in await asyncio.gather(*(self._blobs.create(*pair) for pair in blobs)):
            if response.outcome not in ("written", "conflict"):
                raise store_error(response)

    # -- names ------------------------------------------------------------------------------------

    def _base(self, group: Group) -> str:
        case_preserving_prefix(group)  # validates the names
        prefix = self._prefix.replace("{namespace}", group.namespace).replace("{hub}", group.hub)
        base = f"{prefix}{group.name}"
        return base.lower() if self._fold_case else base

    def _blob(self, group: Group, partition: str) -> str:
        return f"{self._base(group)}/{checked_partition(partition)}"

    # -- reading ----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        states, members = await self._list(group)
        now = self._container.now()
        rows = [ownership_of(state.body, state.leased, now) for state in states]
        epochs = {state.body.partition: state.body.checkpoint_epoch for state in states}
        return Listing(tuple(row for row in rows if row.etag), tuple(members), epochs)

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        states, _ = await self._list(group)
        checkpoints = [checkpoint_of(state.body, group) for state in states]
        return [checkpoint for checkpoint in checkpoints if checkpoint.etag]

    async def _list(self, group: Group) -> tuple[list[BlobState], list[Member]]:
        """One listing, and one download for each blob that has changed since."""
        base = self._base(group)
        blobs: dict[str, ListedBlob] = {}
        members: list[Member] = []
        async for blob in self._container.list(base):
            name = blob.name.removeprefix(base)
            if name.startswith(MEMBERS):
                members += self._members.read(unescaped(name.removeprefix(MEMBERS)), blob)
            elif name.startswith("/") and "/" not in name[1:]:
                blobs[name[1:]] = blob
        downloads = (self._blobs.state_of_listed(*item) for item in sorted(blobs.items()))
        return list(await asyncio.gather(*downloads)), members

    # -- ownership --------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        requested = tuple(claims)
        blobs = [self._blob(group, row.partition) for row in requested]
        return list(await asyncio.gather(*map(self._claim, blobs, requested)))

    async def _claim(self, name: str, requested: Ownership) -> ClaimOutcome:
        try:
            async with self._locks[name]:
                return await self._write_row(name, requested)
        except StoreError as error:  # the blob could not be read
            return Unknown(requested, str(error))

    async def _write_row(self, name: str, requested: Ownership) -> ClaimOutcome:
        for _ in range(ATTEMPTS):
            state = await self._blobs.state_of(
                name, requested.partition, lambda body: body.row_etag == requested.etag
            )
            if state.body.row_etag != requested.etag:
                current = ownership_of(state.body, state.leased, self._container.now())
                return Refused(requested, current if current.etag else None)
            response, body = await self._blobs.write_row(name, state, requested)
            if response.outcome == "written":
                return Granted(replace(requested, etag=body.row_etag, age_s=0.0))
            if response.outcome != "conflict":
                return Unknown(requested, response.why)
            if response.code not in STALE_STATE_CODES:
                return Refused(requested)
        return Unknown(requested, CONTENDED)

    # -- checkpoints ------------------------------------------------------------------------------

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        name = self._blob(checkpoint.group, checkpoint.partition)
        try:
            async with self._locks[name]:
                return await self._write_checkpoint(name, checkpoint, rewind)
        except StoreUnavailable as error:
            return Unknown(checkpoint, str(error))

    async def _write_checkpoint(
        self, name: str, requested: Checkpoint, rewind: bool
    ) -> CheckpointOutcome:
        for _ in range(ATTEMPTS):
            state = await self._blobs.state_of(
                name, requested.partition, lambda body: body.checkpoint_etag == requested.etag
            )
            stored = checkpoint_of(state.body, requested.group)
            if stored.etag != requested.etag:
                return Refused(requested, stored if stored.etag else None)
            known = stored if stored.etag else None
            if not rewind and (fault := checkpoint_fault(known, requested)):
                raise CheckpointRefused(fault)
            response, body = await self._blobs.write_checkpoint(name, state, requested)
            if response.outcome == "written":
                return Granted(replace(requested, etag=body.checkpoint_etag))
            if response.outcome == "rejected":
                raise store_error(response)
            if response.outcome == "unknown":
                return Unknown(requested, response.why)
            if response.code not in STALE_STATE_CODES:
                return Refused(requested)
        return Unknown(requested, CONTENDED)

    # -- members ----------------------------------------------------------------------------------

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._members.beat(self._member(group, name), max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._members.leave(self._member(group, name))

    def _member(self, group: Group, name: str) -> str:
        return f"{self._base(group)}{MEMBERS}{escaped(name)}"
