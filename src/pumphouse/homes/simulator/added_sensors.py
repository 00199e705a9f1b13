"""Simulates the kinds of sensors that a file adds: quiet values, and incidents of hours at most.

    Kinds -> AddedSensors.of -> set_values: a minute of many homes, incidents -> the ground truth
             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Their incidents do not depend on what the simulated people do. Each sensor has at most one incident
in two days, so two incidents of a sensor never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pumphouse.homes.kinds.model import Kind, Kinds, Silence, Simulated
from pumphouse.homes.schema import MINUTE_MS, SENSORS, SILENT_MS
from pumphouse.homes.simulator.hashed_random import (
    Flags,
    Ints,
    UInt64s,
    below,
    quarters,
    random_bits,
    with_small_probability,
)
from pumphouse.homes.simulator.people import DAY

VALUE, CHOICE, DETAILS = range(80, 83)  # purposes of random numbers
PER_HOMES = 1000
VISIBLE_DAYS = 3  # as for other incidents


@dataclass(frozen=True, slots=True)
class AddedSensors:
    """The simulated kinds after the five of every home, in the order of their columns."""

    kinds: tuple[Kind, ...]

    @classmethod
    def of(cls, kinds: Kinds) -> AddedSensors:
        return cls(tuple(kind for kind in kinds.kinds if kind.simulated is not None))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(kind.name for kind in self.kinds)

    def columns(self) -> Iterator[tuple[int, Simulated]]:
        """The column of each kind among all sensors of a home."""
        for index, kind in enumerate(self.kinds):
            assert kind.simulated is not None
            yield len(SENSORS) + index, kind.simulated

    def silent_minutes(self, column: int) -> int | None:
        """After how many minutes a silent sensor raises an alert; None: never."""
        if column < len(SENSORS):
            return SILENT_MS // MINUTE_MS
        rules = self.kinds[column - len(SENSORS)].rules
        silent = [rule.after_ms for rule in rules if isinstance(rule, Silence)]
        return silent[0] // MINUTE_MS if silent else None

    def is_alarm(self, value: Ints) -> Flags:
        """Which values, of homes x sensors, are in the range of a threshold."""
        alarm = np.zeros(value.shape, np.bool_)
        for index, kind in enumerate(self.kinds, len(SENSORS)):
            for values in kind.alarms():
                alarm[:, index] |= values.contains(value[:, index])
        return alarm


@dataclass(frozen=True, slots=True)
class AddedIncidents:
    """The incidents of one kind of sensor on one day; minutes since 1970."""

    row: Ints  # index of the home
    start: Ints
    end: Ints


def set_values(
    added: AddedSensors, keys: UInt64s, minute: int, has_incidents: bool, value: Ints, since: Ints
) -> None:
    """Set the columns of the added sensors; `keys` are of homes x sensors."""
    for column, simulated in added.columns():
        own = keys[:, column]
        quiet, active, *_ = quarters(random_bits(own, VALUE, minute))
        value[:, column] = scaled(quiet, simulated.quiet)
        if not has_incidents or not simulated.incident:
            continue
        for day in range(minute // DAY - VISIBLE_DAYS + 1, minute // DAY + 1):
            incidents = incidents_of(own, day, simulated)
            began, ended = incidents.start <= minute, incidents.end <= minute
            rows = incidents.row[began & ~ended]
            value[rows, column] = scaled(active[rows], simulated.active)
            since[incidents.row[began], column] = incidents.start[began]
            since[incidents.row[ended], column] = incidents.end[ended]


def incidents_of(keys: UInt64s, day: int, simulated: Simulated) -> AddedIncidents:
    """The incidents that begin on a day; `keys` are those of one sensor of each home."""
    probability = simulated.rate / PER_HOMES
    chosen = with_small_probability(random_bits(keys, CHOICE, day), probability)
    chosen &= ~with_small_probability(random_bits(keys, CHOICE, day - 1), probability)
    rows = np.flatnonzero(chosen).astype(np.int32)
    when, length, *_ = quarters(random_bits(keys[rows], DETAILS, day))
    start = (day * DAY + below(when, DAY)).astype(np.int32)
    return AddedIncidents(rows, start, start + scaled(length, simulated.minutes))


def scaled(quarter: Ints, span: tuple[int, int]) -> Ints:
    """Random whole numbers of a span, both ends included."""
    low, high = span
    out: Ints = low + below(quarter, high - low + 1)
    return out
