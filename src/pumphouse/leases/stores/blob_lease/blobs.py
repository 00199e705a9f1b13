"""The leased blobs of the Event Processor Host: seen, taken and written.

A body stays as it is while the blob's etag does, so what was read once is not read again; only the
state of the lease is new in every listing.

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
    Spelling,
    read_body,
    with_checkpoint,
    with_row,
    written,
)
from pumphouse.leases.stores.blob_lease.steps import Step, lease_step

DONE = BlobResponse("written")
STUCK = BlobResponse("contested", why="the lease is held by somebody who does not show its id")


@dataclass(frozen=True, slots=True)
class BlobState:
    """A blob as it was last read or written."""

    etag: str  # "" if there is no blob yet
    body: Body
    leased: bool


class LeasedBlobs:
    def __init__(self, container: Container, spelling: Spelling, lease_s: int, rng: Random) -> None:
        self._container, self._spelling = container, spelling
        self._lease_s, self._rng = lease_s, rng
        self._seen: dict[str, BlobState] = {}
        self._ours: dict[str, str] = {}  # blob -> the id of the lease that we have made

    # -- reading ----------------------------------------------------------------------------------

    async def listed(self, partition: str, found: ListedBlob) -> BlobState:
        """A blob that was just listed; downloaded only if it is not as we last saw it."""
        known = self._seen.get(found.name)
        if known is None or known.etag != found.etag:
            return await self._look(found.name, partition)
        self._seen[found.name] = replace(known, leased=found.lease_state == "leased")
        return self._seen[found.name]

    async def at(self, name: str, partition: str, fits: Callable[[Body], bool]) -> BlobState:
        """The blob as we last saw it, if that fits what the caller knows; else as it is now."""
        known = self._seen.get(name)
        return known if known and fits(known.body) else await self._look(name, partition)

    async def _look(self, name: str, partition: str) -> BlobState:
        if (got := await self._container.get(name)) is None:
            return BlobState("", Body(partition), leased=False)
        found, text = got
        leased = found.lease_state == "leased"
        self._seen[name] = BlobState(found.etag, read_body(partition, text), leased)
        return self._seen[name]

    # -- writing ----------------------------------------------------------------------------------

    async def make(self, name: str, partition: str) -> BlobResponse:
        """A blob that nobody has owned yet."""
        return await self.write(name, BlobState("", Body(partition), leased=False), Body(partition))

    async def write_row(
        self, name: str, seen: BlobState, wanted: Ownership
    ) -> tuple[BlobResponse, Body]:
        """The lease first, then the row under it; the body is as it was written."""
        if not seen.etag:
            answer = await self.make(name, wanted.partition)
            seen = replace(seen, etag=answer.etag)
            if answer.outcome != "written":
                return answer, seen.body
        step = lease_step(seen.body, seen.leased, self._ours.get(name, ""), wanted)
        answer, token = await self._take(name, seen, step)
        if answer.outcome != "written":
            return self._forgotten(name, answer), seen.body
        shown = "" if step == "release" else token
        body = with_row(seen.body, wanted, shown, self._container.now(), self.new_id())
        leased = step == "acquire" or (seen.leased and step != "release")
        answer = await self.write(name, replace(seen, leased=leased), body, token)
        if step == "release" and answer.outcome == "written" and token:
            await self._container.release(name, token)  # else it runs out by itself
        return answer, body

    async def _take(self, name: str, seen: BlobState, step: Step) -> tuple[BlobResponse, str]:
        """The lease that a row is written under, if any; each step also makes it last anew."""
        token = seen.body.token if seen.leased else ""
        if step == "acquire":
            token = self._ours[name] = self.new_id()
            return await self._container.acquire(name, token, self._lease_s, etag=seen.etag), token
        if step == "renew":
            return await self._container.renew(name, token), token
        if step == "change":
            fresh = self._ours[name] = self.new_id()
            answer = await self._container.change(name, token, fresh, etag=seen.etag)
            if answer.outcome == "written":
                answer = await self._container.renew(name, fresh)
            return answer, fresh
        return (STUCK if step == "stuck" else DONE), token

    async def write_checkpoint(
        self, name: str, seen: BlobState, wanted: Checkpoint
    ) -> tuple[BlobResponse, Body]:
        """Under the lease, if there is one; its id stands in the body."""
        body = with_checkpoint(seen.body, wanted, self.new_id())
        lease = seen.body.token if seen.leased else ""
        if seen.leased and not lease:
            return STUCK, seen.body
        return await self.write(name, seen, body, lease), body

    async def write(self, name: str, seen: BlobState, body: Body, lease: str = "") -> BlobResponse:
        """The body over the blob that was seen; `lease` is the id of the lease it is under."""
        metadata = {"OWNINGHOST": encoded(body.owner)} if body.owner else {}
        text = written(body, self._spelling)
        if not seen.etag:
            answer = await self._container.create(name, metadata, text)
        else:
            answer = await self._container.put(name, metadata, text, etag=seen.etag, lease=lease)
        if answer.outcome != "written":
            return self._forgotten(name, answer)
        self._seen[name] = BlobState(answer.etag, body, seen.leased)
        return answer

    def _forgotten(self, name: str, answer: BlobResponse) -> BlobResponse:
        """It is not as we thought: the next call looks again."""
        self._seen.pop(name, None)
        return answer

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._rng.getrandbits(128), version=4))
