"""Rows in Azure Blob Storage, in the format of the current official SDKs.

A host with this store and one with an official SDK share the partitions of a group: each reads what
the other writes. The blobs are empty. All values are in their metadata, etag and Last-Modified
(rows.py), and their names show what they are (names.py).

    processor.cycle -> BlobStore -> Container -> Azure
                       ^^^^^^^^^ this module

One listing returns rows and members together. A claim is one request: Put Blob for the first row of
a partition, later Set Blob Metadata on condition of an etag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Unpack

from pumphouse.errors import StoreError
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
from pumphouse.leases.store import CheckpointOutcome, ClaimOutcome
from pumphouse.leases.stores.blob import names
from pumphouse.leases.stores.blob.checkpoints import CheckpointBlobs
from pumphouse.leases.stores.blob.container import ContainerOptions, ContainerStore
from pumphouse.leases.stores.blob.members import MemberBlobs
from pumphouse.leases.stores.blob.responses import BlobResponse
from pumphouse.leases.stores.blob.rows import ownership_metadata, read_epoch, read_ownership


class BlobStore(ContainerStore):
    """Keeps rows in a container of a storage account.

    `credential` is what the official package takes: an azure-identity credential (async), a key or
    a signature; an `account_url` may contain a signature itself. With `mixed_case` it also lists
    the rows of hosts with an early Go SDK, which kept upper case in blob names. That costs one more
    request per cycle. The other options are those of ContainerOptions.
    """

    def __init__(
        self,
        account_url: str | None,
        container: str,
        credential: Any = None,
        *,
        connection_string: str | None = None,
        mixed_case: bool = False,
        **options: Unpack[ContainerOptions],
    ) -> None:
        super().__init__(account_url, container, credential, connection_string, options)
        self._members = MemberBlobs(self._container)
        self._checkpoints = CheckpointBlobs(self._container)
        self._mixed_case = mixed_case

    def __repr__(self) -> str:
        return f"<BlobStore {self._container.url}>"

    # -- ownership --------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        prefix, rows, members = names.prefix(group), {}, list[Member]()
        epochs: dict[str, int] = {}
        async for blob in self._container.list(prefix):
            kind, name = names.kind_and_name(blob.name, prefix)
            if kind == names.OWNERSHIP:
                rows[name] = read_ownership(name, blob)
            elif kind == names.MEMBER:
                members += self._members.read(names.unescaped(name), blob)
            elif kind in (names.CHECKPOINT, names.STAMP):
                epochs[name] = max(epochs.get(name, 0), read_epoch(blob))
        if self._mixed_case:
            rows = await self._mixed_case_ownership(group) | rows
        ordered = tuple(rows[partition] for partition in sorted(rows))
        return Listing(ordered, tuple(members), epochs)

    async def _mixed_case_ownership(self, group: Group) -> dict[str, Ownership]:
        """Rows of early Go hosts. Claiming one creates a row in lower case, which has priority."""
        prefix, rows = names.case_preserving_prefix(group), {}
        if prefix != names.prefix(group):
            async for blob in self._container.list(f"{prefix}{names.OWNERSHIP}/"):
                _, partition = names.kind_and_name(blob.name, prefix)
                if partition:
                    rows[partition] = replace(read_ownership(partition, blob), etag="")
        return rows

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        requested = tuple(claims)
        blobs = [names.ownership(group, row.partition) for row in requested]
        responses = await asyncio.gather(*map(self._write_row, blobs, requested))
        rejected = [response.why for response in responses if response.outcome == "rejected"]
        if rejected and all(response.outcome != "written" for response in responses):
            raise StoreError(rejected[0])
        return [_claim_outcome(*pair) for pair in zip(requested, responses, strict=True)]

    async def _write_row(self, name: str, row: Ownership) -> BlobResponse:
        metadata = ownership_metadata(row, self._container.now())
        if not row.etag:
            return await self._container.create(name, metadata)
        return await self._container.set_metadata(name, metadata, etag=row.etag)

    # -- checkpoints ------------------------------------------------------------------------------

    async def list_checkpoints(self, group: Group) -> list[Checkpoint]:
        return await self._checkpoints.list(group)

    async def update_checkpoint(
        self, checkpoint: Checkpoint, *, rewind: bool = False
    ) -> CheckpointOutcome:
        return await self._checkpoints.update(checkpoint, rewind)

    # -- members ----------------------------------------------------------------------------------

    async def beat(self, group: Group, name: str, max_partitions: int | None = None) -> None:
        await self._members.beat(names.member(group, name), max_partitions)

    async def leave(self, group: Group, name: str) -> None:
        await self._members.leave(names.member(group, name))


def _claim_outcome(row: Ownership, response: BlobResponse) -> ClaimOutcome:
    if response.outcome == "written":
        return Granted(replace(row, etag=response.etag, age_s=0.0))
    return Refused(row) if response.outcome == "conflict" else Unknown(row, response.why)
