"""The alerts that were raised: each once, the newest kept.

The same incident has the same id, so one that is read twice is written down once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

from pumphouse.homes.schema import DAY_MS, MINUTE_MS, Alert

ALERTS_MAX = 20_000
PER_HOME_MAX = 20


class AlertHistory:
    """Alerts by id and by home. `version` rises with each that is new."""

    def __init__(self) -> None:
        self._all: OrderedDict[str, tuple[int, Alert]] = OrderedDict()
        self._homes: dict[str, deque[Alert]] = {}
        self.version = 0

    def __len__(self) -> int:
        return len(self._all)

    def note(self, alert: Alert) -> bool:
        """Write an alert down; False if it stands there already."""
        if alert.id in self._all:
            return False
        self.version += 1
        self._all[alert.id] = (self.version, alert)
        self._homes.setdefault(alert.home, deque(maxlen=PER_HOME_MAX)).append(alert)
        if len(self._all) > ALERTS_MAX:
            self._forget()
        return True

    def _forget(self) -> None:
        _, (_, oldest) = self._all.popitem(last=False)
        here = self._homes[oldest.home]
        if here and here[0].id == oldest.id:
            here.popleft()
        if not here:
            del self._homes[oldest.home]

    def of(self, home: str) -> list[Alert]:
        """The alerts of a home, the newest first."""
        return sorted(self._homes.get(home, ()), key=lambda alert: -alert.at)

    def since(self, version: int, most: int) -> list[Alert]:
        """What was written down after `version`, the newest first."""
        found: list[Alert] = []
        for number, alert in reversed(self._all.values()):
            if number <= version or len(found) == most:
                break
            found.append(alert)
        return found

    def per_minute(self, now_ms: int, minutes: int) -> list[int]:
        """How many were raised in each of the last minutes, by the time of their reading."""
        first = now_ms // MINUTE_MS - minutes + 1
        counts = [0] * minutes
        for _, alert in self._all.values():
            place = alert.at // MINUTE_MS - first
            if 0 <= place < minutes:
                counts[place] += 1
        return counts

    def of_the_day(self, now_ms: int) -> int:
        return sum(alert.at > now_ms - DAY_MS for _, alert in self._all.values())


def alert_shown(alert: Alert) -> dict[str, Any]:
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
