"""The history of the newest alerts, without duplicates, and which of them are open.

Alerts of the same incident have the same id, so duplicates are recognised. The newest ALERTS_MAX
can be shown; of older ones only what is counted is kept, up to COUNTED_MAX alerts together. Closed
alerts older than a day are left out first. Beyond COUNTED_MAX the counts are lower bounds.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pumphouse.homes.record.alert_states import AlertState
from pumphouse.homes.schema import DAY_MS, MINUTE_MS, Alert

ALERTS_MAX = 20_000
COUNTED_MAX = 200_000  # with those that can be shown
PER_HOME_MAX = 20
TIDY_EVERY = 1_000  # changes between two searches for closed alerts older than a day
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


@dataclass(frozen=True, slots=True)
class CountedAlert:
    """What is counted of an alert that is not shown."""

    home: str
    at: int
    is_open: bool

    def counts(self, now_ms: int) -> bool:
        """Whether a number of the page includes it."""
        return self.is_open or self.at > now_ms - DAY_MS


class AlertHistory:
    """Alerts by id and by home. `version` rises with every new alert and every change of a state.

    An alert that changes moves to the end, so the order is that of the versions.
    """

    def __init__(self) -> None:
        self._all: OrderedDict[str, ShownAlert] = OrderedDict()
        self._counted: dict[str, CountedAlert] = {}  # the others, oldest first
        self._homes: dict[str, deque[str]] = {}
        self._open_of_home: Counter[str] = Counter()
        self.version = 0
        self._tidied = -TIDY_EVERY  # the version at the last search for old closed alerts
        self.lacks_open = False  # whether an open alert is not counted
        self._lacks_day_until_ms = 0  # until then, an alert of the last day is not counted

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, alert_id: str) -> bool:
        return alert_id in self._all or alert_id in self._counted

    def find(self, alert_id: str) -> ShownAlert | None:
        return self._all.get(alert_id)

    def add(
        self, alert: Alert, state: AlertState = NEW, enqueued: int | None = None
    ) -> tuple[str, ...]:
        """Add an alert; returns the homes whose open alerts may have changed, none for a duplicate.

        If there are too many alerts, the oldest are only counted.
        """
        if alert.id in self:
            return ()
        self._put(alert, state, enqueued)
        self._homes.setdefault(alert.home, deque(maxlen=PER_HOME_MAX)).append(alert.id)
        return (alert.home, *self._leave_out(alert.at))

    def count(self, alert_id: str, counted: CountedAlert) -> None:
        """Count an alert that is older than the shown ones. Add the shown alerts afterwards."""
        if alert_id in self._counted:
            return
        if alert_id in self._all:
            self._remove(self._all[alert_id])
        self._counted[alert_id] = counted
        self._open_of_home[counted.home] += counted.is_open

    def left_out(self, now_ms: int) -> None:
        """Note that the database has more alerts than were added and counted."""
        self.lacks_open = True
        self._lacks_day_until_ms = now_ms + DAY_MS

    def set_state(self, alert_id: str, state: AlertState) -> str | None:
        """Set the state of an alert; returns its home if it changed."""
        if alert_id in self._counted:
            return self._set_counted(alert_id, state.is_open)
        before = self._all.get(alert_id)
        if before is None or before.state == state:
            return None
        self._count_open(before, -1)
        self._put(before.alert, state, before.enqueued)
        self._all.move_to_end(alert_id)
        return before.alert.home

    def _set_counted(self, alert_id: str, is_open: bool) -> str | None:
        before = self._counted[alert_id]
        if before.is_open == is_open:
            return None
        self._counted[alert_id] = replace(before, is_open=is_open)
        self._open_of_home[before.home] += 1 if is_open else -1
        return before.home

    def _put(self, alert: Alert, state: AlertState, enqueued: int | None) -> None:
        self.version += 1
        self._all[alert.id] = ShownAlert(self.version, alert, state, enqueued)
        self._count_open(self._all[alert.id], 1)

    def _count_open(self, shown: ShownAlert, change: int) -> None:
        if shown.state.is_open:
            self._open_of_home[shown.alert.home] += change

    def _leave_out(self, newest_ms: int) -> list[str]:
        """Only count the oldest alerts if there are too many; returns the homes of those that are
        not counted any more."""
        if len(self._all) > ALERTS_MAX and self.version - self._tidied >= TIDY_EVERY:
            self._tidied = self.version
            self._forget_old(newest_ms)
        while len(self._all) > ALERTS_MAX:
            oldest = next(iter(self._all.values()))
            self._remove(oldest)
            alert = oldest.alert
            self.count(alert.id, CountedAlert(alert.home, alert.at, oldest.state.is_open))
        return list(self._uncounted())

    def _forget_old(self, newest_ms: int) -> None:
        """Remove the closed alerts that are older than a day."""
        for shown in list(self._all.values()):
            if not shown.state.is_open and shown.alert.at <= newest_ms - DAY_MS:
                self._remove(shown)
        self._counted = {
            alert_id: each for alert_id, each in self._counted.items() if each.counts(newest_ms)
        }

    def _uncounted(self) -> Iterator[str]:
        """Forget the oldest alerts while more than COUNTED_MAX are counted."""
        while len(self._all) + len(self._counted) > COUNTED_MAX:
            oldest = self._counted.pop(next(iter(self._counted)))
            self._open_of_home[oldest.home] -= oldest.is_open
            self.lacks_open |= oldest.is_open
            self._lacks_day_until_ms = max(self._lacks_day_until_ms, oldest.at + DAY_MS)
            yield oldest.home

    def _remove(self, shown: ShownAlert) -> None:
        alert_id, home = shown.alert.id, shown.alert.home
        del self._all[alert_id]
        self._count_open(shown, -1)
        ids = self._homes[home]
        if alert_id in ids:
            ids.remove(alert_id)
        if not ids:
            del self._homes[home]

    # -- counts

    def lacks_day(self, now_ms: int) -> bool:
        """Whether an alert of the last day is not counted."""
        return now_ms < self._lacks_day_until_ms

    @property
    def open_count(self) -> int:
        return self._open_of_home.total()

    def open_of_home(self, home: str) -> int:
        return self._open_of_home[home]

    def per_minute(self, now_ms: int, minutes: int) -> list[int]:
        """The number of alerts in each of the last minutes, by the time of the reading."""
        first = now_ms // MINUTE_MS - minutes + 1
        counts = [0] * minutes
        for at in self._times():
            index = at // MINUTE_MS - first
            if 0 <= index < minutes:
                counts[index] += 1
        return counts

    def count_last_day(self, now_ms: int) -> int:
        return sum(at > now_ms - DAY_MS for at in self._times())

    def _times(self) -> Iterator[int]:
        """When the readings were taken that raised the alerts."""
        yield from (shown.alert.at for shown in self._all.values())
        yield from (each.at for each in self._counted.values())

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
        "state": state.name,
        "acknowledged_at": state.acknowledged_at,
        "acknowledged_by": state.acknowledged_by,
        "closed_at": state.closed_at,
        "closed_by": state.closed_by,
    }
