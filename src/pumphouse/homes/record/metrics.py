"""The metrics of the stage `record`: stored alerts by kind, and delays from the reading.

StoredRows of a batch -> RecordMetrics -> telemetry
                         ^^^^^^^^^^^^^ this module, in the driver
"""

from __future__ import annotations

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.record.recorded import StoredRows
from pumphouse.telemetry.definitions import ALERTS, SENT_TO_ALERT, SENT_TO_ROW
from pumphouse.telemetry.meter import close_series, open_series

OTHER = "other"  # any program may write alerts to the hub: other kinds must not become labels


class RecordMetrics:
    """Counts what the database has committed. The counters begin with 0."""

    def __init__(self, kinds: Kinds = DEFAULT) -> None:
        names = (*kinds.alert_names, OTHER)
        self._alerts = {kind: open_series(ALERTS, {"kind": kind}) for kind in names}
        self._to_alert = open_series(SENT_TO_ALERT, {})
        self._to_row = open_series(SENT_TO_ROW, {})

    def record(self, rows: StoredRows, now_ms: int) -> None:
        """Count the rows of a transaction that ended at `now_ms`."""
        for kind, at, enqueued in rows.alerts:
            self._alerts[kind if kind in self._alerts and kind is not None else OTHER].add()
            self._to_alert.record(seconds(at, now_ms if enqueued is None else enqueued))
        for at in rows.activities:
            self._to_row.record(seconds(at, now_ms))

    def close(self) -> None:
        close_series(*self._alerts.values(), self._to_alert, self._to_row)


def seconds(from_ms: int, to_ms: int) -> float:
    """A delay; 0 if the clock of a sensor is ahead."""
    return max(0, to_ms - from_ms) / 1000
