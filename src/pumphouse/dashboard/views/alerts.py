"""The history of the newest alerts, without duplicates, and which of them are open.

Alerts of the same incident have the same id, so duplicates are recognised.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.schema import DAY_MS, MINUTE_MS, Alert

ALERTS_MAX = 20_000
PER_HOME_MAX = 20
NEW = AlertState()


@dataclass(frozen=True, slots=True)
class ShownAlert:
    """An alert and its state. `version` is that of the history at its last change."""

    version: int
    alert: Alert
    state: AlertState
    enqueued: int | None = None  # when the hub `alerts` received it
    trace: str | None = None  # the context of its reading; only the database has it

    @property
    def rank(self) -> tuple[bool, int, str]:
        """Open alerts come first, then the newest."""
        return self.state.is_open, self.alert.at, self.alert.id


class AlertHistory:
    """Alerts by id and by home. `version` rises with every new alert and every change of a state.

    An alert that changes moves to the end, so the order is that of the versions.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[str, ShownAlert] = OrderedDict()
        self._homes: dict[str, deque[str]] = {}
        self._open_of_home: Counter[str] = Counter()
        self.version = 0

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, alert_id: str) -> bool:
        return alert_id in self._all

    def find(self, alert_id: str) -> ShownAlert | None:
        return self._all.get(alert_id)

    def add(self, alert: Alert, state: AlertState = NEW, enqueued: int | None = None) -> bool:
        """Add an alert; False if it is a duplicate."""
        if alert.id in self._all:
            return False
        self._put(alert, state, enqueued)
        self._homes.setdefault(alert.home, deque(maxlen=PER_HOME_MAX)).append(alert.id)
        if len(self._all) > ALERTS_MAX:
            self._drop_oldest()
        return True

    def set_state(self, alert_id: str, state: AlertState) -> Alert | None:
        """Set the state of an alert; returns the alert if it changed."""
        before = self._all.get(alert_id)
        if before is None or before.state == state:
            return None
        self._count_open(before, -1)
        self._put(before.alert, state, before.enqueued)
        self._all.move_to_end(alert_id)
        return before.alert

    def _put(self, alert: Alert, state: AlertState, enqueued: int | None) -> None:
        self.version += 1
        self._all[alert.id] = ShownAlert(self.version, alert, state, enqueued)
        self._count_open(self._all[alert.id], 1)

    def _count_open(self, shown: ShownAlert, change: int) -> None:
        if shown.state.is_open:
            self._open_of_home[shown.alert.home] += change

    def _drop_oldest(self) -> None:
        alert_id, oldest = self._all.popitem(last=False)
        self._count_open(oldest, -1)
        ids = self._homes[oldest.alert.home]
        if alert_id in ids:
            ids.remove(alert_id)
        if not ids:
            del self._homes[oldest.alert.home]

    # -- counts

    @property
    def open_count(self) -> int:
        return self._open_of_home.total()

    def open_of_home(self, home: str) -> int:
        return self._open_of_home[home]

    def per_minute(self, now_ms: int, minutes: int) -> list[int]:
        """The number of alerts in each of the last minutes, by the time of the reading."""
        first = now_ms // MINUTE_MS - minutes + 1
        counts = [0] * minutes
        for shown in self._all.values():
            index = shown.alert.at // MINUTE_MS - first
            if 0 <= index < minutes:
                counts[index] += 1
        return counts

    def count_last_day(self, now_ms: int) -> int:
        return sum(shown.alert.at > now_ms - DAY_MS for shown in self._all.values())

    # -- lists

    def all(self) -> Iterable[ShownAlert]:
        return self._all.values()

    def of_home(self, home: str) -> list[ShownAlert]:
        """The alerts of a home, newest first."""
        shown = (self._all[alert_id] for alert_id in self._homes.get(home, ()))
        return sorted(shown, key=lambda each: -each.alert.at)

    def newest(self, count_max: int) -> list[ShownAlert]:
        """The open alerts, newest first, and then the newest closed ones."""
        return heapq.nlargest(count_max, self._all.values(), key=lambda each: each.rank)

    def since(self, version: int, count_max: int) -> list[ShownAlert]:
        """The alerts that changed after `version`, newest change first."""
        changed: list[ShownAlert] = []
        for shown in reversed(self._all.values()):
            if shown.version <= version or len(changed) == count_max:
                break
            changed.append(shown)
        return changed


def alert_json(shown: ShownAlert) -> dict[str, Any]:
    alert, state = shown.alert, shown.state
    return {
        "id": alert.id,
        "home": alert.home,
        "kind": alert.kind,
        "sensor": alert.sensor,
        "at": alert.at,
        "since": alert.since,
        "region": alert.region,
        "text": alert.text,
        "state": state.word,
        "acknowledged_at": state.acknowledged_at,
        "acknowledged_by": state.acknowledged_by,
        "closed_at": state.closed_at,
        "closed_by": state.closed_by,
    }
