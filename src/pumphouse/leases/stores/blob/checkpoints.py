"""Checkpoints as blobs in the format of the official SDKs, and stamps.

A stamp is a blob with an epoch and no position. It fences off earlier owners before the first event
is handled. The SDKs do not read it.

A checkpoint blob always has a position: the official Python SDK reads an empty offset as the text
"None" and requests it from the hub, and a missing offset ends its load-balancing cycle. So the
stamp is a separate blob.

    BlobStore -> CheckpointBlobs -> Container
                 ^^^^^^^^^^^^^^^ this module

The stamp is valid until the checkpoint exists, and is ignored from then on. The writes:

    no blob -> stamp (Put Blob if absent; then check that there is still no checkpoint)
    stamp   -> stamp (Set Metadata if its etag matches; then the same check)
    stamp   -> checkpoint (Set Metadata of the stamp: a conflict means that we are fenced off;
               then Put Blob if absent: a conflict means that an SDK has written a checkpoint)
    checkpoint -> checkpoint (Set Metadata if its etag matches: a single request)
"""

from __future__ import annotations

from dataclasses import replace

from pumphouse.errors import CheckpointRefused
from pumphouse.leases.model import Checkpoint, Granted, Group, Refused, Unknown
from pumphouse.leases.rules import checkpoint_fault
from pumphouse.leases.store import CheckpointOutcome
from pumphouse.leases.stores.blob import names
from pumphouse.leases.stores.blob.container import Container
from pumphouse.leases.stores.blob.responses import BlobResponse, store_error
from pumphouse.leases.stores.blob.rows import (
    ListedBlob,
    checkpoint_metadata,
    read_checkpoint,
    read_stamp,
    stamp_metadata,
)

# The prefix of a checkpoint's etag while it is only a stamp.
STAMP = "stamp:"
SDK_WROTE_FIRST = BlobResponse(
    "conflict", why="an official SDK has written a checkpoint in the meantime"
)


class CheckpointBlobs:
    def __init__(self, container: Container) -> None:
        self._container = container
        # Blob -> its checkpoint as last read or written, valid while its etag is unchanged.
        self._known: dict[str, Checkpoint] = {}
        self._without_mixed_case: set[Group] = set()

    # -- reading ----------------------------------------------------------------------------------

    async def list(self, group: Group) -> list[Checkpoint]:
        checkpoints = await self._list_under(group, names.prefix(group))
        for checkpoint in checkpoints.values():
            self._known[names.checkpoint(group, checkpoint.partition)] = checkpoint
        for partition, mixed_case in (await self._list_mixed_case(group)).items():
            listed = checkpoints.get(partition, Checkpoint(group, partition))
            if not listed.has_position:
                checkpoints[partition] = replace(mixed_case, etag=listed.etag, epoch=listed.epoch)
        return [checkpoints[partition] for partition in sorted(checkpoints)]

    async def _list_mixed_case(self, group: Group) -> dict[str, Checkpoint]:
        """Checkpoints of early Go hosts, whose blob names keep the case of the hub and group.

        After an empty listing they are not listed again.
        """
        prefix = names.case_preserving_prefix(group)
        if prefix == names.prefix(group) or group in self._without_mixed_case:
            return {}
        checkpoints = await self._list_under(group, prefix)
        if not checkpoints:
            self._without_mixed_case.add(group)
        return checkpoints

    async def _list_under(self, group: Group, prefix: str) -> dict[str, Checkpoint]:
        """Checkpoints, and stamps of partitions that have none, from one listing."""
        blobs: dict[str, dict[str, ListedBlob]] = {names.CHECKPOINT: {}, names.STAMP: {}}
        async for blob in self._container.list(prefix):
            kind, partition = names.kind_and_name(blob.name, prefix)
            if kind in blobs:
                blobs[kind][partition] = blob
        checkpoints = {}
        for partition, blob in blobs[names.STAMP].items():
            stamp = read_stamp(group, partition, blob)
            checkpoints[partition] = replace(stamp, etag=f"{STAMP}{stamp.etag}")
        for partition, blob in blobs[names.CHECKPOINT].items():
            checkpoints[partition] = read_checkpoint(group, partition, blob)
        return checkpoints

    # -- writing ----------------------------------------------------------------------------------

    async def update(self, requested: Checkpoint, rewind: bool) -> CheckpointOutcome:
        blob = names.checkpoint(requested.group, requested.partition)
        known = self._known.get(blob)
        # If the etags differ, the stored checkpoint is not known.
        stored = known if known is not None and known.etag == requested.etag else None
        if not rewind and (fault := checkpoint_fault(stored, requested)):
            raise CheckpointRefused(fault)
        outcome = _outcome(requested, await self._write(blob, requested))
        if isinstance(outcome, Granted):
            self._known[blob] = replace(outcome.row)
        return outcome

    async def _write(self, blob: str, requested: Checkpoint) -> BlobResponse:
        if requested.etag and not requested.etag.startswith(STAMP):
            return await self._rewrite(blob, requested)
        stamped = await self._stamp(requested)
        if stamped.outcome != "written":
            return stamped
        if requested.has_position:
            return await self._container.create(blob, checkpoint_metadata(requested))
        # `head` responds "written" if the blob exists, "conflict" if not.
        existing = await self._container.head(blob)
        if existing.outcome == "written":
            return SDK_WROTE_FIRST
        return stamped if existing.outcome == "conflict" else existing

    async def _rewrite(self, blob: str, requested: Checkpoint) -> BlobResponse:
        if requested.has_position:
            metadata = checkpoint_metadata(requested)
            return await self._container.set_metadata(blob, metadata, etag=requested.etag)
        # An administrator removes the position: replace the checkpoint by a stamp.
        name = names.stamp(requested.group, requested.partition)
        stamped = _as_stamp(await self._container.put(name, stamp_metadata(requested)))
        if stamped.outcome != "written":
            return stamped
        deleted = await self._container.delete(blob, etag=requested.etag)
        return stamped if deleted.outcome == "written" else deleted

    async def _stamp(self, requested: Checkpoint) -> BlobResponse:
        name = names.stamp(requested.group, requested.partition)
        metadata = stamp_metadata(requested)
        if not requested.etag:
            return _as_stamp(await self._container.create(name, metadata))
        etag = requested.etag.removeprefix(STAMP)
        return _as_stamp(await self._container.set_metadata(name, metadata, etag=etag))


def _as_stamp(response: BlobResponse) -> BlobResponse:
    return replace(response, etag=f"{STAMP}{response.etag}")


def _outcome(requested: Checkpoint, response: BlobResponse) -> CheckpointOutcome:
    if response.outcome == "written":
        return Granted(replace(requested, etag=response.etag))
    if response.outcome == "rejected":
        raise store_error(response)
    if response.outcome == "conflict":
        return Refused(requested)
    return Unknown(requested, response.why)
