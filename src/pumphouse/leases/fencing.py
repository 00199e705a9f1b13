"""Decides what a checkpoint writer does next when its write was refused or had no response.

A refusal means that another write came in between. No response means that the write may have taken
effect or not. In both cases the writer reads the stored checkpoint and calls `next_step`. Four
kinds of writers are possible: this writer itself (a write whose response was lost), a later owner,
an official SDK that overwrites everything without an epoch, and an administrator who moves
checkpoints by hand.

    refused, unknown -> read again -> next_step -> AlreadyStored | RetryWrite | FencedOff
                                      ^^^^^^^^^ this module

Two invariants decide every case. A checkpoint never passes an event that was not handled. It never
goes back behind an event that is recorded as handled, if that can be detected.
"""

from __future__ import annotations

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
) -> AlreadyStored | RetryWrite | FencedOff:
    """What follows a write of `requested`, given that `stored` is stored now.

    `known` is the last checkpoint that was certainly ours, None before our stamp: then we have
    handled nothing, and any position is better than ours. `in_doubt` means that one of our writes
    since then may have taken effect or not, `refused` that the last one certainly did not.
    """
    if stored is None:
        return RetryWrite(replace(requested, etag=""))
    if stored.epoch > requested.epoch:
        return FencedOff(stored.epoch)
    if stored.epoch == requested.epoch or (known is not None and stored.epoch == known.epoch):
        return _after_our_epoch(known, requested, stored, in_doubt, refused)
    # An official SDK or an earlier owner. It may not write, but the events it handled are handled.
    if known is None or is_ahead(stored, requested):
        return RetryWrite(replace(stored, epoch=requested.epoch))
    return RetryWrite(replace(requested, etag=stored.etag))


def is_erased(known: Checkpoint | None, requested: Checkpoint, stored: Checkpoint | None) -> bool:
    """Whether every stamp was overwritten, so that only the row shows the current owner.

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
    refused: bool,
) -> AlreadyStored | RetryWrite | FencedOff:
    """The stored checkpoint has our epoch: written by us, by hand, or by a host of our name."""
    if not in_doubt:
        return FencedOff(stored.epoch)
    # One of our attempts. A stamp has no position of its own and takes the stored one, and so does
    # an attempt that finds an SDK ahead of it.
    if known is None or same_position(stored, requested) or is_ahead(stored, requested):
        ours = replace(stored, epoch=requested.epoch)
        # The listing may be stale. An advance is finished wherever it shows. A stamp takes over
        # the stored position, so it must be written over exactly that.
        if stored == ours and known is not None:
            return AlreadyStored(stored)
        return RetryWrite(ours)
    if not is_ahead(known, stored):
        return RetryWrite(replace(requested, etag=stored.etag))
    # Moved back by hand, or the listing is stale: a refusal shows which.
    return FencedOff(stored.epoch) if refused else RetryWrite(replace(requested, etag=known.etag))


def same_position(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.sequence, one.offset) == (other.sequence, other.offset)


def is_ahead(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether `one` certainly lies after `other`: by sequence number, or else by offset.

    Offsets are compared if both are numbers. What cannot be compared is not ahead: in doubt, events
    are handled twice rather than never.
    """
    if one.sequence is not None and other.sequence is not None:
        return one.sequence > other.sequence
    if one.offset is not None and other.offset is not None:
        first, second = _number(one.offset), _number(other.offset)
        return first is not None and second is not None and first > second
    # A bare stamp lies before every position.
    return one.has_position and not other.has_position


def _number(offset: str) -> int | None:
    return int(offset) if offset.isascii() and offset.removeprefix("-").isdecimal() else None
