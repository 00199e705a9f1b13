"""Applies incidents to the values of the sensors in one minute.

values of a minute, IncidentColumns -> apply_incidents -> changed values, silent sensors
                                       ^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import numpy as np

from pumphouse.homes.simulator import incidents as inc
from pumphouse.homes.simulator.hashed_random import Flags, Indices, Ints
from pumphouse.homes.simulator.incidents import IncidentColumns


def apply_incidents(
    incidents: IncidentColumns, rows: Ints, minute: int, value: Ints, since: Ints
) -> Flags | None:
    """Change the values of homes with incidents; returns which sensors are silent, if any."""
    if not len(incidents) or not len(rows):
        return None
    now = incidents.where(incidents.start <= minute)
    order = np.argsort(rows, kind="stable")
    nearest = np.searchsorted(rows, now.row, sorter=order)
    requested = nearest < len(rows)
    indices = order[np.where(requested, nearest, 0)]
    requested &= rows[indices] == now.row
    # A home may have an incident two days ago and one today. Days are in order of time, so the
    # later incident is applied last.
    now, indices = now.where(requested), indices[requested]
    _apply_alarms(now, indices, minute, value, since)
    _apply_intruders(now, indices, minute, value, since)
    return _silent_sensors(now, indices, minute, value.shape)


def _apply_alarms(
    now: IncidentColumns, indices: Indices, minute: int, value: Ints, since: Ints
) -> None:
    """A broken pane, a fire, an open window; afterwards the sensor is quiet again."""
    visible = now.kind != inc.SILENT_SENSOR
    active = visible & (minute < now.end)
    smoke = inc.smoke_of(now.start, now.end, now.peak, minute)
    values = np.where(now.sensor == inc.SMOKE, smoke, 1)
    value[indices[active], now.sensor[active]] = values[active]
    since[indices[active], now.sensor[active]] = now.start[active]
    ended = visible & ~active
    cells = indices[ended], now.sensor[ended]
    since[cells] = np.maximum(since[cells], now.end[ended])


def _apply_intruders(
    now: IncidentColumns, indices: Indices, minute: int, value: Ints, since: Ints
) -> None:
    """Movements of an intruder, in homes where no other person moves."""
    alone = (now.kind == inc.BREAK_IN) & (value[indices, inc.MOTION] == 0)
    inside = alone & (minute < now.intruder_until)
    value[indices[inside], inc.MOTION] = 2 + minute % 5
    since[indices[inside], inc.MOTION] = now.start[inside]
    gone = alone & ~inside
    cells = indices[gone], inc.MOTION
    since[cells] = np.maximum(since[cells], now.intruder_until[gone])


def _silent_sensors(
    now: IncidentColumns, indices: Indices, minute: int, shape: tuple[int, ...]
) -> Flags | None:
    mute = (now.kind == inc.SILENT_SENSOR) & (minute < now.end)
    if not mute.any():
        return None
    silent = np.zeros(shape, np.bool_)
    for index, sensor in zip(indices[mute], now.sensor[mute], strict=True):
        silent[index, slice(None) if sensor == inc.ALL else sensor] = True
    return silent
