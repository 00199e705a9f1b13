"""A checkpoint was not plainly granted: what does what is stored now mean for its writer?

A refusal says that somebody wrote in between; silence says nothing at all. Either way the writer
reads again and asks this module, which knows four kinds of writers: ourselves (a write whose answer
was lost), a later owner, an official SDK that writes over everything without an epoch, and an
administrator who moves checkpoints by hand.

    refused, unknown -> read again -> next_step -> AlreadyStored | RetryWrite | FencedOff
                                      ^^^^^^^^^ this module

Two promises decide every case: a checkpoint never passes an event that nobody handled, and it never
goes back behind one that somebody has written down as handled, if that can be told.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pumphouse.leases.model import Checkpoint


@dataclass(frozen=True, slots=True)
class AlreadyStored:
    """What is stored is what we wanted to write."""

    found: Checkpoint


@dataclass(frozen=True, slots=True)
class RetryWrite:
    """RetryWrite this, over what was found."""

    wanted: Checkpoint


@dataclass(frozen=True, slots=True)
class FencedOff:
    """Somebody else speaks for the partition now, with this epoch."""

    epoch: int


def next_step(
    known: Checkpoint | None,
    wanted: Checkpoint,
    found: Checkpoint | None,
    *,
    in_doubt: bool,
    refused: bool,
) -> AlreadyStored | RetryWrite | FencedOff:
    """What to do about a write of `wanted` now that `found` is stored.

    `known` is the last checkpoint that was certainly ours, None while we have not stamped it yet:
    then we have handled nothing, and any position is better than ours. `in_doubt` says that a write
    of ours since then may or may not have arrived; `refused` that the last one certainly did not.
    """
    if found is None:
        return RetryWrite(replace(wanted, etag=""))
    if found.epoch > wanted.epoch:
        return FencedOff(found.epoch)
    if found.epoch == wanted.epoch or (known is not None and found.epoch == known.epoch):
        return _in_our_name(known, wanted, found, in_doubt, refused)
    # An official SDK, or an owner before us: it has no say, but what it has handled is handled.
    if known is None or is_ahead(found, wanted):
        return RetryWrite(replace(found, epoch=wanted.epoch))
    return RetryWrite(replace(wanted, etag=found.etag))


def is_erased(known: Checkpoint | None, wanted: Checkpoint, found: Checkpoint | None) -> bool:
    """Whether somebody wrote over every stamp, so that only the row can tell whose it is now.

    An official SDK does. A later owner may have stamped it before, and we would not know.
    """
    if found is None:
        return True
    return found.epoch < (wanted if known is None else known).epoch


def _in_our_name(
    known: Checkpoint | None, wanted: Checkpoint, found: Checkpoint, in_doubt: bool, refused: bool
) -> AlreadyStored | RetryWrite | FencedOff:
    """With our epoch: by ourselves if an answer was lost, otherwise by hand or by a double."""
    if not in_doubt:
        return FencedOff(found.epoch)
    # One of our attempts. A stamp has no place of its own, it takes the one that it finds; and so
    # does an attempt that found an SDK ahead of us.
    if known is None or same_place(found, wanted) or is_ahead(found, wanted):
        ours = replace(found, epoch=wanted.epoch)
        # What was found may be old. An advance is done wherever it shows; a stamp takes over the
        # place that it finds, so it has to be written over exactly that.
        return AlreadyStored(found) if found == ours and known is not None else RetryWrite(ours)
    if not is_ahead(known, found):
        return RetryWrite(replace(wanted, etag=found.etag))
    # Moved back by hand, or we were told what was there before: a refusal will tell.
    return FencedOff(found.epoch) if refused else RetryWrite(replace(wanted, etag=known.etag))


def same_place(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.sequence, one.offset) == (other.sequence, other.offset)


def is_ahead(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether `one` certainly lies after `other`: by sequence number, or else by offset.

    Offsets are compared where both are numbers; what cannot be compared is not ahead, so that in
    doubt events are handled twice rather than never.
    """
    if one.sequence is not None and other.sequence is not None:
        return one.sequence > other.sequence
    if one.offset is not None and other.offset is not None:
        here, there = _number(one.offset), _number(other.offset)
        return here is not None and there is not None and here > there
    # A bare stamp lies before every position.
    return one.has_position and not other.has_position


def _number(offset: str) -> int | None:
    return int(offset) if offset.isascii() and offset.removeprefix("-").isdecimal() else None
