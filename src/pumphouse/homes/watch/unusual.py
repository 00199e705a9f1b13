"""Detects climate readings that differ from the sensor's own recent ones.

A sensor's recent readings define what is usual: their median, and their median distance from it. A
reading many times further away is unusual. Unusual readings are not learned from, or a fire would
soon be usual; but after a long run of them they become the new usual.

    PartitionHistory, ActivityColumns -> find_unusual -> first unusual readings, PartitionHistory
                                         ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.schema import CLIMATE, KINDS
from pumphouse.homes.watch.history import (
    RECENT,
    ActivityColumns,
    Floats,
    Ints,
    Mask,
    PartitionHistory,
    with_sensors,
)

FIRST_CLIMATE: Final = len(KINDS) - len(CLIMATE)
LEARN: Final = 12  # readings before anything is called unusual
FAR: Final = 6.0  # so many times the usual distance
MAD: Final = 1.4826  # makes the median distance comparable to a standard deviation
# A sensor that hardly moves is not alarmed by its own last digit: °C, and percent.
LEAST: Final = np.array([0.5, 2.0])
NEW_NORMAL: Final = 2 * RECENT  # unusual ones in a row, and they are the usual ones


def unusual(
    past: PartitionHistory, heard: ActivityColumns
) -> tuple[NDArray[np.intp], PartitionHistory]:
    """Places of the readings with which something unusual begins."""
    places = np.flatnonzero((heard.kind >= FIRST_CLIMATE) & ~np.isnan(heard.value))
    if not len(places):
        return places, past
    sensor = heard.number[places] * 8 + heard.kind[places]
    past = with_sensors(past, np.unique(sensor))
    row = np.searchsorted(past.sensors, sensor)
    order = np.argsort(row, kind="stable")
    places, row = places[order], row[order]
    memory = RecentReadings(past.recent.copy(), past.count.copy(), past.odd.copy())
    begins = np.zeros(len(places), bool)
    for turn in turns(row):  # the first of each sensor, then the second, ...
        least = LEAST[heard.kind[places[turn]] - FIRST_CLIMATE]
        begins[turn] = memory.take(row[turn], heard.value[places[turn]], least)
    past = replace(past, recent=memory.recent, count=memory.count, odd=memory.odd)
    return np.sort(places[begins]), past


def turns(row: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """Places by how many of the same row came before; `row` is sorted."""
    first = np.searchsorted(row, row)
    number = np.arange(len(row)) - first
    order = np.argsort(number, kind="stable")
    bounds = np.flatnonzero(np.diff(number[order])) + 1
    return np.split(order, bounds)


class RecentReadings:
    """What is usual for each sensor; each call takes one reading of some sensors."""

    def __init__(self, recent: Floats, count: Ints, odd: Ints) -> None:
        self.recent, self.count, self.odd = recent, count, odd

    def take(self, row: NDArray[np.intp], value: Floats, least: Floats) -> Mask:
        """Which of these begin something unusual."""
        far = self.far(row, value, least) & (self.count[row] >= LEARN)
        begins: Mask = far & (self.odd[row] == 0)
        self.odd[row] = np.where(far, self.odd[row] + 1, 0)
        settled = self.odd[row] >= NEW_NORMAL
        self.count[row[settled]] = self.odd[row[settled]] = 0
        usual = row[~far | settled]
        self.recent[usual, self.count[usual] % RECENT] = value[~far | settled]
        self.count[usual] += 1
        return begins

    def far(self, row: NDArray[np.intp], value: Floats, least: Floats) -> Mask:
        known = np.arange(RECENT) < self.count[row][:, None]
        with np.errstate(invalid="ignore"):
            recent = np.where(known, self.recent[row], np.nan)
        recent[self.count[row] == 0] = 0.0
        middle = np.nanmedian(recent, axis=1)
        spread = np.nanmedian(np.abs(recent - middle[:, None]), axis=1)
        found: Mask = np.abs(value - middle) > FAR * np.maximum(MAD * spread, least)
        return found
