"""The delay of alerts from the sensor to the hub `alerts`.

    AlertHistory -> alert_delays -> the Homes page, the status line of the demonstration
                    ^^^^^^^^^^^^ this module

The delay of an alert begins at the time of the reading that raised it. If no reading raised the
alert, as for a silent sensor, the delay begins when the condition was met. The delay includes the
time from the sensor to the hub: a reading that arrives late makes its alert late.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pumphouse.dashboard.views.alerts import ShownAlert

SPAN_MS = 5 * 60_000


@dataclass(frozen=True, slots=True)
class AlertDelays:
    """The delays of the alerts of a period; unknown if there were none."""

    alerts: int = 0
    p50_s: float | None = None
    p99_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        return {"alerts": self.alerts, "p50_s": self.p50_s, "p99_s": self.p99_s}


NO_ALERTS = AlertDelays()


def alert_delays(alerts: Iterable[ShownAlert], now_ms: int) -> AlertDelays:
    """The delays of the alerts that the hub received in the last five minutes."""
    delays_ms = sorted(
        max(0, shown.enqueued - shown.alert.at)  # the clock of a sensor may be ahead
        for shown in alerts
        if shown.enqueued is not None and shown.enqueued > now_ms - SPAN_MS
    )
    if not delays_ms:
        return NO_ALERTS
    return AlertDelays(len(delays_ms), percentile_s(delays_ms, 50), percentile_s(delays_ms, 99))


def percentile_s(ordered_ms: Sequence[int], percent: int) -> float:
    """The smallest value that at least this share of the values do not exceed, in seconds."""
    rank = -(-len(ordered_ms) * percent // 100)
    return round(ordered_ms[rank - 1] / 1000, 2)
