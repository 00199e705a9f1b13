"""The leased blobs of the Event Processor Host: reads, leases and writes them.

A body cannot change while the blob's etag stays the same, so it is downloaded only once. Only the
state of the lease is taken from every listing.

    BlobLeaseStore -> LeasedBlobs -> lease_step -> Container
                      ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from pumphouse.leases.model import Checkpoint, Ownership
from pumphouse.leases.stores.blob.container import Container
from pumphouse.leases.stores.blob.responses import BlobResponse
from pumphouse.leases.stores.blob.rows import ListedBlob, encoded
from pumphouse.leases.stores.blob_lease.body import (
    Body,
    encode_body,
    read_body,
    with_checkpoint,
    with_row,
)
from pumphouse.leases.stores.blob_lease.formats import SPELLING_OF, Format, owner_key
from pumphouse.leases.stores.blob_lease.steps import Step, lease_step

NOTHING_TO_DO = BlobResponse("written")
LEASE_ID_HIDDEN = BlobResponse(
    "conflict", why="the lease is held, but the blob does not contain its id"
)


@dataclass(frozen=True, slots=True)
class BlobState:
    """A blob as last read or written."""

    etag: str  # "" if the blob does not exist yet
    body: Body
    leased: bool


class LeasedBlobs:
    def __init__(
        self, container: Container, forced: Format | None, lease_s: int, rng: Random
    ) -> None:
        self._container, self._forced = container, forced
        self.formats: dict[str, Format] = {}  # by folder: what its blobs were found to have
        self.lease_s, self._rng = lease_s, rng
        self._states: dict[str, BlobState] = {}
        self._our_leases: dict[str, str] = {}  # blob -> the id of the lease that we acquired

    # -- reading ----------------------------------------------------------------------------------

    async def state_of_listed(self, partition: str, blob: ListedBlob) -> BlobState:
        """The state of a listed blob; it is downloaded only if its etag has changed."""
        known = self._states.get(blob.name)
        if known is None or known.etag != blob.etag:
            return await self._download(blob.name, partition)
        self._states[blob.name] = replace(known, leased=blob.lease_state == "leased")
        return self._states[blob.name]

    async def state_of(
        self, name: str, partition: str, matches: Callable[[Body], bool]
    ) -> BlobState:
        """The known state if its body matches the caller's row, else the downloaded state."""
        known = self._states.get(name)
        return known if known and matches(known.body) else await self._download(name, partition)

    async def _download(self, name: str, partition: str) -> BlobState:
        if (download := await self._container.get(name)) is None:
            return BlobState("", Body(partition), leased=False)
        blob, text = download
        leased = blob.lease_state == "leased"
        self._states[name] = BlobState(blob.etag, read_body(partition, text, name), leased)
        return self._states[name]

    # -- writing ----------------------------------------------------------------------------------

    async def create(self, name: str, partition: str) -> BlobResponse:
        """Create a blob without an owner."""
        missing = BlobState("", Body(partition), leased=False)
        return await self.write(name, missing, Body(partition))

    async def write_row(
        self, name: str, state: BlobState, requested: Ownership
    ) -> tuple[BlobResponse, Body]:
        """Take the lease, then write the row under it; returns the response and the stored body."""
        if not state.etag:
            response = await self.create(name, requested.partition)
            state = replace(state, etag=response.etag)
            if response.outcome != "written":
                return response, state.body
        step = lease_step(state.body, state.leased, self._our_leases.get(name, ""), requested)
        response, token = await self._take_lease(name, state, step)
        if response.outcome != "written":
            return self._forget(name, response), state.body
        stored_token = "" if step == "release" else token
        body = with_row(state.body, requested, stored_token, self._container.now(), self.new_id())
        leased = step == "acquire" or (state.leased and step != "release")
        response = await self.write(name, replace(state, leased=leased), body, token)
        if step == "release" and response.outcome == "written" and token:
            await self._container.release(name, token)  # if this fails, the lease expires
        return response, body

    async def _take_lease(
        self, name: str, state: BlobState, step: Step
    ) -> tuple[BlobResponse, str]:
        """Take or extend the lease under which a row is written.

        Returns the response and the lease id.
        """
        token = state.body.lease_id if state.leased else ""
        if step == "acquire":
            token = self._our_leases[name] = self.new_id()
            acquired = await self._container.acquire(name, token, self.lease_s, etag=state.etag)
            return acquired, token
        if step == "renew":
            return await self._container.renew(name, token), token
        if step == "change":
            proposed = self._our_leases[name] = self.new_id()
            response = await self._container.change(name, token, proposed, etag=state.etag)
            if response.outcome == "written":
                response = await self._container.renew(name, proposed)
            return response, proposed
        return (LEASE_ID_HIDDEN if step == "stuck" else NOTHING_TO_DO), token

    async def write_checkpoint(
        self, name: str, state: BlobState, requested: Checkpoint
    ) -> tuple[BlobResponse, Body]:
        """Write a checkpoint under the blob's lease, whose id is in the body."""
        body = with_checkpoint(state.body, requested, self.new_id())
        lease_id = state.body.lease_id if state.leased else ""
        if state.leased and not lease_id:
            return LEASE_ID_HIDDEN, state.body
        return await self.write(name, state, body, lease_id), body

    async def write(
        self, name: str, state: BlobState, body: Body, lease_id: str = ""
    ) -> BlobResponse:
        """Write the body if the blob still has this state, under the lease with this id."""
        fmt = self.format_of(name)
        metadata = {owner_key(fmt): encoded(body.owner)} if body.owner else {}
        detected = body.spelling if self._forced is None else None
        text = encode_body(body, detected or SPELLING_OF[fmt])
        if not state.etag:
            response = await self._container.create(name, metadata, text)
        else:
            response = await self._container.put(
                name, metadata, text, etag=state.etag, lease=lease_id
            )
        if response.outcome != "written":
            return self._forget(name, response)
        self._states[name] = BlobState(response.etag, body, state.leased)
        return response

    def format_of(self, name: str) -> Format:
        """The format in which a blob is written."""
        return self._forced or self.formats.get(name.rpartition("/")[0], "net")

    def _forget(self, name: str, response: BlobResponse) -> BlobResponse:
        """Drop a state that is no longer certain: the next call downloads the blob."""
        self._states.pop(name, None)
        return response

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
