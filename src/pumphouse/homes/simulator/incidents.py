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

BREAK_IN, FIRE, FORGOTTEN_WINDOW, SILENT_SENSOR = range(4)
KINDS: Final = ("break-in", "fire", "forgotten-window", "silent-sensor")
MOTION, DOOR, WINDOW, GLASS, SMOKE, ALL = range(6)  # indices in schema.SENSORS; ALL: every sensor

CHOICE, DETAILS = 20, 21  # purposes of random numbers
VISIBLE_DAYS = 3  # an incident shows in the readings of its day and of the two after it
PER_HOMES = 1000


@dataclass(frozen=True, slots=True)
class Incidents:
    """The number of incidents of each kind, per thousand homes and day.

    The actual number is a little lower. A home that was chosen yesterday is skipped, and so is one
    whose day does not fit the incident (a burglar does not come while people are up).
    """

    break_in: float = 0.0
    fire: float = 0.0
    forgotten_window: float = 0.0
    silent_sensor: float = 0.0

    def __post_init__(self) -> None:
        for name, rate in zip(KINDS, self.rates, strict=True):
            if not 0 <= rate <= PER_HOMES:
                raise OptionError(
                    f"invalid rate {rate:g} of {name}: use 0 to {PER_HOMES}, per {PER_HOMES} homes "
                    "and day"
                )
        if sum(self.rates) > PER_HOMES:
            raise OptionError(
                f"the rates of all incidents sum to {sum(self.rates):g}: use at most {PER_HOMES}, "
                "because a home has at most one incident a day"
            )

    @property
    def rates(self) -> tuple[float, float, float, float]:
        return self.break_in, self.fire, self.forgotten_window, self.silent_sensor

    def __bool__(self) -> bool:
        return any(self.rates)


# About one home in two hundred has an incident on a day.
FEW: Final = Incidents(break_in=1, fire=0.5, forgotten_window=2, silent_sensor=1)
MANY: Final = Incidents(break_in=100, fire=50, forgotten_window=100, silent_sensor=100)
PROFILES: Final = {"none": Incidents(), "few": FEW, "many": MANY}


def parse_incidents(text: str) -> Incidents:
    """Parse the name of a profile, or rates such as `break-in=2,fire=0.5`."""
    if text in PROFILES:
        return PROFILES[text]
    rates: dict[str, float] = {}
    for part in filter(None, text.replace(" ", "").split(",")):
        kind, _, number = part.partition("=")
        try:
            rates[KINDS[KINDS.index(kind)].replace("-", "_")] = float(number)
        except ValueError:
            raise OptionError(
                f"invalid incidents {part!r}: use {', '.join(PROFILES)}, or KIND=RATE with a kind "
                f"of {', '.join(KINDS)} and a rate per {PER_HOMES} homes and day"
            ) from None
    return Incidents(**rates)


@dataclass(frozen=True, slots=True)
class Incident:
    """The ground truth about one incident. Its alert must have the same `since`."""

    home: str
    kind: str
    sensor: str
    since: int  # ms of its start; for a silent sensor, when the first missing reading was due
    until: int  # ms of its end
    due: int  # ms of the last reading that may raise the alert

    @property
    def id(self) -> str:
        """The id of its alert; approximate for a silent sensor, whose start is not observed."""
        return schema.alert_id(self.kind, self.home, self.sensor, self.since)


@dataclass(frozen=True, slots=True)
class IncidentColumns:
    """The incidents of one day, as columns; minutes since 1970."""

    row: Ints  # index of the home
    kind: Ints
    sensor: Ints
    start: Ints
    end: Ints
    intruder_until: Ints  # end of the intruder's movements
    armed: Ints  # when the alarm is armed; only used for a forgotten window
    peak: Ints  # of smoke, ppm

    def __len__(self) -> int:
        return len(self.row)

    def where(self, condition: Flags) -> IncidentColumns:
        return IncidentColumns(*(getattr(self, f.name)[condition] for f in fields(self)))


NO_INCIDENTS: Final = IncidentColumns(*[np.zeros(0, np.int32)] * 8)


def concatenated(days: list[IncidentColumns]) -> IncidentColumns:
    columns = [[getattr(day, f.name) for day in days] for f in fields(IncidentColumns)]
    return IncidentColumns(*(np.concatenate(column) for column in columns))


def is_chosen(keys: UInt64s, day: int, incidents: Incidents) -> Flags:
    """Which homes are chosen for an incident, before checking that it fits their day."""
    return with_small_probability(random_bits(keys, CHOICE, day), sum(incidents.rates) / PER_HOMES)


def plan_incidents(
    keys: UInt64s,
    day: int,
    incidents: Incidents,
    today: DayTimes,
    bed_before: Ints,
    wake_after: Ints,
) -> IncidentColumns:
    """The incidents of a day, without those that do not fit the day of their home."""
    if not incidents:
        return NO_INCIDENTS
    chosen = is_chosen(keys, day, incidents) & ~is_chosen(keys, day - 1, incidents)
    rows = np.flatnonzero(chosen).astype(np.int32)
    kind = _kinds(keys[rows], day, incidents)
    times, bed, wake = today.of(rows), bed_before[rows], wake_after[rows]
    by_kind = [
        _incidents_of_kind(
            kind_of, rows[which], keys[rows][which], day, times.of(which), bed[which], wake[which]
        )
        for kind_of in range(len(KINDS))
        if len(which := np.flatnonzero(kind == kind_of).astype(np.int32))
    ]
    return concatenated(by_kind) if by_kind else NO_INCIDENTS


