"""Decides what a checkpoint writer does next when its write was refused or had no response.

A refusal means that another write came in between. No response means that the write may have taken
effect or not. In both cases the writer reads the stored checkpoint and calls `next_step`. Four
kinds of writers are possible: this writer itself (a write whose response was lost), a later owner,
an official SDK that overwrites everything without an epoch, and an administrator who moves
checkpoints by hand. A stamp is the first write of a new owner: it stores the owner's epoch and
keeps the position.

    refused, unknown -> read again -> next_step -> AlreadyStored | RetryWrite | FencedOff
                                      ^^^^^^^^^ this module

Two invariants decide every case. A checkpoint never passes an event that was not handled. It never
goes back behind an event that is recorded as handled, if that can be detected.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from pumphouse.leases.model import Checkpoint


@dataclass(frozen=True, slots=True)
class AlreadyStored:
    """The stored checkpoint is the requested one."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class RetryWrite:
    """Write this checkpoint over the stored one."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class FencedOff:
    """Another writer has taken the checkpoint over, with this epoch."""

    epoch: int


def next_step(
    known: Checkpoint | None,
    requested: Checkpoint,
    stored: Checkpoint | None,
    *,
    in_doubt: bool,
    refused: bool,
    former: Collection[str] = (),
) -> AlreadyStored | RetryWrite | FencedOff:
    """The next step after a write of `requested` was refused or had no response.

    `stored` is the checkpoint that was read after the write. `known` is the last checkpoint that
    is certainly ours. It is None until our stamp is stored: before that we have handled nothing,
    and the stored position is kept. `in_doubt` means that one of our later writes may have taken
    effect. `refused` means that the last write did not. `former` has the ETags of our earlier
    checkpoints: a listing that contains one of them is stale.
    """
    if stored is None:
        return RetryWrite(replace(requested, etag=""))
    if stored.epoch > requested.epoch:
        return FencedOff(stored.epoch)
    if stored.epoch == requested.epoch or (known is not None and stored.epoch == known.epoch):
        is_current = refused and stored.etag not in former
        return _after_our_epoch(known, requested, stored, in_doubt, is_current)
    # Written by an official SDK or an earlier owner. It no longer owns the partition, but the
    # events up to its position are handled.
    if known is None or is_ahead(stored, requested):
        return RetryWrite(replace(stored, epoch=requested.epoch))
    return RetryWrite(replace(requested, etag=stored.etag))


def is_erased(known: Checkpoint | None, requested: Checkpoint, stored: Checkpoint | None) -> bool:
    """Whether every stamp was overwritten, so that only the ownership row shows the owner.

    An official SDK does this. It may have overwritten the stamp of a later owner too.
    """
    if stored is None:
        return True
    return stored.epoch < (requested if known is None else known).epoch


def _after_our_epoch(
    known: Checkpoint | None,
    requested: Checkpoint,
    stored: Checkpoint,
    in_doubt: bool,
    is_current: bool,
) -> AlreadyStored | RetryWrite | FencedOff:
    """The stored checkpoint has our epoch: written by us, by hand, or by a host of our name."""
    if not in_doubt:
        return FencedOff(stored.epoch)
    # The stored checkpoint is one of our attempts. A stamp keeps the stored position, and so does
    # an attempt to write a position behind that of an SDK.
    if known is None or same_position(stored, requested) or is_ahead(stored, requested):
        ours = replace(stored, epoch=requested.epoch)
        # The listing may be stale. A new position is certainly stored if any listing contains it.
        # A stamp keeps the stored position, so it must be written over the latest one.
        if stored == ours and known is not None:
            return AlreadyStored(stored)
        return RetryWrite(ours)
    if not is_ahead(known, stored):
        return RetryWrite(replace(requested, etag=stored.etag))
    # The checkpoint was moved back by hand, or the listing is stale.
    if is_current:
        return FencedOff(stored.epoch)
    return RetryWrite(replace(requested, etag=known.etag))


def same_position(checkpoint: Checkpoint, other: Checkpoint) -> bool:
    return (checkpoint.sequence, checkpoint.offset) == (other.sequence, other.offset)


def is_ahead(checkpoint: Checkpoint, other: Checkpoint) -> bool:
    """Whether `checkpoint` certainly lies after `other`: by sequence number, or else by offset.

    Offsets are compared if both are numbers. Checkpoints that cannot be compared are not
    ahead: handling an event twice is better than losing it.
    """
    if checkpoint.sequence is not None and other.sequence is not None:
        return checkpoint.sequence > other.sequence
    if checkpoint.offset is not None and other.offset is not None:
        first, second = _number(checkpoint.offset), _number(other.offset)
        return first is not None and second is not None and first > second
    # A bare stamp lies before every position.
    return checkpoint.has_position and not other.has_position


def _number(offset: str) -> int | None:
    return int(offset) if offset.isascii() and offset.removeprefix("-").isdecimal() else None
