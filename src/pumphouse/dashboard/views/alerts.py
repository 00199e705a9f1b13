"""The history of alerts: each alert once, the newest kept.

An incident always has the same id, so a duplicate is recognised.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from pumphouse.homes.schema import DAY_MS, MINUTE_MS, Alert

ALERTS_MAX = 20_000
PER_HOME_MAX = 20


class AlertHistory:
    """Alerts by id and by home. `version` rises with every new alert."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, tuple[int, Alert]] = OrderedDict()
        self._homes: dict[str, deque[Alert]] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._all)

    def add(self, alert: Alert) -> bool:
        """Add an alert; False if it is a duplicate."""
        if alert.id in self._all:
            return False
        self.version += 1
        self._all[alert.id] = (self.version, alert)
        self._homes.setdefault(alert.home, deque(maxlen=PER_HOME_MAX)).append(alert)
        if len(self._all) > ALERTS_MAX:
            self._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        _, (_, oldest) = self._all.popitem(last=False)
        alerts = self._homes[oldest.home]
        if alerts and alerts[0].id == oldest.id:
            alerts.popleft()
        if not alerts:
            del self._homes[oldest.home]

    def of_home(self, home: str) -> list[Alert]:
        """The alerts of a home, newest first."""
        return sorted(self._homes.get(home, ()), key=lambda alert: -alert.at)

    def since(self, version: int, count_max: int) -> list[Alert]:
        """The alerts added after `version`, newest first."""
        alerts: list[Alert] = []
        for added_as, alert in reversed(self._all.values()):
            if added_as <= version or len(alerts) == count_max:
                break
            alerts.append(alert)
        return alerts

    def per_minute(self, now_ms: int, minutes: int) -> list[int]:
        """The number of alerts in each of the last minutes, by the time of the reading."""
        first = now_ms // MINUTE_MS - minutes + 1
        counts = [0] * minutes
        for _, alert in self._all.values():
            index = alert.at // MINUTE_MS - first
            if 0 <= index < minutes:
                counts[index] += 1
        return counts

    def count_last_day(self, now_ms: int) -> int:
        return sum(alert.at > now_ms - DAY_MS for _, alert in self._all.values())


def alert_json(alert: Alert) -> dict[str, Any]:
    return {
        "id": alert.id,
        "home": alert.home,
        "kind": alert.kind,
        "sensor": alert.sensor,
        "at": alert.at,
        "since": alert.since,
        "region": alert.region,
        "text": alert.text,
    }
