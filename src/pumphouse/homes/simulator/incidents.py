"""The incidents of the simulated homes, and the ground truth about them.

    Incidents (rates), DayPlan -> plan_incidents -> IncidentColumns -> sensors.py: changed readings
                                                                    -> Incident: the ground truth

An incident is computed from (seed, home, day) and the plan of that day, so that it fits the life of
the home: burglars come while the alarm is armed, and a window is left open by people who go out or
to bed. A home has at most one incident in two days, so two of them never overlap.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np

from pumphouse.errors import OptionError
from pumphouse.homes import schema
from pumphouse.homes.simulator.hashed_random import (
    Flags,
    Ints,
    UInt64s,
    below,
    quarters,
    random_bits,
    with_small_probability,
)
from pumphouse.homes.simulator.people import DAY, NEVER, DayTimes

BREAK_IN, FIRE, FORGOTTEN, SILENT = range(4)
KINDS: Final = ("break-in", "fire", "forgotten-window", "silent-sensor")
MOTION, DOOR, WINDOW, GLASS, SMOKE, ALL = range(6)  # places in schema.SENSORS; ALL: every one

CHOICE, PLACE = 20, 21  # purposes of throws
LAST_DAYS = 3  # an incident shows in the readings of its day and of the two after it
PER_HOMES = 1000


@dataclass(frozen=True, slots=True)
class Incidents:
    """How many of each kind there are, per thousand homes and day.

    A little fewer in truth: a home whose turn it was yesterday is spared, and so is one whose life
    leaves no room for what was meant for it (a burglar does not come while somebody is up).
    """

    break_in: float = 0.0
    fire: float = 0.0
    forgotten_window: float = 0.0
    silent_sensor: float = 0.0

    def __post_init__(self) -> None:
        for name, rate in zip(KINDS, self.rates, strict=True):
            if not 0 <= rate <= PER_HOMES:
                raise OptionError(
                    f"incidents of {name} are from 0 to {PER_HOMES} per {PER_HOMES} homes and day "
                    f"(got {rate:g})"
                )
        if sum(self.rates) > PER_HOMES:
            raise OptionError(
                f"a home has at most one incident a day: all rates together are at most "
                f"{PER_HOMES} (got {sum(self.rates):g})"
            )

    @property
    def rates(self) -> tuple[float, float, float, float]:
        return self.break_in, self.fire, self.forgotten_window, self.silent_sensor

    def __bool__(self) -> bool:
        return any(self.rates)


# A few for a town of any size: about one home in two hundred has something on a day.
FEW: Final = Incidents(break_in=1, fire=0.5, forgotten_window=2, silent_sensor=1)
MANY: Final = Incidents(break_in=100, fire=50, forgotten_window=100, silent_sensor=100)
PROFILES: Final = {"none": Incidents(), "few": FEW, "many": MANY}


def parse_incidents(text: str) -> Incidents:
    """A profile's name, or rates: `break-in=2,fire=0.5`."""
    if text in PROFILES:
        return PROFILES[text]
    rates: dict[str, float] = {}
    for word in filter(None, text.replace(" ", "").split(",")):
        kind, _, number = word.partition("=")
        try:
            rates[KINDS[KINDS.index(kind)].replace("-", "_")] = float(number)
        except ValueError:
            raise OptionError(
                f"{word!r} is no incident; write {', '.join(PROFILES)}, or KIND=RATE with a kind "
                f"of {', '.join(KINDS)} and a rate per {PER_HOMES} homes and day"
            ) from None
    return Incidents(**rates)


@dataclass(frozen=True, slots=True)
class Incident:
    """The truth about one incident. `since` is the one that its alert should name."""

    home: str
    kind: str
    sensor: str
    since: int  # ms at which it began; of a silence: when the first missing reading was due
    until: int  # ms at which all is quiet again
    due: int  # ms of the reading that raises the alert at the latest

    @property
    def id(self) -> str:
        """The id of the alert about it; of a silence only nearly, for nobody sees it begin."""
        return schema.alert_id(self.kind, self.home, self.sensor, self.since)


@dataclass(frozen=True, slots=True)
class IncidentColumns:
    """The incidents of one day, as columns; minutes since 1970."""

    row: Ints  # which home, as a place in the town
    kind: Ints
    sensor: Ints
    start: Ints
    end: Ints
    stir: Ints  # until when somebody moves about who should not
    armed: Ints  # from when the alarm is on; only for a forgotten window
    peak: Ints  # of smoke, ppm

    def __len__(self) -> int:
        return len(self.row)

    def where(self, chosen: Flags) -> IncidentColumns:
        return IncidentColumns(*(getattr(self, f.name)[chosen] for f in fields(self)))


NOTHING: Final = IncidentColumns(*[np.zeros(0, np.int32)] * 8)


def joined(days: list[IncidentColumns]) -> IncidentColumns:
    columns = [[getattr(day, f.name) for day in days] for f in fields(IncidentColumns)]
    return IncidentColumns(*(np.concatenate(column) for column in columns))


def chosen(keys: UInt64s, day: int, incidents: Incidents) -> Flags:
    """Which homes have their turn, whether or not something comes of it."""
    today = with_small_probability(random_bits(keys, CHOICE, day), sum(incidents.rates) / PER_HOMES)
    return today


