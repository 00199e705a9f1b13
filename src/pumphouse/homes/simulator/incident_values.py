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
    """Change the values of homes with incidents; returns which sensors are silent, if any.

    `rows` has the index of the home of each row of `value` and `since`.
    """
    if not len(incidents) or not len(rows):
        return None
    begun = incidents.where(incidents.start <= minute)
    order = np.argsort(rows, kind="stable")
    insertion = np.searchsorted(rows, begun.row, sorter=order)
    in_rows = insertion < len(rows)
    indices = order[np.where(in_rows, insertion, 0)]
    in_rows &= rows[indices] == begun.row
    # A home may have an incident two days ago and one today. The incidents are in the order of
    # their days, so the later one is applied last.
    begun, indices = begun.where(in_rows), indices[in_rows]
    _apply_alarms(begun, indices, minute, value, since)
    _apply_intruders(begun, indices, minute, value, since)
    return _silent_sensors(begun, indices, minute, value.shape)


def _apply_alarms(
    begun: IncidentColumns, indices: Indices, minute: int, value: Ints, since: Ints
) -> None:
    """Apply break-ins, fires and open windows to the values of their sensors.

    After an incident has ended, `since` is not before its end.
    """
    visible = begun.kind != inc.SILENT_SENSOR
    active = visible & (minute < begun.end)
    smoke = inc.smoke_of(begun.start, begun.end, begun.peak, minute)
    values = np.where(begun.sensor == inc.SMOKE, smoke, 1)
    value[indices[active], begun.sensor[active]] = values[active]
    since[indices[active], begun.sensor[active]] = begun.start[active]
    ended = visible & ~active
    cells = indices[ended], begun.sensor[ended]
    since[cells] = np.maximum(since[cells], begun.end[ended])


def _apply_intruders(
    begun: IncidentColumns, indices: Indices, minute: int, value: Ints, since: Ints
) -> None:
    """Movements of an intruder, in homes where no other person moves."""
    alone = (begun.kind == inc.BREAK_IN) & (value[indices, inc.MOTION] == 0)
    inside = alone & (minute < begun.intruder_until)
    value[indices[inside], inc.MOTION] = 2 + minute % 5
    since[indices[inside], inc.MOTION] = begun.start[inside]
    gone = alone & ~inside
    cells = indices[gone], inc.MOTION
    since[cells] = np.maximum(since[cells], begun.intruder_until[gone])


def _silent_sensors(
    begun: IncidentColumns, indices: Indices, minute: int, shape: tuple[int, ...]
) -> Flags | None:
    mute = (begun.kind == inc.SILENT_SENSOR) & (minute < begun.end)
    if not mute.any():
        return None
    silent = np.zeros(shape, np.bool_)
    for index, sensor in zip(indices[mute], begun.sensor[mute], strict=True):
        silent[index, slice(None) if sensor == inc.ALL else sensor] = True
    return silent
