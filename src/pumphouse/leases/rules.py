"""The rules that every row and checkpoint must follow, whichever host writes it.

Compare and set keeps writers from overwriting each other. It does not keep one of them from writing
an impossible row. The functions here compare the stored row with the requested one and return what
is wrong as a sentence, or None.

    caller -> MemoryStore -> row_fault, checkpoint_fault -> stored, or StoreMisused
                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import math

from pumphouse.leases.model import STATES, Checkpoint, Ownership, goes_back

# How far a renewal may postpone a deadline: the time that a slow store takes between a listing and
# a write. An owner that gained more with each renewal would never hand over.
PUT_OFF_S_MAX = 5.0
SUCCESSOR_WITHOUT_DEADLINE = "a row must have both a successor and a deadline, or neither"


def row_fault(
    stored: Ownership | None, requested: Ownership, put_off_s_max: float = PUT_OFF_S_MAX
) -> str | None:
    """Why `requested` may not follow `stored`, whose age and deadline are current."""
    if fault := shape_fault(requested):
        return fault
    if stored is None:
        return first_row_fault(requested)
    if stored.owner != requested.owner:
        return owner_change_fault(stored, requested)
    return same_owner_fault(stored, requested, put_off_s_max)


def shape_fault(row: Ownership) -> str | None:
    """What is wrong with a row by itself."""
    faults: list[tuple[bool, str]] = [
        (not row.partition, "it has no partition"),
        (row.epoch < 0, f"its epoch is {row.epoch}"),
        (not row.owner and bool(row.successor), "it has a successor but no owner"),
        (bool(row.owner) and row.owner == row.successor, f"{row.owner} would succeed itself"),
        (bool(row.successor) and row.deadline_s is None, SUCCESSOR_WITHOUT_DEADLINE),
        (not row.owner and row.deadline_s is not None, "it has a deadline but no owner"),
        (row.deadline_s is not None and not math.isfinite(row.deadline_s),
         f"its deadline is {row.deadline_s}"),
        (row.rate is not None and not 0 <= row.rate < math.inf, f"its rate is {row.rate}"),
        (row.state != "" and row.state not in STATES, f"its state is {row.state!r}"),
        (row.state != "" and not row.owner, "it has a state but no owner"),
    ]  # fmt: skip
    return next((sentence for wrong, sentence in faults if wrong), None)


def first_row_fault(requested: Ownership) -> str | None:
    if not requested.owner:
        return "the first row of a partition has no owner"
    if requested.successor:
        return "the first row of a partition has a successor"
    if requested.unconfirmed:
        return SUCCESSOR_WITHOUT_DEADLINE
    return "the first row of a partition has no epoch" if requested.epoch == 0 else None


def owner_change_fault(stored: Ownership, requested: Ownership) -> str | None:
    """What is wrong with a claim, a hand-over, or a release (no new owner)."""
    if requested.successor:
        return f"the owner changes, but {requested.successor} stays its successor"
    if not requested.owner:
        return _epoch_fall(stored, requested)
    if requested.unconfirmed and requested.owner != stored.successor:
        return f"{requested.owner} would confirm a hand-over that it did not request"
    if requested.epoch <= stored.epoch:
        return (
            f"the owner changes from {stored.owner or '(none)'} to {requested.owner}, but the "
            f"epoch does not rise (stored {stored.epoch}, requested {requested.epoch})"
        )
    return None


def same_owner_fault(stored: Ownership, requested: Ownership, put_off_s_max: float) -> str | None:
    """What is wrong with a renewal, a nomination or a raised epoch."""
    if fault := _epoch_fall(stored, requested):
        return fault
    if requested.unconfirmed:
        return SUCCESSOR_WITHOUT_DEADLINE
    if requested.pinned and requested.successor:
        return f"{requested.successor} requests it, but {requested.owner} has pinned it"
    if stored.successor and not stored.overdue and requested.successor != stored.successor:
        return f"it would drop the successor {stored.successor} before its deadline"
    if stored.successor and not requested.successor:
        return f"it would drop the successor {stored.successor}, which may claim it now"
    if stored.successor == requested.successor:
        return _put_off(stored, requested, put_off_s_max)
    if requested.deadline_s is not None and requested.deadline_s < 0:
        return f"{requested.successor} requests it with a deadline in the past"
    return None


def _epoch_fall(stored: Ownership, requested: Ownership) -> str | None:
    if requested.epoch >= stored.epoch:
        return None
    return f"the epoch would fall from {stored.epoch} to {requested.epoch}"


def _put_off(stored: Ownership, requested: Ownership, put_off_s_max: float) -> str | None:
    if stored.deadline_s is None or requested.deadline_s is None:
        return None
    postponed_s = requested.deadline_s - stored.deadline_s
    if postponed_s <= put_off_s_max:
        return None
    return (
        f"it would postpone the deadline of {stored.successor} by {postponed_s:.1f} s; subtract "
        "the time since the row was read: renew(aged(row, elapsed_s)). If a test delays writes, "
        f"give MemoryStore a put_off_s_max above the delay (it is {put_off_s_max:g} s)"
    )


# -- checkpoints ----------------------------------------------------------------------------------


def checkpoint_fault(stored: Checkpoint | None, requested: Checkpoint) -> str | None:
    """Why a checkpoint may not be written, except by an administrator."""
    if stored is None:
        return None
    name = f"the checkpoint of partition {requested.partition}"
    if requested.epoch < stored.epoch:
        return f"{name} was fenced off by epoch {stored.epoch}; this write has {requested.epoch}"
    if goes_back(stored, requested):
        return f"{name} would go back from {stored.sequence} to {requested.sequence}"
    return None
