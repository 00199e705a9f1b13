"""Decides which simulated readings begin a trace, and its ids. Pure.

    readings, TraceOptions -> traces_of -> row -> traceparent -> sender.py

The ids depend on (seed, home, sensor, seq) only, like all that is simulated: the same reading
always has the same trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from pumphouse.errors import OptionError
from pumphouse.homes.schema import ARMED, HOMES_MAX, MODES, SENSORS, SMOKE_ALARM_PPM
from pumphouse.homes.simulator.hashed_random import (
    Flags,
    home_keys,
    mix,
    random_bits_at,
    with_small_probability,
)
from pumphouse.homes.simulator.record_encoding import ALARM, MALFORMED, ReadingColumns
from pumphouse.telemetry.trace_context import RANDOM, SAMPLED, TraceContext

TRACED = 70  # the purpose of the random numbers
SMOKE, GLASS = SENSORS.index("smoke"), SENSORS.index("glass")
OPENINGS: Final = [SENSORS.index("door"), SENSORS.index("window")]
ARMED_MODES: Final = [MODES.index(mode) for mode in ARMED]


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """Which readings are traced."""

    share: float = 0.0  # of all readings
    alarms: bool = False  # those that may raise an alert

    def __post_init__(self) -> None:
        if not 0 <= self.share <= 1:
            raise OptionError(f"invalid share of traced readings {self.share:g}: use 0 to 1")


NO_TRACES = TraceOptions()


def traces_of(columns: ReadingColumns, options: TraceOptions, seed: int) -> dict[int, str]:
    """The `traceparent` of each traced row."""
    if options == NO_TRACES or not len(columns):
        return {}
    selected = is_alarm(columns) if options.alarms else np.zeros(len(columns), bool)
    keys = home_keys(seed, sensor_numbers(columns))
    words = random_bits_at(keys, TRACED, columns.seq)
    if options.share:
        selected |= with_small_probability(words, options.share)
    # A malformed body is never processed. A duplicate is the same reading, in the same trace.
    rows = np.flatnonzero(selected & (columns.flags & MALFORMED == 0)).tolist()
    return {row: context_of(int(words[row])).traceparent for row in rows}


def sensor_numbers(columns: ReadingColumns) -> npt.NDArray[np.int64]:
    """A number for each sensor; those of added sensors come after those of all homes."""
    number = columns.home.astype(np.int64) * len(SENSORS) + columns.sensor
    is_added = columns.sensor >= len(SENSORS)
    added = (columns.sensor * np.int64(HOMES_MAX)) + columns.home
    out: npt.NDArray[np.int64] = np.where(is_added, added, number)
    return out


def is_alarm(columns: ReadingColumns) -> Flags:
    """Readings that may raise an alert: smoke, broken glass, openings while the alarm is armed, and
    the alarms of added sensors."""
    sensor, active = columns.sensor, columns.value > 0
    smoke = (sensor == SMOKE) & (columns.value >= SMOKE_ALARM_PPM)
    armed = np.isin(columns.mode, ARMED_MODES)
    opening = np.isin(sensor, OPENINGS) & active & armed
    alarm = smoke | ((sensor == GLASS) & active) | opening | (columns.flags & ALARM > 0)
    out: Flags = alarm & (columns.fault == 0)
    return out


def context_of(word: int) -> TraceContext:
    """The ids of a trace, from 64 random bits."""
    first, second, span = mix(word), mix(word ^ 1), mix(word ^ 2)
    # Ids of zeros only are invalid.
    return TraceContext(f"{first:016x}{second or 1:016x}", f"{span or 1:016x}", RANDOM | SAMPLED)
