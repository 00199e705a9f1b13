"""The columns of a lease database as rows, and rows as values of statements.

The types are those of the columns, but a database can be edited by hand: a value beyond the limits
of limits.py raises a StoreError that names the row.

    SELECT -> columns -> read_row, read_checkpoint, read_member -> Ownership, Checkpoint, Member
                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumphouse.errors import OptionError, StoreError
from pumphouse.leases.model import STATES, Checkpoint, Group, Member, Ownership
from pumphouse.leases.stores.limits import (
    ENQUEUED_MS_MAX,
    SEQUENCE_MAX,
    checked_age,
    checked_deadline,
    checked_epoch,
    checked_integer,
    checked_name,
    checked_offset,
    shown,
    usable_rate,
)

# A position before the first event.
SEQUENCE_MIN = -1


def read_row(columns: Sequence[Any]) -> Ownership:
    partition, owner, epoch, etag, age_s, successor, deadline_s, rate, pinned, state = columns
    where = f"the ownership row of partition {shown(partition)}"
    return Ownership(
        partition,
        checked_name(owner, "owner", where),
        checked_epoch(epoch, where),
        checked_name(etag, "etag", where),
        checked_age(age_s, where),
        checked_name(successor, "successor", where),
        checked_deadline(deadline_s, where),
        usable_rate(rate),
        pinned,
        # A state of a later Pumphouse reads as none.
        state if state in STATES else "",
    )


def read_member(columns: Sequence[Any]) -> Member:
    name, age_s, max_partitions = columns
    where = f"the member {shown(name)}"
    if max_partitions is not None:
        checked_integer(max_partitions, 1, 2**31 - 1, "max_partitions", where)
    return Member(name, checked_age(age_s, where), max_partitions)


def read_epoch(columns: Sequence[Any]) -> tuple[str, int]:
    """The partition and the epoch of a checkpoint."""
    partition, epoch = columns
    return partition, checked_epoch(epoch, f"the checkpoint of partition {shown(partition)}")


def read_checkpoint(group: Group, columns: Sequence[Any]) -> Checkpoint:
    partition, sequence, offset, epoch, etag, enqueued_ms = columns
    where = f"the checkpoint of partition {shown(partition)}"
    if sequence is not None:
        checked_integer(sequence, SEQUENCE_MIN, SEQUENCE_MAX, "sequence number", where)
    if enqueued_ms is not None:
        checked_integer(enqueued_ms, 0, ENQUEUED_MS_MAX, "enqueued time", where)
    return Checkpoint(
        group,
        partition,
        sequence,
        checked_offset(offset, where),
        checked_epoch(epoch, where),
        checked_name(etag, "etag", where),
        enqueued_ms,
    )


def row_values(row: Ownership, etag: str) -> dict[str, object]:
    """The values of a row with its new etag; OptionError if the store could not read it back."""
    where = f"the ownership row of partition {shown(row.partition)}"
    try:
        checked_name(row.owner, "owner", where)
        checked_name(row.successor, "successor", where)
    except StoreError as error:
        raise OptionError(f"a row cannot be stored: {error}") from None
    return {
        "partition": row.partition,
        "owner": row.owner,
        "epoch": row.epoch,
        "before": row.etag,
        "etag": etag,
        "successor": row.successor,
        "deadline_s": row.deadline_s,
        "rate": row.rate,
        "pinned": row.pinned,
        "state": row.state,
    }


def checkpoint_values(checkpoint: Checkpoint, etag: str) -> dict[str, object]:
    """The values of a checkpoint with its new etag; OptionError if it could not be read back."""
    try:
        checked_offset(checkpoint.offset, f"the checkpoint of {shown(checkpoint.partition)}")
    except StoreError as error:
        raise OptionError(f"a checkpoint cannot be stored: {error}") from None
    return {
        "partition": checkpoint.partition,
        "sequence": checkpoint.sequence,
        "offset": checkpoint.offset,
        "enqueued_ms": checkpoint.enqueued_ms,
        "epoch": checkpoint.epoch,
        "before": checkpoint.etag,
        "etag": etag,
    }
