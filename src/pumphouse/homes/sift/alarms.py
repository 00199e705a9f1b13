"""Raises the alerts that a reading decides at once: break-ins, fires, and others by such rules.

Time decides the other alerts, so they are raised by `watch`, which has the history of a day. These
need of a home only since when its alarm is armed, and when it last had smoke. `sift` has read
the reading anyway, so its alert need not wait for a second stage.

    AlarmHistory, ActivityColumns -> raise_alarms -> Alerts, AlarmHistory
                                     ^^^^^^^^^^^^ this module, by the rules of watch/alarms.py

The rules are those of `watch`, which does not raise these alerts itself (rules.apply_rules).
"""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Final

import numpy as np

from pumphouse.homes.duplicates import SequenceWindows
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.watch import rules
from pumphouse.homes.watch.alarms import alarm_rows, alarms_of
from pumphouse.homes.watch.alerts import Alerts
from pumphouse.homes.watch.history import (
    KEPT_MS,
    ActivityColumns,
    PartitionHistory,
    UInt64s,
    empty,
    from_bytes,
    with_rows,
)

# A history that uses these columns of homes only, and has rows in no other.
AlarmHistory = PartitionHistory
COLUMNS: Final = ("armed", "mode_at", "met")
# Ends a value of state that contains a history too; the value of an earlier version does not.
MARK: Final = b"\x00alarms1"
END: Final = struct.Struct(f"<q{len(MARK)}s")  # the bytes of the sequence windows, and the mark


def raise_alarms(
    history: AlarmHistory, activities: ActivityColumns, known: UInt64s, kinds: Kinds = DEFAULT
) -> tuple[Alerts, AlarmHistory]:
    """The alerts that these activities raise, and the new history. `known` are the fingerprints of
    alerts raised by an earlier run."""
    activities = activities.where(rules.order_of(activities))
    history = with_rows(history, "homes", COLUMNS, np.unique(activities.number))
    row = history.row_of(activities.number)
    since_armed, history = rules.follow_modes(history, activities, row)
    raising, history = alarm_rows(kinds, history, activities, row, since_armed)
    history = rules.move_clock(history, activities, history.resumed)
    new, history = rules.deduplicated(history, alarms_of(activities, raising), known)
    return new, without_expired(history)


def without_expired(history: AlarmHistory) -> AlarmHistory:
    """The history without homes and alerts older than a day."""
    horizon = history.clock[0] - KEPT_MS
    recent = history.raised_at >= horizon
    kept = replace(history, raised=history.raised[recent], raised_at=history.raised_at[recent])
    alive = history.mode_at >= horizon
    if alive.all():
        return kept
    return replace(kept, **{name: getattr(kept, name)[alive] for name in ("homes", *COLUMNS)})


def pack_state(windows: SequenceWindows, history: AlarmHistory | None) -> bytes:
    """The state of a bucket. Without a history it is that of earlier versions."""
    packed = windows.to_bytes()
    if history is None:
        return packed
    return b"".join((packed, history.to_bytes(), END.pack(len(packed), MARK)))


def unpack_state(packed: bytes, kinds: Kinds = DEFAULT) -> tuple[SequenceWindows, AlarmHistory]:
    """The state of a bucket, of this or of an earlier version."""
    if not packed.endswith(MARK):
        return SequenceWindows.from_bytes(packed), empty(kinds)
    length, _ = END.unpack_from(packed, len(packed) - END.size)
    history = from_bytes(packed[length : -END.size], kinds)
    return SequenceWindows.from_bytes(packed[:length]), history
