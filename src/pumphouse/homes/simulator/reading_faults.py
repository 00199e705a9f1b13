"""What goes wrong with the readings themselves: at set rates, and anybody can look up where.

    readings of a minute -> late, repeated, faulty, malformed -> what is sent
                            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module decides which

Every decision follows from (seed, home, sensor, minute), so a batch recomputation knows the same.
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

LATE, DELAY, DUPLICATED, MALFORMED, FAULTY, LOW, LEVEL = range(40, 47)  # purposes of throws

FAULTS: Final = ("stuck", "tampered", "open circuit", "out of range")
FAULT_MINUTES = 20  # how long a sensor is out of order
BATTERY_DAYS = 700  # that a battery lasts
LATE_MINUTES_MAX = 60


@dataclass(frozen=True, slots=True)
class ReadingFaults:
    """Shares of the readings, from 0 to 1, to which each of these happens."""

    late: float = 0.0  # sent some minutes after it was read
    duplicates: float = 0.0  # sent twice
    malformed: float = 0.0  # arrives as something that is no reading
    faults: float = 0.0  # the sensor says that it is out of order, in place of a value
    low_battery: float = 0.0  # of the sensors: their battery is nearly empty
    late_minutes: int = 5  # by at most so many

    def __post_init__(self) -> None:
        for name in [field.name for field in fields(self)][:-1]:
            if not 0 <= getattr(self, name) <= 1:
                raise OptionError(f"{name} is a share from 0 to 1 (got {getattr(self, name):g})")
        if not 1 <= self.late_minutes <= LATE_MINUTES_MAX:
            raise OptionError(
                f"late_minutes is from 1 to {LATE_MINUTES_MAX} (got {self.late_minutes})"
            )


def late_by(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Ints:
    """By how many minutes each reading of a minute is late; 0 if it is not."""
    late = with_small_probability(random_bits(keys, LATE, minute), reading_faults.late)
    delay = 1 + below(quarters(random_bits(keys, DELAY, minute))[0], reading_faults.late_minutes)
    out: Ints = np.where(late, delay, 0).astype(np.int32)
    return out


def is_duplicated(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Flags:
    return with_small_probability(random_bits(keys, DUPLICATED, minute), reading_faults.duplicates)


def is_malformed(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Flags:
    return with_small_probability(random_bits(keys, MALFORMED, minute), reading_faults.malformed)


def fault_numbers(keys: UInt64s, minute: int, reading_faults: ReadingFaults) -> Ints:
    """0 for a sensor in order, otherwise the place in FAULTS after it."""
    spell = random_bits(keys, FAULTY, minute // FAULT_MINUTES)
    which = 1 + below(
        quarters(random_bits(keys, FAULTY, -1 - minute // FAULT_MINUTES))[0], len(FAULTS)
    )
    out: Ints = np.where(with_small_probability(spell, reading_faults.faults), which, 0).astype(
        np.int32
    )
    return out


def battery_of(keys: UInt64s, day: int, reading_faults: ReadingFaults) -> Ints:
    """Percent: falling from 100 over the years; 15 and below where it is low."""
    age, level, *_ = quarters(random_bits(keys, LEVEL))
    worn = (below(age, BATTERY_DAYS) + day) % BATTERY_DAYS
    sound = 100 - worn * 80 // BATTERY_DAYS
    low = with_small_probability(random_bits(keys, LOW), reading_faults.low_battery)
    out: Ints = np.where(low, 3 + below(level, 13), sound).astype(np.int32)
    return out


def broken(body: bytes, throw_of_it: int) -> bytes:
    """A body that is no reading any more, in one of five ways."""
    ways = (
        body[: len(body) // 2],  # a connection that broke
        body.replace(b'"home":', b'"house":'),  # a key that is not there
        body.replace(b'"sensor":"', b'"sensor":"x'),  # a kind that nobody has heard of
        body.replace(b'"at":', b'"at":"soon","was":'),  # a text where a number belongs
        b"\xff\x00" + body[2:],  # not even text
    )
    return ways[throw_of_it % len(ways)]
