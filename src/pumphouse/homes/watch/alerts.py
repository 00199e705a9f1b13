"""Alerts as columns, and their fingerprints.

ActivityColumns -> alerts_of -> Alerts -> as_alerts -> Alert
                                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds
from pumphouse.homes.schema import (
    ALERT_KINDS,
    PER_SENSOR,
    Alert,
    home_id,
    home_number,
    region_of,
)
from pumphouse.homes.watch.history import ActivityColumns, Ints, Mask, Times, UInt64s

WHOLE_HOME: Final = 7  # in place of a sensor, in the fingerprint of an alert about a home


@dataclass(frozen=True, slots=True)
class Alerts:
    """Alerts as columns."""

    kind: Ints  # index of the kind of alert
    number: Ints  # of the home
    sensor: Ints  # index of the kind of sensor
    at: Times
    since: Times

    def __len__(self) -> int:
        return len(self.at)

    def where(self, condition: Mask | NDArray[np.intp]) -> Alerts:
        return Alerts(*(getattr(self, f.name)[condition] for f in fields(self)))

    def fingerprints(self) -> UInt64s:
        return fingerprint(self.kind, self.number, self.sensor, self.since)

    def as_alerts(self, kinds: Kinds = DEFAULT) -> list[Alert]:
        columns = (self.kind, self.number, self.sensor, self.at, self.since)
        return [
            as_alert(kind, number, sensor, at, since, kinds)
            for kind, number, sensor, at, since in zip(*(c.tolist() for c in columns), strict=True)
        ]


_NO_INTS: Final = np.empty(0, np.int32)
_NO_TIMES: Final = np.empty(0, np.int64)
NO_ALERTS: Final = Alerts(_NO_INTS, _NO_INTS, _NO_INTS, _NO_TIMES, _NO_TIMES)


def as_alert(
    kind: int, number: int, sensor: int, at: int, since: int, kinds: Kinds = DEFAULT
) -> Alert:
    alert, name = kinds.alert_names[kind], kinds.names[sensor]
    text = kinds.texts[alert, name]
    return Alert(home_id(number), alert, name, at, since, region_of(number), text)


def concatenated(parts: list[Alerts]) -> Alerts:
    columns = [[getattr(part, f.name) for part in [NO_ALERTS, *parts]] for f in fields(Alerts)]
    return Alerts(*map(np.concatenate, columns))


def alerts_of(kind: int | Ints, activities: ActivityColumns, since: Times | None = None) -> Alerts:
    """An alert for each activity; `kind` is the kind of all alerts, or of each."""
    return Alerts(
        np.broadcast_to(np.asarray(kind, np.int32), len(activities)),
        activities.number,
        activities.kind,
        activities.at,
        activities.since if since is None else since,
    )


def fingerprint(kind: Ints, number: Ints, sensor: Ints, since: Times) -> UInt64s:
    """The id of an alert as a 64-bit hash. The first sixteen kinds of each sort take four bits."""
    per_sensor = np.isin(kind, [ALERT_KINDS.index(name) for name in PER_SENSOR])
    own = np.where(sensor < WHOLE_HOME, sensor, sensor + 1)
    subject = np.where(per_sensor, own, WHOLE_HOME).astype(np.uint64)
    alert, low = kind.astype(np.uint64), np.uint64(15)
    words = number.astype(np.uint64) << np.uint64(8)
    words |= (alert & low) << np.uint64(4) | subject & low
    words |= (alert & ~low) << np.uint64(40) | (subject & ~low) << np.uint64(32)
    return mixed(mixed(words) ^ since.astype(np.uint64))


def fingerprints_of(alerts: Sequence[Alert], kinds: Kinds = DEFAULT) -> UInt64s:
    """The fingerprints of alerts whose kinds are known."""
    return fingerprint(
        np.array([kinds.alert_names.index(alert.kind) for alert in alerts], np.int32),
        np.array([home_number(alert.home) for alert in alerts], np.int32),
        np.array([kinds.names.index(alert.sensor) for alert in alerts], np.int32),
        np.array([alert.since for alert in alerts], np.int64),
    )


def mixed(words: UInt64s) -> UInt64s:
    """The final steps of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
