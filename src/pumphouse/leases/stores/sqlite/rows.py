"""The columns of a lease file as rows: every value is checked before it is used.

SQLite stores any type in any column, and a lease file can be edited by hand. So a value of another
type, or beyond the limits of limits.py, raises a StoreError that names the row.

    SELECT -> columns -> read_row, read_checkpoint, read_member -> Ownership, Checkpoint, Member
                         ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pumphouse.leases.model import STATES, Checkpoint, Group, Member, Ownership, aged
from pumphouse.leases.stores.limits import (
    ENQUEUED_MS_MAX,
    SEQUENCE_MAX,
    checked_deadline,
    checked_epoch,
    checked_integer,
    checked_offset,
    invalid,
    shown,
    usable_rate,
)
from pumphouse.leases.stores.sqlite.clock import MachineTime, age_s

# A position before the first event.
SEQUENCE_MIN = -1
PARTITIONS_MAX = 2**31 - 1


def read_row(columns: Sequence[Any], now: MachineTime) -> Ownership:
    partition, owner, epoch, etag, successor, deadline_s, rate, pinned, state, *written = columns
    where = f"the ownership row of partition {shown(partition)}"
    row = Ownership(
        _text(partition, "partition", where),
        _text(owner, "owner", where),
        checked_epoch(_integer(epoch, "epoch", where), where),
        _text(etag, "etag", where),
        0.0,
        _text(successor, "successor", where),
        checked_deadline(_optional_number(deadline_s, "deadline", where), where),
        usable_rate(_optional_number(rate, "rate", where)),
        bool(pinned),
        # A state of a later Pumphouse reads as none.
        state if state in STATES else "",
    )
    return aged(row, age_s(_time(written, where), now))


def read_member(columns: Sequence[Any], now: MachineTime) -> Member:
    name, max_partitions, *beat = columns
    where = f"the member {shown(name)}"
    limit = _optional_integer(max_partitions, 1, PARTITIONS_MAX, "max_partitions", where)
    return Member(_text(name, "name", where), age_s(_time(beat, where), now), limit)


def read_checkpoint(group: Group, columns: Sequence[Any]) -> Checkpoint:
    partition, sequence, offset, enqueued_ms, epoch, etag = columns
    where = f"the checkpoint of partition {shown(partition)}"
    return Checkpoint(
        group,
        _text(partition, "partition", where),
        _optional_integer(sequence, SEQUENCE_MIN, SEQUENCE_MAX, "sequence number", where),
        checked_offset(None if offset is None else _text(offset, "offset", where), where),
        checked_epoch(_integer(epoch, "epoch", where), where),
        _text(etag, "etag", where),
        _optional_integer(enqueued_ms, 0, ENQUEUED_MS_MAX, "enqueued time", where),
    )


# -- values ---------------------------------------------------------------------------------------


def _text(value: Any, field: str, where: str) -> str:
    if type(value) is str:
        return value
    raise invalid(where, field, value, "it must be a text")


def _integer(value: Any, field: str, where: str) -> int:
    if type(value) is int:
        return value
    raise invalid(where, field, value, "it must be a whole number")


def _optional_integer(value: Any, lowest: int, highest: int, field: str, where: str) -> int | None:
    if value is None:
        return None
    return checked_integer(_integer(value, field, where), lowest, highest, field, where)


def _number(value: Any, field: str, where: str) -> float:
    if type(value) in (float, int) and math.isfinite(value):
        return float(value)
    raise invalid(where, field, value, "it must be a finite number")


def _optional_number(value: Any, field: str, where: str) -> float | None:
    return None if value is None else _number(value, field, where)


def _time(columns: Sequence[Any], where: str) -> MachineTime:
    boot, up_s, wall_s = columns
    return MachineTime(
        _text(boot, "boot id", where),
        _number(up_s, "uptime", where),
        _number(wall_s, "wall time", where),
    )