def _kinds(keys: UInt64s, day: int, incidents: Incidents) -> Ints:
    """The kind of each incident, in proportion to the rates."""
    total = sum(incidents.rates)
    bounds = np.cumsum(incidents.rates)[:-1] / total * 65536
    quarter = quarters(random_bits(keys, DETAILS, day))[0]
    out: Ints = np.searchsorted(bounds, quarter, side="right").astype(np.int32)
    return out


def _incidents_of_kind(
    kind: int,
    rows: Ints,
    keys: UInt64s,
    day: int,
    times: DayTimes,
    bed_before: Ints,
    wake_after: Ints,
) -> IncidentColumns:
    numbers = quarters(random_bits(keys, DETAILS, day + 1_000_000))  # not the numbers of `_kinds`
    if kind == BREAK_IN:
        return _break_in(rows, times, bed_before, numbers)
    if kind == FIRE:
        return _fire(rows, day, numbers)
    if kind == FORGOTTEN_WINDOW:
        return _forgotten_window(rows, times, wake_after, numbers)
    return _silent_sensor(rows, day, numbers)


Quarters = tuple[Ints, Ints, Ints, Ints]


def _break_in(rows: Ints, times: DayTimes, bed_before: Ints, numbers: Quarters) -> IncidentColumns:
    """A pane is broken or the door is forced, while people are out or asleep."""
    when, how, length, by_day_or_night = numbers
    out = (times.leave != NEVER) & (times.back - times.leave >= 60)
    night = np.maximum(bed_before, times.start) + 30
    sleeps = ~(out & (times.leave <= times.start)) & (times.wake - night >= 60)
    by_day = out & ((by_day_or_night < 32768) | ~sleeps)
    first = np.where(by_day, times.leave + 10, night)
    last = np.where(by_day, np.minimum(times.back, times.end) - 30, times.wake - 30)
    at = first + below(when, np.maximum(last - first, 1))
    stays = 3 + below(length, 10)
    glass = how < 39322  # 60 %
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, BREAK_IN),
        sensor=np.where(glass, GLASS, DOOR).astype(np.int32),
        start=at,
        end=at + np.where(glass, 180 + below(length, 420), stays),
        intruder_until=at + stays,
        armed=at,
        peak=np.zeros_like(rows),
    ).where(by_day | sleeps)


def _fire(rows: Ints, day: int, numbers: Quarters) -> IncidentColumns:
    when, length, peak, _ = numbers
    at = day * DAY + below(when, DAY)
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, FIRE),
        sensor=np.full_like(rows, SMOKE),
        start=at,
        end=at + 20 + below(length, 40),
        intruder_until=at,
        armed=at,
        peak=120 + below(peak, 300),
    )


def _forgotten_window(
    rows: Ints, times: DayTimes, wake_after: Ints, numbers: Quarters
) -> IncidentColumns:
    """A window is opened before people leave for hours or go to bed, and shut when they return or
    get up."""
    when, length, _, _ = numbers
    goes = times.leaves & times.returns & (times.back - times.leave >= 180)
    sleeps = ~((times.leave <= times.end) & (times.back >= times.end))
    armed = np.where(goes, times.leave, times.bed)
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, FORGOTTEN_WINDOW),
        sensor=np.full_like(rows, WINDOW),
        start=armed - 5 - below(when, 20),
        end=np.where(goes, times.back, wake_after) + 3 + below(length, 8),
        intruder_until=armed,
        armed=armed,
        peak=np.zeros_like(rows),
    ).where(goes | sleeps)


def _silent_sensor(rows: Ints, day: int, numbers: Quarters) -> IncidentColumns:
    """One sensor sends nothing for a while; in one case of five, no sensor sends anything."""
    when, length, which, whole = numbers
    at = day * DAY + below(when, DAY - 200)
    sensor = np.where(whole < 13107, ALL, below(which, len(schema.SENSORS)))
    return IncidentColumns(
        row=rows,
        kind=np.full_like(rows, SILENT_SENSOR),
        sensor=sensor.astype(np.int32),
        start=at,
        end=at + 45 + below(length, 135),
        intruder_until=at,
        armed=at,
        peak=np.zeros_like(rows),
    )


def smoke_of(start: Ints, end: Ints, peak: Ints, minute: int) -> Ints:
    """Smoke of a fire in ppm: above the alarm level in every minute, highest in the middle."""
    rise = np.minimum(minute - start + 1, 5)
    fall = np.minimum(end - minute, 5)
    alarm = int(schema.SMOKE_ALARM_PPM)
    out: Ints = alarm + (peak - alarm) * np.minimum(rise, fall) // 5
    return out
