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
from pumphouse.homes.simulator.chance import Flags, Ints, Words, below, quarters, rarely, throw

LATE, DELAY, REPEATED, MALFORMED, FAULTY, LOW, LEVEL = range(40, 47)  # purposes of throws

FAULTS: Final = ("stuck", "tampered", "open circuit", "out of range")
FAULT_MINUTES = 20  # how long a sensor is out of order
BATTERY_DAYS = 700  # that a battery lasts
LATE_MINUTES_MAX = 60


@dataclass(frozen=True, slots=True)
class Mishaps:
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


def late_by(keys: Words, minute: int, mishaps: Mishaps) -> Ints:
    """By how many minutes each reading of a minute is late; 0 if it is not."""
    late = rarely(throw(keys, LATE, minute), mishaps.late)
    delay = 1 + below(quarters(throw(keys, DELAY, minute))[0], mishaps.late_minutes)
    out: Ints = np.where(late, delay, 0).astype(np.int32)
    return out


def repeated(keys: Words, minute: int, mishaps: Mishaps) -> Flags:
    return rarely(throw(keys, REPEATED, minute), mishaps.duplicates)


def malformed(keys: Words, minute: int, mishaps: Mishaps) -> Flags:
    return rarely(throw(keys, MALFORMED, minute), mishaps.malformed)


def fault_of(keys: Words, minute: int, mishaps: Mishaps) -> Ints:
    """0 for a sensor in order, otherwise the place in FAULTS after it."""
    spell = throw(keys, FAULTY, minute // FAULT_MINUTES)
    which = 1 + below(quarters(throw(keys, FAULTY, -1 - minute // FAULT_MINUTES))[0], len(FAULTS))
    out: Ints = np.where(rarely(spell, mishaps.faults), which, 0).astype(np.int32)
    return out


def battery_of(keys: Words, day: int, mishaps: Mishaps) -> Ints:
    """Percent: falling from 100 over the years; 15 and below where it is low."""
    age, level, *_ = quarters(throw(keys, LEVEL))
    worn = (below(age, BATTERY_DAYS) + day) % BATTERY_DAYS
    sound = 100 - worn * 80 // BATTERY_DAYS
    low = rarely(throw(keys, LOW), mishaps.low_battery)
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
