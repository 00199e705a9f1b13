"""Which rows are mistakes, whoever writes them?

Compare and set keeps writers from overtaking each other; it does not keep one of them from writing
nonsense. This module knows the nonsense: it is given the row that is stored and the row that shall
follow it, and answers with what is wrong, in a sentence, or with nothing.

    caller -> MemoryStore -> row_fault, checkpoint_fault -> stored, or StoreMisused
                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import math

from pumphouse.leases.model import Checkpoint, Ownership, goes_back

# How much later a deadline may fall when a row is renewed: what a slow store takes between a
# listing and a write. More is an owner that puts its hand-off off for ever.
PUT_OFF_S_MAX = 5.0
TOGETHER = "a successor and a deadline come together or not at all"


def row_fault(
    stored: Ownership | None, wanted: Ownership, put_off_s_max: float = PUT_OFF_S_MAX
) -> str | None:
    """Why `wanted` may not follow `stored` (as it is now, age and deadline included)."""
    if fault := shape_fault(wanted):
        return fault
    if stored is None:
        return first_fault(wanted)
    if stored.owner != wanted.owner:
        return owner_fault(stored, wanted)
    return same_owner_fault(stored, wanted, put_off_s_max)


def shape_fault(row: Ownership) -> str | None:
    """What no row may look like."""
    faults: list[tuple[bool, str]] = [
        (not row.partition, "it names no partition"),
        (row.epoch < 0, f"its epoch is {row.epoch}"),
        (not row.owner and bool(row.successor), "nobody owns it, and yet it has a successor"),
        (bool(row.owner) and row.owner == row.successor, f"{row.owner} would succeed itself"),
        (bool(row.successor) and row.deadline_s is None, TOGETHER),
        (not row.owner and row.deadline_s is not None, "nobody owns it, and yet it has a deadline"),
        (row.deadline_s is not None and not math.isfinite(row.deadline_s),
         f"its deadline is {row.deadline_s}"),
        (row.rate is not None and not 0 <= row.rate < math.inf, f"its rate is {row.rate}"),
    ]  # fmt: skip
    return next((sentence for wrong, sentence in faults if wrong), None)


def first_fault(wanted: Ownership) -> str | None:
    if not wanted.owner:
        return "the first row of a partition has no owner"
    if wanted.successor:
        return "the first row of a partition has a successor"
    if wanted.handed:
        return TOGETHER
    return "the first row of a partition has no epoch" if wanted.epoch == 0 else None


def owner_fault(stored: Ownership, wanted: Ownership) -> str | None:
    """The owner changes: a claim or a hand-over, or, if nobody follows, a release."""
    if wanted.successor:
        return f"it changes hands, and yet {wanted.successor} is kept waiting"
    if not wanted.owner:
        return _falls(stored, wanted)
    if wanted.handed and wanted.owner != stored.successor:
        return f"{wanted.owner} is to confirm a hand-over that it did not ask for"
    if wanted.epoch <= stored.epoch:
        return (
            f"the owner changes from {stored.owner or 'nobody'} to {wanted.owner}, but the epoch "
            f"does not rise (it was {stored.epoch} and would be {wanted.epoch})"
        )
    return None


def same_owner_fault(stored: Ownership, wanted: Ownership, put_off_s_max: float) -> str | None:
    """The owner stays: a renewal, a nomination or a raised epoch."""
    if fault := _falls(stored, wanted):
        return fault
    if wanted.handed:
        return TOGETHER
    if wanted.pinned and wanted.successor:
        return f"{wanted.successor} asks for it, and yet {wanted.owner} gives it to nobody"
    if stored.successor and not stored.overdue and wanted.successor != stored.successor:
        return f"it would forget {stored.successor}, whose deadline has not passed"
    if stored.successor and not wanted.successor:
        return f"it would forget {stored.successor}, who may take it now"
    if stored.successor == wanted.successor:
        return _put_off(stored, wanted, put_off_s_max)
    if wanted.deadline_s is not None and wanted.deadline_s < 0:
        return f"{wanted.successor} asks for it with a deadline in the past"
    return None


def _falls(stored: Ownership, wanted: Ownership) -> str | None:
    if wanted.epoch >= stored.epoch:
        return None
    return f"the epoch would fall from {stored.epoch} to {wanted.epoch}"


def _put_off(stored: Ownership, wanted: Ownership, put_off_s_max: float) -> str | None:
    if stored.deadline_s is None or wanted.deadline_s is None:
        return None
    later_s = wanted.deadline_s - stored.deadline_s
    if later_s <= put_off_s_max:
        return None
    return (
        f"it would put the deadline of {stored.successor} off by {later_s:.1f} s; take off what "
        "has passed since the row was read: renew(aged(row, elapsed_s))"
    )


# -- checkpoints ----------------------------------------------------------------------------------


def checkpoint_fault(stored: Checkpoint | None, wanted: Checkpoint) -> str | None:
    """Why a checkpoint may not be written unless an administrator wants it so."""
    if stored is None:
        return None
    place = f"the checkpoint of partition {wanted.partition}"
    if wanted.epoch < stored.epoch:
        return f"{place} was fenced off by epoch {stored.epoch}; this write has {wanted.epoch}"
    if goes_back(stored, wanted):
        return f"{place} would go back from {stored.sequence} to {wanted.sequence}"
    return None
