"""One alert in detail: its rule, its steps with their times, and the activities around it.

RecordedAlert, RecordedActivity -> alert_details_json -> JSON -> page
                                   ^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pumphouse.dashboard.views.alerts import ShownAlert, alert_json
from pumphouse.dashboard.views.home_states import SensorNow
from pumphouse.dashboard.views.homes import sensor_text
from pumphouse.errors import OptionError
from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.record.recorded import RecordedActivity
from pumphouse.homes.schema import MINUTE_MS, Alert
from pumphouse.homes.trace_text import read_text

AROUND_MS = 10 * MINUTE_MS  # before and after the alert
AROUND_MAX = 200
NAME_CHARS_MAX = 60
TEXT_CHARS_MAX = 60  # of a field of an activity; the database may have any text


def raised_by(alert: Alert, activities: Sequence[RecordedActivity]) -> RecordedActivity | None:
    """The activity that raised the alert. A silent sensor has none."""
    for activity in activities:
        if (activity.sensor, activity.at) == (alert.sensor, alert.at):
            return activity
    return None


def alert_details_json(
    shown: ShownAlert,
    activities: Sequence[RecordedActivity],
    sensors_ms: int | None,
    *,
    can_change: bool,
    kinds: Kinds = DEFAULT,
) -> dict[str, Any]:
    """All about an alert. `sensors_ms` is when the hub `sensors` received its reading."""
    alert = shown.alert
    return {
        "alert": alert_json(shown),
        "rule": next((each.rule for each in kinds.alerts if each.name == alert.kind), ""),
        "trace": trace_id(shown.trace),
        "steps": steps(shown, raised_by(alert, activities), sensors_ms),
        "activities": [activity_json(alert, each, kinds) for each in nearest(alert, activities)],
        "can_change": can_change,
    }


def trace_id(text: str | None) -> str | None:
    context = read_text(text)
    return None if context is None else context.trace_id


def nearest(alert: Alert, activities: Sequence[RecordedActivity]) -> list[RecordedActivity]:
    """At most AROUND_MAX activities, those nearest to the alert in time, in order."""
    by_distance = sorted(activities, key=lambda activity: abs(activity.at - alert.at))
    return sorted(by_distance[:AROUND_MAX], key=lambda activity: (activity.at, activity.sensor))


def steps(
    shown: ShownAlert, activity: RecordedActivity | None, sensors_ms: int | None
) -> list[dict[str, Any]]:
    """The steps of an alert, in order. An unknown time is None."""
    state = shown.state
    sifted_ms = None if activity is None else activity.enqueued
    return [
        step("Reading taken", shown.alert.at, "time of the reading, or of the rule without one"),
        step("Reading sent", sensors_ms, "received by the hub sensors"),
        step("Sifted", sifted_ms, "received by the hub activity"),
        step("Alert raised", shown.enqueued, "received by the hub alerts"),
        step("Row written", state.recorded, "stored in the database"),
        step("Acknowledged", state.acknowledged_at, by(state.acknowledged_by)),
        step("Closed", state.closed_at, by(state.closed_by)),
    ]


def step(name: str, at: int | None, note: str) -> dict[str, Any]:
    return {"name": name, "at": at, "note": note}


def by(name: str | None) -> str:
    return f"by {name}" if name else ""


def activity_json(
    alert: Alert, activity: RecordedActivity, kinds: Kinds = DEFAULT
) -> dict[str, Any]:
    now = SensorNow(
        activity.sensor, activity.at, activity.at, activity.value, 0, activity.fault or "", 0
    )
    return {
        "at": activity.at,
        "seq": activity.seq,  # with the sensor it identifies a reading of the home
        "sensor": (activity.sensor or "")[:TEXT_CHARS_MAX],
        "text": sensor_text(now, kinds)[:TEXT_CHARS_MAX],
        "mode": (activity.mode or "")[:TEXT_CHARS_MAX],
        "why": (activity.why or "")[:TEXT_CHARS_MAX],
        "raised": (activity.sensor, activity.at) == (alert.sensor, alert.at),
    }


def name_from(fields: Any) -> str:
    """The name of the person who acknowledges or closes an alert. Raises OptionError if invalid."""
    name = fields.get("by")
    if not isinstance(name, str) or not name.strip():
        raise OptionError("enter your name: it is kept with the alert")
    if len(name) > NAME_CHARS_MAX or not name.isprintable():
        raise OptionError(f"invalid name: use at most {NAME_CHARS_MAX} printable characters")
    return name.strip()
