"""The numbers of the Homes page: one name, one title and one definition each.

The names are the keys of the data, the titles are on the page, and the definitions are shown there
under "What is this?". docs/dashboard.md has the same table; a test compares it with this one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

HUB_SENSORS, HUB_ACTIVITY = "hub `sensors`", "hub `activity`"
DATABASE = "database, then hub `alerts`"


@dataclass(frozen=True, slots=True)
class PageNumber:
    """A number of the page."""

    name: str
    title: str
    meaning: str
    source: str  # where the counted items are stored


NUMBERS: Final = (
    PageNumber(
        "homes_heard",
        "Homes heard",
        "Homes that sent a reading in the last two minutes, by the time at which the hub sensors "
        "received it. Every home sends every minute.",
        HUB_SENSORS,
    ),
    PageNumber(
        "sensor_to_page",
        "Sensor to page",
        "Median age of the activities that arrived in the last ten seconds: from the reading to "
        "the hub activity, and from there to this screen.",
        HUB_ACTIVITY,
    ),
    PageNumber(
        "sensor_to_alert",
        "Sensor to alert",
        "Median time from the reading that raised an alert until the hub alerts received the "
        "alert, with the time by which 99 % had arrived; of the alerts that the hub received in "
        "the last five minutes. For an alert without a reading, such as that of a silent sensor, "
        "the time begins when its condition was met.",
        DATABASE,
    ),
    PageNumber(
        "readings_per_s",
        "Readings",
        "Events per second that the hub sensors received, with duplicates and malformed ones, over "
        "ten updates of the page (by default ten seconds).",
        HUB_SENSORS,
    ),
    PageNumber(
        "activities_per_s",
        "Activities",
        "Events per second that the hub activity received, which are the readings that the stage "
        "sift keeps, over ten updates of the page (by default ten seconds).",
        HUB_ACTIVITY,
    ),
    PageNumber(
        "homes_in_alert",
        "Homes in alert",
        "Homes with at least one open alert. A plus means at least: the page counts the "
        "200,000 newest alerts only.",
        DATABASE,
    ),
    PageNumber(
        "alerts_open",
        "Open alerts",
        "Alerts, of any age, that were not closed. A home can have several. A plus means at least: "
        "the page counts the 200,000 newest alerts only.",
        DATABASE,
    ),
    PageNumber(
        "alerts_day",
        "Alerts in the last day",
        "Alerts, open or closed, that were raised by a reading of the last 24 hours. A plus means "
        "at least: the page counts the 200,000 newest alerts only.",
        DATABASE,
    ),
    PageNumber(
        "homes_by_state",
        "Homes in each state",
        "Every home counts once, in its most severe state, which follows from its open alerts and "
        "from the newest activity of each of its sensors. A home that is heard and has no activity "
        "is quiet.",
        "database, then hubs `sensors`, `activity` and `alerts`",
    ),
    PageNumber(
        "activities_per_minute",
        "Activities per minute",
        "Activities by the minute of their reading and by kind of sensor, without duplicates. The "
        "last minute still grows. Alerts, by the minute of the reading that raised them, use the "
        "scale on the right.",
        "database (without one: hub `activity`, with duplicates)",
    ),
    PageNumber(
        "invalid",
        "Invalid",
        "Events of the hubs activity and alerts that the page could not decode or show, since it "
        "was started.",
        "hubs `activity` and `alerts`",
    ),
)


def numbers_json() -> dict[str, Any]:
    return {number.name: asdict(number) for number in NUMBERS}
