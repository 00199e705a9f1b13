"""Records as they are read back from the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.schema import Alert


@dataclass(frozen=True, slots=True)
class RecordedAlert:
    """An alert of the database."""

    alert: Alert
    enqueued: int | None  # when the hub `alerts` received it
    state: AlertState
    trace: str | None = None  # the context of its reading, see trace_text.py


@dataclass(frozen=True, slots=True)
class RecordedActivity:
    """An activity of the database."""

    sensor: str
    at: int
    value: float | None
    mode: str | None
    why: str | None
    fault: str | None
    seq: int
    enqueued: int | None  # when the hub `activity` received it from the stage sift


@dataclass(frozen=True, slots=True)
class TracedAlert:
    """A stored alert whose reading began a trace. Times are in ms."""

    kind: str | None
    trace: str  # the context of the reading, see trace_text.py
    at: int  # of the reading
    sifted: int | None  # when the hub `activity` received the reading
    raised: int | None  # when the hub `alerts` received the alert


@dataclass(frozen=True, slots=True)
class StoredRows:
    """What one transaction has added, without duplicates."""

    activities: Sequence[int] = ()  # the time of each reading
    alerts: Sequence[tuple[str | None, int, int | None]] = ()  # kind, time, when the hub got it
    traced: Sequence[TracedAlert] = ()


NO_ROWS = StoredRows()


def is_by_sift(sifted: int | None, raised: int | None) -> bool:
    """Whether `sift` raised the alert, by the times at which the hubs received it and its
    activity."""
    return sifted is not None and raised is not None and raised <= sifted
