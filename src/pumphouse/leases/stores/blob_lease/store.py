"""Rows as the Event Processor Host kept them: one leased blob per partition, checkpoint included.

A host with this store shares the partitions of a group with hosts of the legacy generation that
write the same spelling. The blob's own lease tells who lives; etags guard every write besides.

    processor.cycle -> BlobLeaseStore -> LeasedBlobs -> Container -> Azure
                       ^^^^^^^^^^^^^^ this module

How it differs from the other stores, by nature:

* A row is 0 s old while its lease is held, and infinitely old when it is not.
* Names are filed as the hosts of old filed them: `{prefix}{group}/{partition}`, case and all. A
  prefix with `{namespace}` and `{hub}` keeps hubs apart in one container, and `fold_case` makes
  case count for nothing; hosts of old do neither.
* Renewing and claiming take two requests or three (the lease, then the body) instead of one.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from random import Random, SystemRandom
from typing import Any, Self

from pumphouse.clock import Clock, SystemClock
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
from pumphouse.leases.stores.blob.container import Container, client_maker
from pumphouse.leases.stores.blob.members import MemberBlobs
from pumphouse.leases.stores.blob.names import checked_partition, escaped, given_prefix, unescaped
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

# Azure's own bounds for a lease that ends by itself.
LEASE_S_MIN, LEASE_S_MAX = 15, 60
# An owner that checkpoints changes the blob under a thief; more often than this is bad luck.
ATTEMPTS = 5
# No consumer group can have this sign in its name, so no host of old takes a member for a lease.
MEMBERS = "~members/"
CONTENDED = "the blob was changed again and again while we tried"


class BlobLeaseStore:
    """Leases of `lease_s` seconds in a container, which is made if it is missing.

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
        create_container: bool = True,
        timeout_s: float = 10.0,
        at_once: int = 32,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
            raise OptionError(f"lease_s must be {LEASE_S_MIN} to {LEASE_S_MAX} (got {lease_s})")
        if spelling not in SPELLINGS:
            raise OptionError(f"spelling must be one of {', '.join(SPELLINGS)} (got {spelling!r})")
        self._container = Container(
            client_maker(account_url, connection_string, container, credential),
            create=create_container,
            timeout_s=timeout_s,
            at_once=at_once,
            clock=clock or SystemClock(),
        )
        # Leases last whole seconds; one that ends before its owner stops is the worse mistake.
        whole_s = math.ceil(lease_s)
        self._blobs = LeasedBlobs(self._container, spelling, whole_s, rng or SystemRandom())
        self._members = MemberBlobs(self._container)
        self._prefix, self._fold_case, self._spelling = prefix, fold_case, spelling
        # Our own checkpoints and renewals of one blob wait for each other.
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @classmethod
    def from_connection_string(
        cls, connection_string: str, container: str, **options: Any
    ) -> BlobLeaseStore:
        return cls(None, container, connection_string=connection_string, **options)

    def __repr__(self) -> str:
        return f"<BlobLeaseStore {self._container.place} | {self._spelling}>"

    async def __aenter__(self) -> Self:
        await self._container.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._container.close()

    async def initialise(self, group: Group, partitions: Iterable[str]) -> None:
        """Make the blob of every partition that has none; what is there is left as it is."""
        blobs = [(self._blob(group, partition), partition) for partition in partitions]
        for answer in await asyncio.gather(*(self._blobs.make(*pair) for pair in blobs)):
            if answer.outcome not in ("written", "contested"):
                raise store_error(answer)

    # -- names ------------------------------------------------------------------------------------

    def _base(self, group: Group) -> str:
        given_prefix(group)  # says what is wrong with a name
        prefix = self._prefix.replace("{namespace}", group.namespace).replace("{hub}", group.hub)
        base = f"{prefix}{group.name}"
        return base.lower() if self._fold_case else base

    def _blob(self, group: Group, partition: str) -> str:
        return f"{self._base(group)}/{checked_partition(partition)}"

    # -- reading ----------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        blobs, members = await self._list(group)
        now = self._container.now()
        rows = [ownership_of(seen.body, seen.leased, now) for seen in blobs]
        epochs = {seen.body.partition: seen.body.checkpoint_epoch for seen in blobs}
        return Listing(tuple(row for row in rows if row.etag), tuple(members), epochs)

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        blobs, _ = await self._list(group)
        marks = [checkpoint_of(seen.body, group) for seen in blobs]
        return [mark for mark in marks if mark.etag]

    async def _list(self, group: Group) -> tuple[list[BlobState], list[Member]]:
        """One listing, and one download for each blob that is not as we last saw it."""
        base = self._base(group)
        blobs: dict[str, ListedBlob] = {}
        members: list[Member] = []
        async for found in self._container.list(base):
            rest = found.name.removeprefix(base)
            if rest.startswith(MEMBERS):
                members += self._members.read(unescaped(rest.removeprefix(MEMBERS)), found)
            elif rest.startswith("/") and "/" not in rest[1:]:
                blobs[rest[1:]] = found
        ordered = sorted(blobs.items())
        return list(await asyncio.gather(*(self._blobs.listed(*one) for one in ordered))), members

    # -- ownership --------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        wanted = tuple(claims)
        blobs = [self._blob(group, row.partition) for row in wanted]
        return list(await asyncio.gather(*map(self._claim, blobs, wanted)))

    async def _claim(self, name: str, wanted: Ownership) -> ClaimOutcome:
        try:
            async with self._turns[name]:
                return await self._follow(name, wanted)
        except StoreError as error:  # we could not look at it
            return Unknown(wanted, str(error))

    async def _follow(self, name: str, wanted: Ownership) -> ClaimOutcome:
        for _ in range(ATTEMPTS):
            seen = await self._blobs.at(
                name, wanted.partition, lambda body: body.row_etag == wanted.etag
            )
            if seen.body.row_etag != wanted.etag:
                current = ownership_of(seen.body, seen.leased, self._container.now())
                return Refused(wanted, current if current.etag else None)
            answer, body = await self._blobs.write_row(name, seen, wanted)
            if answer.outcome == "written":
                return Granted(replace(wanted, etag=body.row_etag, age_s=0.0))
            if answer.outcome != "contested":
                return Unknown(wanted, answer.why)
            if answer.code not in STALE_STATE_CODES:
                return Refused(wanted)
        return Unknown(wanted, CONTENDED)

    # -- checkpoints ------------------------------------------------------------------------------

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        name = self._blob(checkpoint.group, checkpoint.partition)
        try:
            async with self._turns[name]:
                return await self._advance(name, checkpoint, rewind)
        except StoreUnavailable as error:
            return Unknown(checkpoint, str(error))

    async def _advance(self, name: str, wanted: Checkpoint, rewind: bool) -> CheckpointOutcome:
        for _ in range(ATTEMPTS):
            seen = await self._blobs.at(
                name, wanted.partition, lambda body: body.checkpoint_etag == wanted.etag
            )
            stored = checkpoint_of(seen.body, wanted.group)
            if stored.etag != wanted.etag:
                return Refused(wanted, stored if stored.etag else None)
            known = stored if stored.etag else None
            if not rewind and (fault := checkpoint_fault(known, wanted)):
                raise CheckpointRefused(fault)
            answer, body = await self._blobs.write_checkpoint(name, seen, wanted)
            if answer.outcome == "written":
                return Granted(replace(wanted, etag=body.checkpoint_etag))
            if answer.outcome == "barred":
                raise store_error(answer)
            if answer.outcome == "unanswered":
                return Unknown(wanted, answer.why)
            if answer.code not in STALE_STATE_CODES:
                return Refused(wanted)
        return Unknown(wanted, CONTENDED)

    # -- members ----------------------------------------------------------------------------------

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._members.beat(self._member(group, name), max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._members.leave(self._member(group, name))

    def _member(self, group: Group, name: str) -> str:
        return f"{self._base(group)}{MEMBERS}{escaped(name)}"
