"""The data of the Homes page: all homes, and one home in detail.

    HomeStates, AlertHistory -> homes_json, home_json -> JSON -> page
                                ^^^^^^^^^^^^^^^^^^^^^ this module

The first message contains one byte per home; later messages contain four bytes for each home whose
state changed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from pumphouse.dashboard.views.alerts import AlertHistory, alert_json
from pumphouse.dashboard.views.home_states import (
    ALERT,
    LEVEL_WORDS,
    SLOT_MS,
    SLOTS,
    STATE_MEANINGS,
    STATE_WORDS,
    Bytes,
    HomeStates,
    SensorNow,
    regions_of,
    strips_of,
)
from pumphouse.dashboard.views.numbers import numbers_json
from pumphouse.dashboard.views.recorded_day import Levels, merged_strip
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import (
    MINUTE_MS,
    MODES,
    REGIONS,
    home_id,
    region_of,
)

CHART_MINUTES = 180
ALERTS_SHOWN = 50
STATE_BITS = 3  # low bits of a changed home; the other 29 bits are its number


def homes_vocabulary(kinds: Kinds = DEFAULT) -> dict[str, Any]:
    """The constant texts: names of sensors, regions and levels, and the meanings of states."""
    return {
        "kinds": list(kinds.names),
        "charted": strips_of(kinds),  # indices of kinds
        "regions": list(REGIONS),
        "states": [
            {"name": name, "word": name, "meaning": meaning}  # word is deprecated
            for name, meaning in zip(STATE_WORDS, STATE_MEANINGS, strict=True)
        ],
        "levels": list(LEVEL_WORDS),
        "slot_ms": SLOT_MS,
        "slots": SLOTS,
        "numbers": numbers_json(),
        "rules": {alert.name: alert.rule for alert in kinds.alerts},
        "urgent": [alert.name for alert in kinds.alerts if alert.urgent],
    }


MinuteRow = list[int]  # start of a minute, activities of each kind of sensor, alerts


def recorded_minutes(
    counts: Mapping[tuple[int, str], int],
    now_ms: int,
    minutes: int,
    kinds: Kinds = DEFAULT,
) -> list[MinuteRow]:
    """Rows like those of HomeStates.per_minute, from the counts in the database."""
    last = now_ms // MINUTE_MS
    starts = [number * MINUTE_MS for number in range(last - minutes + 1, last + 1)]
    return [[start, *(counts.get((start, kind), 0) for kind in kinds.names)] for start in starts]


def with_alerts(rows: list[MinuteRow], alert_history: AlertHistory, now_ms: int) -> list[MinuteRow]:
    """The rows of the last minutes with the number of alerts as a last column."""
    alerts = alert_history.per_minute(now_ms, len(rows))
    return [[*row, count] for row, count in zip(rows, alerts, strict=True)]


class SentMinutes:
    """The rows that a browser has. A late activity can change any minute of the chart."""

    def __init__(self) -> None:
        self._sent: dict[int, MinuteRow] = {}

    def take_changed(self, rows: list[MinuteRow]) -> list[MinuteRow]:
        changed = [row for row in rows if self._sent.get(row[0]) != row]
        self._sent = {row[0]: row for row in rows}
        return changed


def homes_json(
    homes: HomeStates, alert_history: AlertHistory, states: Bytes, now_ms: int
) -> dict[str, Any]:
    """The numbers of homes and alerts; views/numbers.py defines them."""
    return {
        "at": now_ms,
        "size": len(states),
        "invalid": homes.unreadable,
        "homes_by_state": np.bincount(states, minlength=len(STATE_WORDS)).tolist(),
        "regions": regions_of(states),
        "homes_in_alert": int(np.count_nonzero(states == ALERT)),
        "alerts_open": alert_history.open_count,
        "alerts_day": alert_history.count_last_day(now_ms),
        "at_least": at_least(alert_history, now_ms),
    }


def at_least(alert_history: AlertHistory, now_ms: int) -> list[str]:
    """The numbers that are lower bounds, because some alerts were left out."""
    of_open = ["homes_in_alert", "alerts_open"] if alert_history.lacks_open else []
    return of_open + ["alerts_day"] * alert_history.lacks_day(now_ms)


def whole_grid(states: Bytes) -> str:
    return b64encode(states.tobytes()).decode()


def changed_grid(before: Bytes, states: Bytes) -> str:
    """The homes whose state changed: number and state, four bytes each."""
    homes = np.flatnonzero(before != states).astype("<u4")
    return b64encode((homes << STATE_BITS | states[homes]).astype("<u4").tobytes()).decode()


def new_alerts(alert_history: AlertHistory, version: int) -> list[dict[str, Any]]:
    """The alerts that changed after a version; at first the newest, open ones before closed."""
    if version == 0:
        return [alert_json(shown) for shown in alert_history.newest(ALERTS_SHOWN)]
    return [alert_json(shown) for shown in alert_history.since(version, ALERTS_SHOWN)]


def find_home(text: str, size: int) -> int | None:
    """The home number from h000042, H42 or 42; None if it is invalid or unknown."""
    digits = text.strip().lower().removeprefix("h")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 6):
        return None
    return int(digits) if int(digits) < size else None


def home_json(
    homes: HomeStates,
    alert_history: AlertHistory,
    home: int,
    now_ms: int,
    state: int,
    recorded: Levels | None = None,
) -> dict[str, Any]:
    """One home: its state, current sensor values, the last day, alerts."""
    last_reading = int(homes.last_reading[home])
    day_end_ms = (now_ms // SLOT_MS + 1) * SLOT_MS
    return {
        "at": now_ms,
        "home": home_id(home),
        "region": region_of(home),
        "state": state,
        "state_name": STATE_WORDS[state],
        "last_reading": last_reading or None,
        "word": STATE_WORDS[state],  # deprecated
        "heard": last_reading or None,  # deprecated
        "mode": MODES[int(homes.mode[home])] if last_reading else None,
        "sensors": [sensor_json(sensor, homes.kinds) for sensor in homes.sensors(home)],
        "day": {
            "from": day_end_ms - SLOTS * SLOT_MS,
            "slot_ms": SLOT_MS,
            "rows": merged_strip(homes.strip(home, now_ms), recorded or {}, now_ms),
        },
        "alerts": [alert_json(alert) for alert in alert_history.of_home(home_id(home))],
    }


def sensor_json(sensor: SensorNow, kinds: Kinds = DEFAULT) -> dict[str, Any]:
    return {
        "kind": sensor.kind,
        "text": sensor_text(sensor, kinds),
        "value": sensor.value,
        "level": sensor.level,
        "at": sensor.at,
        "since": sensor.since,
        "battery": sensor.battery,
        "fault": sensor.fault,
    }


def sensor_text(sensor: SensorNow, kinds: Kinds = DEFAULT) -> str:
    """The value of a sensor as text."""
    value, kind = sensor.value, kinds.by_name.get(sensor.kind)
    if value is None:
        return f"fault: {sensor.fault}"
    if kind is None:
        return f"{value:g}"
    text = kind.quiet_text if kind.quiet.contains(value) else kind.active_text
    if text:
        return text
    if kind.name == "motion":
        return f"{value:g} movement{'s' * (value != 1)}"
    alarm = any(values.contains(value) for values in kind.alarms())
    return f"{value:g} {kind.unit}".rstrip() + ", alarm" * alarm
