"""Activity bodies, home states and alerts for the tests of the views."""

from __future__ import annotations

from pumphouse.dashboard.views import home_states as home_states
from pumphouse.dashboard.views.columns import read_columns
from pumphouse.dashboard.views.home_states import HomeStates
from pumphouse.homes.schema import (
    MINUTE_MS,
    Activity,
    Alert,
    Reading,
    encode_activity,
    home_id,
    region_of,
)

NOW = 1_792_031_580_000


def body(
    home: int = 42,
    sensor: str = "door",
    ago_min: float = 0,
    value: float | None = 0,
    *,
    mode: str = "home",
    battery: int = 87,
    fault: str | None = None,
) -> bytes:
    at = int(NOW - ago_min * MINUTE_MS)
    reading = Reading(
        home_id(home), sensor, at // MINUTE_MS, at, value, at - 5000, mode, battery, fault
    )
    return encode_activity(Activity(reading, "change", region_of(home)))


def states_from(*bodies: bytes, homes: int = 100) -> HomeStates:
    states = HomeStates(homes)
    states.add(read_columns(bodies), NOW)
    return states


def alert(home: int, since: int = 1000, at: int = NOW, kind: str = "break-in") -> Alert:
    return Alert(home_id(home), kind, "door", at, since, region_of(home), "Door opened while away")
