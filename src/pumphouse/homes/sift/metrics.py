"""The metrics of the stage `sift`: readings by kind of sensor, late ones, invalid records.

Counts of a batch -> SiftMetrics -> telemetry
                     ^^^^^^^^^^^ this module, in the driver
"""

from __future__ import annotations

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.sift.stage import Counts
from pumphouse.telemetry.definitions import LATE_READINGS, MALFORMED_READINGS, READINGS
from pumphouse.telemetry.meter import close_series, open_series


class SiftMetrics:
    """The totals of all batches. They begin with 0, so that the first reading is an increase."""

    def __init__(self, kinds: Kinds = DEFAULT) -> None:
        self._readings = {kind: open_series(READINGS, {"kind": kind}) for kind in kinds.names}
        self._late = open_series(LATE_READINGS, {})
        self._malformed = open_series(MALFORMED_READINGS, {})

    def record(self, counts: Counts) -> None:
        for kind, count in counts.kinds.items():
            if kind in self._readings:
                self._readings[kind].add(count)
        self._late.add(counts.late)
        self._malformed.add(counts.malformed)

    def close(self) -> None:
        close_series(*self._readings.values(), self._late, self._malformed)