def happen(
    keys: UInt64s,
    day: int,
    incidents: Incidents,
    today: DayTimes,
    bed_before: Ints,
    wake_after: Ints,
) -> IncidentColumns:
    """The incidents of a day. Homes whose life leaves no room for theirs are spared."""
    if not incidents:
        return NOTHING
    turn = chosen(keys, day, incidents) & ~chosen(keys, day - 1, incidents)
    rows = np.flatnonzero(turn).astype(np.int32)
    kind = _kinds(keys[rows], day, incidents)
    times, bed, wake = today.of(rows), bed_before[rows], wake_after[rows]
    made = [
        _place(
            kind_of, rows[which], keys[rows][which], day, times.of(which), bed[which], wake[which]
        )
        for kind_of in range(len(KINDS))
        if len(which := np.flatnonzero(kind == kind_of).astype(np.int32))
    ]
    return joined(made) if made else NOTHING


def _kinds(keys: UInt64s, day: int, incidents: Incidents) -> Ints:
    """The kind of each, in proportion to the rates."""
    total = sum(incidents.rates)
    bounds = np.cumsum(incidents.rates)[:-1] / total * 65536
    quarter = quarters(random_bits(keys, PLACE, day))[0]
    out: Ints = np.searchsorted(bounds, quarter, side="right").astype(np.int32)
    return out


def _place(
    kind: int,
    rows: Ints,
    keys: UInt64s,
    day: int,
    times: DayTimes,
    bed_before: Ints,
    wake_after: Ints,
) -> IncidentColumns:
    dice = quarters(random_bits(keys, PLACE, day + 1_000_000))
    if kind == BREAK_IN:
        return _break_in(rows, times, bed_before, dice)
    if kind == FIRE:
        return _fire(rows, day, dice)
    if kind == FORGOTTEN:
        return _forgotten(rows, times, wake_after, dice)
    return _silent(rows, day, dice)


Dice = tuple[Ints, Ints, Ints, Ints]


def _break_in(rows: Ints, times: DayTimes, bed_before: Ints, dice: Dice) -> IncidentColumns:
    """While they are out, or in the night: a pane is broken, or the door is forced."""
    when, how, length, coin = dice
    out = (times.leave != NEVER) & (times.back - times.leave >= 60)
    night = np.maximum(bed_before, times.start) + 30
    sleeps = ~(out & (times.leave <= times.start)) & (times.wake - night >= 60)
    by_day = out & ((coin < 32768) | ~sleeps)
    first = np.where(by_day, times.leave + 10, night)
    last = np.where(by_day, np.minimum(times.back, times.end) - 30, times.wake - 30)
    at = first + below(when, np.maximum(last - first, 1))
    stays = 3 + below(length, 10)
    glass = how < 39322  # six in ten
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, BREAK_IN),
        sensor=np.where(glass, GLASS, DOOR).astype(np.int32),
        start=at,
        end=at + np.where(glass, 180 + below(length, 420), stays),
        stir=at + stays,
        armed=at,
        peak=np.zeros_like(rows),
    ).where(by_day | sleeps)


def _fire(rows: Ints, day: int, dice: Dice) -> IncidentColumns:
    when, length, peak, _ = dice
    at = day * DAY + 30 + below(when, DAY - 120)
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, FIRE),
        sensor=np.full_like(rows, SMOKE),
        start=at,
        end=at + 20 + below(length, 40),
        stir=at,
        armed=at,
        peak=120 + below(peak, 300),
    )


def _forgotten(rows: Ints, times: DayTimes, wake_after: Ints, dice: Dice) -> IncidentColumns:
    """Opened shortly before they leave for long or go to bed, and shut when they are up again."""
    when, length, _, _ = dice
    goes = times.leaves & times.returns & (times.back - times.leave >= 180)
    sleeps = ~((times.leave <= times.end) & (times.back >= times.end))
    armed = np.where(goes, times.leave, times.bed)
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, FORGOTTEN),
        sensor=np.full_like(rows, WINDOW),
        start=armed - 5 - below(when, 20),
        end=np.where(goes, times.back, wake_after) + 3 + below(length, 8),
        stir=armed,
        armed=armed,
        peak=np.zeros_like(rows),
    ).where(goes | sleeps)


def _silent(rows: Ints, day: int, dice: Dice) -> IncidentColumns:
    """One sensor says nothing for a while; in one case of five none of them does."""
    when, length, which, whole = dice
    at = day * DAY + below(when, DAY - 200)
    sensor = np.where(whole < 13107, ALL, below(which, len(schema.SENSORS)))
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, SILENT),
        sensor=sensor.astype(np.int32),
        start=at,
        end=at + 45 + below(length, 135),
        stir=at,
        armed=at,
        peak=np.zeros_like(rows),
    )


def smoke_of(start: Ints, end: Ints, peak: Ints, minute: int) -> Ints:
    """Smoke of a fire: above the alarm from its first minute to its last, highest in between."""
    rise = np.minimum(minute - start + 1, 5)
    fall = np.minimum(end - minute, 5)
    alarm = int(schema.SMOKE_ALARM_PPM)
    out: Ints = alarm + (peak - alarm) * np.minimum(rise, fall) // 5
    return out
