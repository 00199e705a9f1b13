"""Rows in Azure Blob Storage, in the format of the current official SDKs.

A host with this store and one with an official SDK share the partitions of a group: each reads
what the other writes. The blobs are empty; everything is in metadata, etag and Last-Modified
(blob_rows.py), under names that say what it is (blob_names.py).

    processor.cycle -> BlobStore -> Container -> Azure
                       ^^^^^^^^^ this module

One listing finds rows and members together. A claim is one request: Put Blob for the first row of a
partition, Set Blob Metadata over an etag afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

from pumphouse.clock import Clock, SystemClock
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
from pumphouse.leases.stores.blob.container import Container, client_maker
from pumphouse.leases.stores.blob.members import MemberBlobs
from pumphouse.leases.stores.blob.responses import BlobResponse
from pumphouse.leases.stores.blob.rows import ownership_metadata, read_epoch, read_ownership


class BlobStore:
    """Keeps rows in a container of a storage account.

    `credential` is what the official package takes: an azure-identity credential (async), a key or
    a signature; an `account_url` may carry a signature itself. `at_once` bounds the requests
    under way, `timeout_s` is the deadline of each. With `mixed_case` the ownerships of early Go
    hosts are listed too, which costs one request more per cycle.
    """

    def __init__(
        self,
        account_url: str | None,
        container: str,
        credential: Any = None,
        *,
        connection_string: str | None = None,
        create_container: bool = False,
        timeout_s: float = 10.0,
        at_once: int = 32,
        mixed_case: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._container = Container(
            client_maker(account_url, connection_string, container, credential),
            create=create_container,
            timeout_s=timeout_s,
            at_once=at_once,
            clock=clock or SystemClock(),
        )
        self._members = MemberBlobs(self._container)
        self._checkpoints = CheckpointBlobs(self._container)
        self._mixed_case = mixed_case

    @classmethod
    def from_connection_string(
        cls, connection_string: str, container: str, **options: Any
    ) -> BlobStore:
        return cls(None, container, connection_string=connection_string, **options)

    def __repr__(self) -> str:
        return f"<BlobStore {self._container.place}>"

    async def __aenter__(self) -> Self:
        await self._container.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._container.close()

    # -- ownership --------------------------------------------------------------------------------

    async def list_ownership(self, group: Group) -> Listing:
        under, rows, members = names.prefix(group), {}, list[Member]()
        epochs: dict[str, int] = {}
        async for found in self._container.list(under):
            kind, rest = names.kind_and_id(found.name, under)
            if kind == names.OWNERSHIP:
                rows[rest] = read_ownership(rest, found)
            elif kind == names.MEMBER:
                members += self._members.read(names.unescaped(rest), found)
            elif kind in (names.CHECKPOINT, names.STAMP):
                epochs[rest] = max(epochs.get(rest, 0), read_epoch(found))
        if self._mixed_case:
            rows = await self._mixed_case_ownership(group) | rows
        ordered = tuple(rows[partition] for partition in sorted(rows))
        return Listing(ordered, tuple(members), epochs)

    async def _mixed_case_ownership(self, group: Group) -> dict[str, Ownership]:
        """Rows that no SDK writes any more. Whoever claims one makes the row that counts."""
        under, rows = names.given_prefix(group), {}
        if under != names.prefix(group):
            async for found in self._container.list(f"{under}{names.OWNERSHIP}/"):
                _, rest = names.kind_and_id(found.name, under)
                if rest:
                    rows[rest] = replace(read_ownership(rest, found), etag="")
        return rows

    async def claim_ownership(
        self, group: Group, claims: Sequence[Ownership]
    ) -> list[ClaimOutcome]:
        wanted = tuple(claims)
        blobs = [names.ownership(group, row.partition) for row in wanted]
        answers = await asyncio.gather(*map(self._write_row, blobs, wanted))
        barred = [answer.why for answer in answers if answer.outcome == "barred"]
        if barred and all(answer.outcome != "written" for answer in answers):
            raise StoreError(barred[0])
        return [_claim_outcome(*pair) for pair in zip(wanted, answers, strict=True)]

    async def _write_row(self, name: str, row: Ownership) -> BlobResponse:
        said = ownership_metadata(row, self._container.now())
        if not row.etag:
            return await self._container.create(name, said)
        return await self._container.set_metadata(name, said, etag=row.etag)

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


def _claim_outcome(row: Ownership, answer: BlobResponse) -> ClaimOutcome:
    if answer.outcome == "written":
        return Granted(replace(row, etag=answer.etag, age_s=0.0))
    return Refused(row) if answer.outcome == "contested" else Unknown(row, answer.why)
