"""Rows in the format of the Event Processor Host: one leased blob per partition, with checkpoint.

A host with this store shares the partitions of a group with legacy hosts, in their format. The
blob's own lease shows which owners are alive; etags guard every write as well.

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
from pumphouse.leases.stores.blob_lease.formats import (
    FORMATS,
    SPELLING_OF,
    Format,
    detected_format,
    folders_of,
    group_folder,
    has_members,
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

    `format` is the format of the blobs: "net", "java", "javascript" or "python". Without it the
    format that the container has is used, "net" if it is empty. `spelling`, of an earlier version,
    forces the keys of bodies. The other options are those of BlobStore.
    """

    def __init__(
        self,
        account_url: str | None,
        container: str,
        credential: Any = None,
        *,
        connection_string: str | None = None,
        prefix: str = "",
        format: Format | None = None,
        spelling: Spelling | None = None,
        lease_s: float = 30,
        fold_case: bool = False,
        rng: Random | None = None,
        **options: Unpack[ContainerOptions],
    ) -> None:
        whole_s = whole_lease_s(lease_s)
        self._forced = forced_format(format, spelling)
        options.setdefault("create_container", True)
        super().__init__(account_url, container, credential, connection_string, options)
        self._blobs = LeasedBlobs(self._container, self._forced, whole_s, rng or SystemRandom())
        self._members = MemberBlobs(self._container)
        self._prefix, self._fold_case = prefix, fold_case
        self._formats: dict[Group, Format | None] = {}  # as found; None: there are no blobs yet
        # Our own checkpoints and renewals of one blob run one after another.
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def __repr__(self) -> str:
        return f"<BlobLeaseStore {self._container.url} | {self._forced or 'any format'}>"

    @property
    def lease_s(self) -> float:
        """How long a lease lasts that is acquired from now on."""
        return self._blobs.lease_s

    @lease_s.setter
    def lease_s(self, lease_s: float) -> None:
        self.set_lease_s(lease_s)

    def set_lease_s(self, lease_s: float, name: str = "lease_s") -> None:
        """Set the duration of later leases; an OptionError names the option `name`."""
        self._blobs.lease_s = whole_lease_s(lease_s, name)

    async def initialise(self, group: Group, partitions: Iterable[str]) -> None:
        """Create the missing blobs of these partitions; existing ones stay unchanged."""
        await self._learn(group)
        blobs = [(self._blob(group, partition), partition) for partition in partitions]
        for response in await asyncio.gather(*(self._blobs.create(*pair) for pair in blobs)):
            if response.outcome not in ("written", "conflict"):
                raise store_error(response)

    # -- names ------------------------------------------------------------------------------------

    def _base(self, group: Group) -> str:
        case_preserving_prefix(group)  # validates the names
        prefix = self._prefix.replace("{namespace}", group.namespace).replace("{hub}", group.hub)
        if self._fold_case:
            return f"{prefix}{group.name}".lower()
        return f"{prefix}{group_folder(group.name, self._format(group))}"

    def _format(self, group: Group) -> Format:
        return self._forced or self._formats.get(group) or "net"

    async def find_format(self, group: Group) -> Format | None:
        """The format of the blobs of a group; None if there are none. StoreError if it has two."""
        await self._list(group)
        return self._forced or self._formats.get(group)

    async def _learn(self, group: Group) -> None:
        """Find out in which format the group is kept, before the first write."""
        if self._forced is None and not self._fold_case and group not in self._formats:
            await self._list(group)

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
        """One listing, and a download of each blob that has changed since the last listing."""
        bases = self._bases(group)
        blobs: dict[str, dict[str, ListedBlob]] = {base: {} for base in bases}
        members: list[Member] = []
        async for blob in self._container.list(common_start(bases)):
            base = next((base for base in bases if blob.name.startswith(base)), None)
            name = "" if base is None else blob.name.removeprefix(base)
            if name.startswith(MEMBERS):
                members += self._members.read(unescaped(name.removeprefix(MEMBERS)), blob)
            elif base is not None and name.startswith("/") and "/" not in name[1:]:
                blobs[base][name[1:]] = blob
        leases = {name: blob for of_base in blobs.values() for name, blob in of_base.items()}
        downloads = (self._blobs.state_of_listed(*item) for item in sorted(leases.items()))
        states = list(await asyncio.gather(*downloads))
        self._note_format(group, blobs, states)
        return states, members

    def _bases(self, group: Group) -> list[str]:
        """The names under which the group may be kept."""
        if self._forced is not None or self._fold_case:
            return [self._base(group)]
        prefix = self._base(group).removesuffix(group_folder(group.name, self._format(group)))
        return [f"{prefix}{folder}" for folder in folders_of(group.name)]

    def _note_format(
        self, group: Group, blobs: dict[str, dict[str, ListedBlob]], states: list[BlobState]
    ) -> None:
        """Remember the format of the listed blobs. StoreError if they have two."""
        if self._forced is not None:
            return
        used = [base for base, of_base in blobs.items() if of_base]
        listed = [blob for of_base in blobs.values() for blob in of_base.values()]
        folders = [base if self._fold_case else folder for base, folder in
                   zip(blobs, folders_of(group.name), strict=False) if base in used]  # fmt: skip
        fmt = detected_format(
            folders,
            [state.body.spelling for state in states],
            [key for blob in listed for key in blob.metadata],
            f"{self._container.url}, consumer group {group.name},",
        )
        self._formats[group] = fmt
        if fmt is not None:
            self._blobs.formats[self._base(group)] = fmt

    # -- ownership --------------------------------------------------------------------------------

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        requested = tuple(claims)
        try:
            await self._learn(group)
        except StoreError as error:
            return [Unknown(row, str(error)) for row in requested]
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
        try:
            await self._learn(checkpoint.group)
            name = self._blob(checkpoint.group, checkpoint.partition)
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
        await self._learn(group)
        if has_members(self._format(group)):
            await self._members.beat(self._member(group, name), max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._learn(group)
        if has_members(self._format(group)):
            await self._members.leave(self._member(group, name))

    def _member(self, group: Group, name: str) -> str:
        return f"{self._base(group)}{MEMBERS}{escaped(name)}"


def common_start(names: Sequence[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)
    return first[: next((i for i, c in enumerate(first) if last[i] != c), len(first))]


def forced_format(fmt: Format | None, spelling: Spelling | None) -> Format | None:
    """The format that the caller forces; OptionError if it is not one."""
    if fmt is not None and fmt not in FORMATS:
        raise OptionError(f"format must be one of {', '.join(FORMATS)} (got {fmt!r})")
    if spelling is not None and spelling not in SPELLINGS:
        raise OptionError(f"spelling must be one of {', '.join(SPELLINGS)} (got {spelling!r})")
    if fmt is not None and spelling is not None and SPELLING_OF[fmt] != spelling:
        raise OptionError(f"format={fmt} and spelling={spelling} contradict each other: give one")
    return fmt or spelling


def whole_lease_s(lease_s: float, name: str = "lease_s") -> int:
    """Azure leases last whole seconds. Rounded up: a lease must not end before its owner stops."""
    if not LEASE_S_MIN <= lease_s <= LEASE_S_MAX:
        raise OptionError(f"{name} must be {LEASE_S_MIN} to {LEASE_S_MAX} (got {lease_s})")
    return math.ceil(lease_s)
