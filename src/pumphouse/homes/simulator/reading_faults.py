"""Decides which readings are late, duplicated, malformed or faulty, at configured rates.

    readings of a minute -> late, duplicated, malformed, faulty -> what is sent
                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module decides which

Each decision depends on (seed, home, sensor, minute) only, so a batch job can recompute it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from pumphouse.errors import OptionError
from pumphouse.homes.simulator.hashed_random import (
    Flags,
    Ints,
    UInt64s,
    below,
    quarters,
    random_bits,
    with_small_probability,
)

LATE, DELAY, DUPLICATED, MALFORMED, FAULTY, LOW, LEVEL = range(40, 47)  # purposes of random numbers

FAULTS: Final = ("stuck", "tampered", "open circuit", "out of range")
FAULT_MINUTES = 20  # how long a sensor fault lasts
BATTERY_DAYS = 700  # the life of a battery
LATE_MINUTES_MAX = 60


@dataclass(frozen=True, slots=True)
class ReadingFaults:
    """The share of readings with each fault, from 0 to 1."""

    late: float = 0.0  # sent some minutes after the measurement
    duplicates: float = 0.0  # sent twice
    malformed: float = 0.0  # the body is not a valid reading
    faults: float = 0.0  # the sensor reports a fault instead of a value
    low_battery: float = 0.0  # share of sensors whose battery is nearly empty
    late_minutes: int = 5  # the longest delay

    def __post_init__(self) -> None:
        for name in [field.name for field in fields(self)][:-1]:
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"invalid {name} {getattr(self, name):g}: use 0 to 1")
        if not 1 <= self.late_minutes <= LATE_MINUTES_MAX:
            raise OptionError(
                f"invalid late_minutes {self.late_minutes}: use 1 to {LATE_MINUTES_MAX}"
            )


def late_by(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Ints:
    """The delay of each reading of a minute, in minutes; 0 if it is in time."""
    late = with_small_probability(random_bits(keys, LATE, minute), reading_faults.late)
    delay = 1 + below(quarters(random_bits(keys, DELAY, minute))[0], reading_faults.late_minutes)
    out: Ints = np.where(late, delay, 0).astype(np.int32)
    return out


def is_duplicated(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Flags:
    return with_small_probability(random_bits(keys, DUPLICATED, minute), reading_faults.duplicates)


def is_malformed(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Flags:
    return with_small_probability(random_bits(keys, MALFORMED, minute), reading_faults.malformed)


def fault_numbers(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Ints:
    """0 for a working sensor, otherwise its index in FAULTS plus 1."""
    bits = random_bits(keys, FAULTY, minute // FAULT_MINUTES)
    which = 1 + below(
        quarters(random_bits(keys, FAULTY, -1 - minute // FAULT_MINUTES))[0], len(FAULTS)
    )
    out: Ints = np.where(with_small_probability(bits, reading_faults.faults), which, 0).astype(
        np.int32
    )
    return out


def battery_levels(keys: UInt64s, day: int, reading_faults: ReadingFaults) -> Ints:
    """Battery level in percent: falls from 100 over the years; 15 and below is low."""
    age, level, *_ = quarters(random_bits(keys, LEVEL))
    worn = (below(age, BATTERY_DAYS) + day) % BATTERY_DAYS
    normal = 100 - worn * 80 // BATTERY_DAYS
    low = with_small_probability(random_bits(keys, LOW), reading_faults.low_battery)
    out: Ints = np.where(low, 3 + below(level, 13), normal).astype(np.int32)
    return out


def malformed_body(body: bytes, number: int) -> bytes:
    """A body changed to be invalid, in one of five ways that `number` selects."""
    bodies = (
        body[: len(body) // 2],  # truncated
        body.replace(b'"home":', b'"house":'),  # a missing key
        body.replace(b'"sensor":"', b'"sensor":"x'),  # an unknown kind of sensor
        body.replace(b'"at":', b'"at":"soon","was":'),  # text instead of a number
        b"\xff\x00" + body[2:],  # not UTF-8
    )
    return bodies[number % len(bodies)]
