"""The data of the Homes page: all homes, and one home in detail.

    HomeStates, AlertHistory, Delays -> homes_json, home_json -> JSON -> page
                               ^^^^^^^^^^^^^^^^^^^^^^ this module

The first message contains one byte per home; later messages contain four bytes for each home whose
state changed.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import numpy as np

from pumphouse.dashboard.views.alerts import AlertHistory, alert_json
from pumphouse.dashboard.views.home_states import (
    LEVEL_WORDS,
    SLOT_MS,
    SLOTS,
    STATE_MEANINGS,
    STATE_WORDS,
    Bytes,
    HomeStates,
    SensorNow,
    regions_of,
)
from pumphouse.homes.schema import KINDS, MODES, REGIONS, SMOKE_ALARM_PPM, home_id, region_of

CHART_MINUTES = 180
RECENT_MINUTES = 3  # late readings change the counts of past minutes
ALERTS_SHOWN = 50
STATE_BITS = 3  # of the four bytes of a changed home


def homes_vocabulary() -> dict[str, Any]:
    """The names and meanings that do not change."""
    return {
        "kinds": list(KINDS),
        "regions": list(REGIONS),
        "states": [
            {"word": word, "meaning": meaning}
            for word, meaning in zip(STATE_WORDS, STATE_MEANINGS, strict=True)
        ],
        "levels": list(LEVEL_WORDS),
        "slot_ms": SLOT_MS,
        "slots": SLOTS,
    }


def homes_json(
    homes: HomeStates, alert_history: AlertHistory, states: Bytes, now_ms: int, *, minutes: int
) -> dict[str, Any]:
    """The figures above the grid, and the last minutes of the chart."""
    return {
        "at": now_ms,
        "size": len(states),
        "known": homes.known,
        "absorbed": homes.absorbed,
        "unreadable": homes.unreadable,
        "states": np.bincount(states, minlength=len(STATE_WORDS)).tolist(),
        "regions": regions_of(states),
        "minutes": [
            [*row, alerts]
            for row, alerts in zip(
                homes.per_minute(now_ms, minutes),
                alert_history.per_minute(now_ms, minutes),
                strict=True,
            )
        ],
        "alerts_day": alert_history.count_last_day(now_ms),
    }


def whole_grid(states: Bytes) -> str:
    return b64encode(states.tobytes()).decode()


def changed_grid(before: Bytes, states: Bytes) -> str:
    """The homes whose state changed: number and state, four bytes each."""
    homes = np.flatnonzero(before != states).astype("<u4")
    return b64encode((homes << STATE_BITS | states[homes]).astype("<u4").tobytes()).decode()


def new_alerts(alert_history: AlertHistory, version: int) -> list[dict[str, Any]]:
    return [alert_json(alert) for alert in alert_history.since(version, ALERTS_SHOWN)]


def find_home(text: str, size: int) -> int | None:
    """The home number from h000042, H42 or 42; None if it is invalid or unknown."""
    digits = text.strip().lower().removeprefix("h")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 6):
        return None
    return int(digits) if int(digits) < size else None


def home_json(
    homes: HomeStates, alert_history: AlertHistory, home: int, now_ms: int
) -> dict[str, Any]:
    """One home: current sensor values, the last day, alerts."""
    state = int(homes.states(now_ms)[home])
    last_reading = int(homes.last_reading[home])
    day_end_ms = (now_ms // SLOT_MS + 1) * SLOT_MS
    return {
        "at": now_ms,
        "home": home_id(home),
        "region": region_of(home),
        "state": state,
        "word": STATE_WORDS[state],
        "heard": last_reading or None,
        "mode": MODES[int(homes.mode[home])] if last_reading else None,
        "sensors": [sensor_json(sensor) for sensor in homes.sensors(home)],
        "day": {
            "from": day_end_ms - SLOTS * SLOT_MS,
            "slot_ms": SLOT_MS,
            **strip(homes, home, now_ms),
        },
        "alerts": [alert_json(alert) for alert in alert_history.of_home(home_id(home))],
    }


def strip(homes: HomeStates, home: int, now_ms: int) -> dict[str, Any]:
    return {"rows": homes.strip(home, now_ms)}


def sensor_json(sensor: SensorNow) -> dict[str, Any]:
    return {
        "kind": sensor.kind,
        "text": sensor_text(sensor),
        "value": sensor.value,
        "level": sensor.level,
        "at": sensor.at,
        "since": sensor.since,
        "battery": sensor.battery,
        "fault": sensor.fault,
    }


def sensor_text(sensor: SensorNow) -> str:
    """The value of a sensor as text."""
    value = sensor.value
    if value is None:
        return f"fault: {sensor.fault}"
    if sensor.kind == "motion":
        return "still" if value == 0 else f"{value:g} movement{'s' * (value != 1)}"
    if sensor.kind in ("door", "window"):
        return "open" if value else "shut"
    if sensor.kind == "glass":
        return "broken" if value else "whole"
    if sensor.kind == "smoke":
        return f"{value:g} ppm" + (", alarm" if value >= SMOKE_ALARM_PPM else "")
    return f"{value:g} " + ("°C" if sensor.kind == "temperature" else "%")
