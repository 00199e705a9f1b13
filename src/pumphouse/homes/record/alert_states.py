"""The tables `alert_states` and `alert_traces`.

`alert_states` contains when an alert was recorded, acknowledged and closed, and by whom.
`alert_traces` contains the trace context of an alert whose reading had one.

An alert of an earlier version has no row until it is acknowledged or closed. An alert that the page
shows before it is recorded may have its row first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

ALERT_STATES: Final = "alert_states"
ALERT_TRACES: Final = "alert_traces"
ACKNOWLEDGE, CLOSE = "acknowledge", "close"
COLUMN_OF: Final = {ACKNOWLEDGE: "acknowledged", CLOSE: "closed"}
STATE_COLUMNS: Final = (
    "recorded",
    "acknowledged_at",
    "acknowledged_by",
    "closed_at",
    "closed_by",
)
CREATE: Final = (
    f"CREATE TABLE IF NOT EXISTS {ALERT_STATES} (id TEXT NOT NULL PRIMARY KEY, recorded BIGINT,"
    " acknowledged_at BIGINT, acknowledged_by TEXT, closed_at BIGINT, closed_by TEXT,"
    " changed BIGINT)",
    f"CREATE TABLE IF NOT EXISTS {ALERT_TRACES} (id TEXT NOT NULL PRIMARY KEY,"
    " trace TEXT NOT NULL)",
    f"CREATE INDEX IF NOT EXISTS alert_states_by_change ON {ALERT_STATES} (changed)",
)


@dataclass(frozen=True, slots=True)
class AlertState:
    """What happened to an alert after it was raised. Times are in ms; None: not yet, or unknown."""

    recorded: int | None = None
    acknowledged_at: int | None = None
    acknowledged_by: str | None = None
    closed_at: int | None = None
    closed_by: str | None = None

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def name(self) -> str:
        if self.closed_at is not None:
            return "closed"
        return "open" if self.acknowledged_at is None else "acknowledged"


def state_of(columns: tuple[Any, ...]) -> AlertState:
    """The state in the columns STATE_COLUMNS of a row."""
    return AlertState(*columns)


def set_recorded(rows: str, at_ms: int | None) -> str:
    """The statement that notes when the alerts of a table were recorded."""
    at = "NULL" if at_ms is None else f"{at_ms:d}"
    return (
        f"INSERT INTO {ALERT_STATES} (id, recorded, changed)"
        f" SELECT id, CAST({at} AS BIGINT), CAST({at} AS BIGINT) FROM {rows} WHERE true"
        " ON CONFLICT (id) DO UPDATE SET recorded = excluded.recorded, changed = excluded.changed"
    )


# The first one counts: a duplicate of an alert may have another trace.
STORE_TRACE: Final = f"INSERT INTO {ALERT_TRACES} VALUES (?, ?) ON CONFLICT (id) DO NOTHING"


def mark(action: str) -> str:
    """The statement that acknowledges or closes an alert: (id, at, by, at).

    The first one counts: a second acknowledgement keeps the name and time of the first.
    """
    name = COLUMN_OF[action]
    return (
        f"INSERT INTO {ALERT_STATES} (id, {name}_at, {name}_by, changed) VALUES (?, ?, ?, ?)"
        f" ON CONFLICT (id) DO UPDATE SET {name}_at = excluded.{name}_at,"
        f" {name}_by = excluded.{name}_by, changed = excluded.changed"
        f" WHERE {ALERT_STATES}.{name}_at IS NULL"
    )
