"""The rule `unusual`: readings that differ from the sensor's own recent ones.

A sensor's recent readings define what is usual: their median, and their median distance from it. A
reading many times further away is unusual. Unusual readings do not change what is usual: otherwise
the heat of a fire would soon be usual. But a long run of unusual readings becomes the new usual.

    PartitionHistory, ActivityColumns -> unusual_starts -> indices, PartitionHistory
                                         ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds, Unusual
from pumphouse.homes.schema import sensor_number
from pumphouse.homes.watch.history import (
    RECENT,
    ActivityColumns,
    Floats,
    Ints,
    Mask,
    PartitionHistory,
    with_sensors,
)

LEARN: Final = 12  # usual readings of a sensor before a reading can be unusual
FAR: Final = 6.0  # an unusual reading is further away than this multiple of the usual distance
MAD: Final = 1.4826  # scales the median distance to a standard deviation
NEW_USUAL: Final = 2 * RECENT  # unusual readings in a row that become the usual ones


def unusual_starts(
    history: PartitionHistory, activities: ActivityColumns, kinds: Kinds = DEFAULT
) -> tuple[NDArray[np.intp], PartitionHistory]:
    """The indices of the readings at which unusual readings begin."""
    least_of = least_distances(kinds)
    has_rule = least_of[activities.kind] > 0
    indices = np.flatnonzero(has_rule & ~np.isnan(activities.value))
    if not len(indices):
        return indices, history
    sensor = sensor_number(activities.number[indices], activities.kind[indices])
    history = with_sensors(history, np.unique(sensor))
    row = np.searchsorted(history.sensors, sensor)
    order = np.argsort(row, kind="stable")
    indices, row = indices[order], row[order]
    recent = RecentReadings(history.recent.copy(), history.count.copy(), history.odd.copy())
    begins = np.zeros(len(indices), bool)
    for batch in one_per_row(row):  # the first of each sensor, then the second, ...
        least = least_of[activities.kind[indices[batch]]]
        begins[batch] = recent.add(row[batch], activities.value[indices[batch]], least)
    history = replace(history, recent=recent.recent, count=recent.count, odd=recent.odd)
    return np.sort(indices[begins]), history


def least_distances(kinds: Kinds) -> Floats:
    """The smallest usual distance of each kind, 0 without a rule. Without it, a change in the last
    digit of a sensor that was constant would be unusual."""
    least = np.zeros(len(kinds.names))
    for kind, rule in kinds.rules(Unusual):
        least[kind] = rule.least
    return least


def one_per_row(row: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Indices in batches that contain each row at most once; `row` is sorted."""
    first = np.searchsorted(row, row)
    number = np.arange(len(row)) - first
    order = np.argsort(number, kind="stable")
    bounds = np.flatnonzero(np.diff(number[order])) + 1
    return np.split(order, bounds)


class RecentReadings:
    """The recent usual readings of each sensor, and its run of unusual ones (`odd`: their number).

    A call of `add` adds at most one reading per sensor.
    """

    def __init__(self, recent: Floats, count: Ints, odd: Ints) -> None:
        self.recent, self.count, self.odd = recent, count, odd

    def add(self, row: NDArray[np.intp], value: Floats, least: Floats) -> Mask:
        """Which of these readings begin a run of unusual ones."""
        far = self.is_far(row, value, least) & (self.count[row] >= LEARN)
        begins: Mask = far & (self.odd[row] == 0)
        self.odd[row] = np.where(far, self.odd[row] + 1, 0)
        settled = self.odd[row] >= NEW_USUAL
        self.count[row[settled]] = self.odd[row[settled]] = 0
        usual = row[~far | settled]
        self.recent[usual, self.count[usual] % RECENT] = value[~far | settled]
        self.count[usual] += 1
        return begins

    def is_far(self, row: NDArray[np.intp], value: Floats, least: Floats) -> Mask:
        known = np.arange(RECENT) < self.count[row][:, None]
        with np.errstate(invalid="ignore"):
            recent = np.where(known, self.recent[row], np.nan)
        recent[self.count[row] == 0] = 0.0
        middle = np.nanmedian(recent, axis=1)
        spread = np.nanmedian(np.abs(recent - middle[:, None]), axis=1)
        is_far: Mask = np.abs(value - middle) > FAR * np.maximum(MAD * spread, least)
        return is_far
