"""CheckpointBlobs as blobs of the official SDKs' format, with a fence that those never see.

A checkpoint has a position, always: the official Python SDK reads an empty offset back as the word
"None" and asks the hub for it, and one that is missing ends its cycle. So a bare stamp, which says
whose turn it is before anything was handled, is a blob of its own beside the checkpoint's.

    BlobStore -> CheckpointBlobs -> Container
                 ^^^^^^^^^^^ this module

The stamp counts until there is a checkpoint, and never again:

    nothing -> stamp (Put Blob if none; then see that there is still no checkpoint)
    stamp   -> stamp (Set Metadata over its etag; then the same)
    stamp   -> checkpoint (Set Metadata over the stamp's etag: whoever loses this is fenced off;
               then Put Blob if none: whoever loses this has met an SDK)
    checkpoint -> checkpoint (Set Metadata over its etag: one request, from the second time on)
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

# What a checkpoint's etag begins with as long as it is only a stamp.
STAMP = "stamp:"
EXISTS = BlobResponse("contested", why="an official SDK has written a checkpoint meanwhile")


class CheckpointBlobs:
    def __init__(self, container: Container) -> None:
        self._container = container
        # What was last read or written of each: the etag proves whether it still is so.
        self._seen: dict[str, Checkpoint] = {}
        self._without_mixed_case: set[Group] = set()

    # -- reading ----------------------------------------------------------------------------------

    async def list(self, group: Group) -> list[Checkpoint]:
        marks = await self._found(group, names.prefix(group))
        for mark in marks.values():
            self._seen[names.checkpoint(group, mark.partition)] = mark
        for partition, old in (await self._mixed_case(group)).items():
            ours = marks.get(partition, Checkpoint(group, partition))
            if not ours.has_position:
                marks[partition] = replace(old, etag=ours.etag, epoch=ours.epoch)
        return [marks[partition] for partition in sorted(marks)]

    async def _mixed_case(self, group: Group) -> dict[str, Checkpoint]:
        """What early Go hosts have left: looked for once, and again only if there is something."""
        under = names.given_prefix(group)
        if under == names.prefix(group) or group in self._without_mixed_case:
            return {}
        marks = await self._found(group, under)
        if not marks:
            self._without_mixed_case.add(group)
        return marks

    async def _found(self, group: Group, under: str) -> dict[str, Checkpoint]:
        """CheckpointBlobs, and stamps where there is no checkpoint, by one listing."""
        blobs: dict[str, dict[str, ListedBlob]] = {names.CHECKPOINT: {}, names.STAMP: {}}
        async for found in self._container.list(under):
            kind, partition = names.kind_and_id(found.name, under)
            if kind in blobs:
                blobs[kind][partition] = found
        marks = {
            partition: replace(stamp, etag=f"{STAMP}{stamp.etag}")
            for partition, found in blobs[names.STAMP].items()
            for stamp in [read_stamp(group, partition, found)]
        }
        for partition, found in blobs[names.CHECKPOINT].items():
            marks[partition] = read_checkpoint(group, partition, found)
        return marks

    # -- writing ----------------------------------------------------------------------------------

    async def update(self, wanted: Checkpoint, rewind: bool) -> CheckpointOutcome:
        blob = names.checkpoint(wanted.group, wanted.partition)
        seen = self._seen.get(blob)
        # The etag says that nobody has written since we saw it; otherwise we cannot know.
        known = seen if seen is not None and seen.etag == wanted.etag else None
        if not rewind and (fault := checkpoint_fault(known, wanted)):
            raise CheckpointRefused(fault)
        outcome = _outcome(wanted, await self._write(blob, wanted))
        if isinstance(outcome, Granted):
            self._seen[blob] = replace(outcome.row)
        return outcome

    async def _write(self, blob: str, wanted: Checkpoint) -> BlobResponse:
        if wanted.etag and not wanted.etag.startswith(STAMP):
            return await self._rewrite(blob, wanted)
        stamped = await self._stamp(wanted)
        if stamped.outcome != "written":
            return stamped
        if wanted.has_position:
            return await self._container.create(blob, checkpoint_metadata(wanted))
        there = await self._container.head(blob)
        if there.outcome == "written":
            return EXISTS
        return stamped if there.outcome == "contested" else there

    async def _rewrite(self, blob: str, wanted: Checkpoint) -> BlobResponse:
        if wanted.has_position:
            said = checkpoint_metadata(wanted)
            return await self._container.set_metadata(blob, said, etag=wanted.etag)
        # Somebody wants it forgotten where it was: back to a stamp.
        name = names.stamp(wanted.group, wanted.partition)
        stamped = _as_stamp(await self._container.put(name, stamp_metadata(wanted)))
        if stamped.outcome != "written":
            return stamped
        gone = await self._container.delete(blob, etag=wanted.etag)
        return stamped if gone.outcome == "written" else gone

    async def _stamp(self, wanted: Checkpoint) -> BlobResponse:
        name, said = names.stamp(wanted.group, wanted.partition), stamp_metadata(wanted)
        if not wanted.etag:
            return _as_stamp(await self._container.create(name, said))
        etag = wanted.etag.removeprefix(STAMP)
        return _as_stamp(await self._container.set_metadata(name, said, etag=etag))


def _as_stamp(answer: BlobResponse) -> BlobResponse:
    return replace(answer, etag=f"{STAMP}{answer.etag}")


def _outcome(wanted: Checkpoint, answer: BlobResponse) -> CheckpointOutcome:
    if answer.outcome == "written":
        return Granted(replace(wanted, etag=answer.etag))
    if answer.outcome == "barred":
        raise store_error(answer)
    return Refused(wanted) if answer.outcome == "contested" else Unknown(wanted, answer.why)
