"""Which alerts do these activities raise? Rules over columns; no IO, no clock, no chance.

    PartitionHistory, ActivityColumns -> apply_rules -> Alerts, PartitionHistory
                   ^^^^^ this module

The same incident raises the same alert (kind, home, since) however its readings are cut into
batches, and whether they come in time or late; an alert that was raised before is not raised again.

Time is that of the readings. How far it has come is judged by partition, from the homes that speak
there: a partition that is read late is not silent, and one that is silent as a whole (the hub, or
what feeds it, was down) is an outage that says nothing about its sensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.schema import (
    ALERT_KINDS,
    ALIVE_EVERY,
    CHANGE_MS,
    FORGOTTEN_ARMED_MS,
    FORGOTTEN_MS,
    KINDS,
    MINUTE_MS,
    PER_SENSOR,
    SILENT_MS,
    SMOKE_ALARM_PPM,
    Alert,
    home_id,
    home_number,
    region_of,
)
from pumphouse.homes.watch.history import (
    EMPTY,
    ActivityColumns,
    Ints,
    Mask,
    PartitionHistory,
    Times,
    UInt64s,
    forgotten,
    with_homes,
)
from pumphouse.homes.watch.unusual import unusual

DOOR, WINDOW, GLASS, SMOKE = (KINDS.index(one) for one in ("door", "window", "glass", "smoke"))
BREAK_IN, FIRE, FORGOTTEN, SILENT, UNUSUAL = range(len(ALERT_KINDS))

FIRE_OVER_MS: Final = 10 * MINUTE_MS  # smoke that comes back sooner is the same fire
# Longer than between two signs of life of a single home: then nobody speaks at all.
OUTAGE_MS: Final = (ALIVE_EVERY + 5) * MINUTE_MS
CLOCKS = 0.95  # so many of the homes' clocks may not be ahead of ours: a few are always wrong

TEXTS = {
    (BREAK_IN, DOOR): "Door opened while nobody should come in",
    (BREAK_IN, GLASS): "Glass broken while nobody should come in",
    (FIRE, SMOKE): "Smoke or carbon monoxide above the alarm",
    (FORGOTTEN, WINDOW): "Window open for long",
}


@dataclass(frozen=True, slots=True)
class Alerts:
    """By the column; `kind` is a place in ALERT_KINDS, `sensor` one in KINDS."""

    kind: Ints
    number: Ints
    sensor: Ints
    at: Times
    since: Times

    def __len__(self) -> int:
        return len(self.at)

    def where(self, chosen: Mask | NDArray[np.intp]) -> Alerts:
        return Alerts(
            self.kind[chosen],
            self.number[chosen],
            self.sensor[chosen],
            self.at[chosen],
            self.since[chosen],
        )

    def fingerprints(self) -> UInt64s:
        return fingerprint(self.kind, self.number, self.sensor, self.since)

    def as_alerts(self) -> list[Alert]:
        columns = (self.kind, self.number, self.sensor, self.at, self.since)
        return [as_alert(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def as_alert(kind: int, number: int, sensor: int, at: int, since: int) -> Alert:
    named = KINDS[sensor].capitalize()
    texts = {SILENT: f"{named} sensor says nothing", UNUSUAL: f"{named} unlike before"}
    text = TEXTS.get((kind, sensor)) or texts[kind]
    return Alert(
        home_id(number), ALERT_KINDS[kind], KINDS[sensor], at, since, region_of(number), text
    )


def fingerprint(kind: Ints, number: Ints, sensor: Ints, since: Times) -> UInt64s:
    """An alert's identity as one word: equal for equal ids, and hardly ever for others."""
    per_sensor = np.isin(kind, [ALERT_KINDS.index(one) for one in PER_SENSOR])
    about = np.where(per_sensor, sensor, len(KINDS)).astype(np.uint64)
    who = number.astype(np.uint64) << np.uint64(8) | kind.astype(np.uint64) << np.uint64(4) | about
    return stirred(stirred(who) ^ since.astype(np.uint64))


def fingerprints_of(alerts: Sequence[Alert]) -> UInt64s:
    return fingerprint(
        np.array([ALERT_KINDS.index(one.kind) for one in alerts], np.int32),
        np.array([home_number(one.home) for one in alerts], np.int32),
        np.array([KINDS.index(one.sensor) for one in alerts], np.int32),
        np.array([one.since for one in alerts], np.int64),
    )


def history_of_alerts(alerts: Sequence[Alert]) -> PartitionHistory:
    """Nothing but these alerts: they are not raised again."""
    at = np.array([one.at for one in alerts], np.int64)
    return replace(EMPTY, raised=fingerprints_of(alerts), raised_at=at)


def stirred(words: UInt64s) -> UInt64s:
    """SplitMix64's closing steps."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# -- all rules ------------------------------------------------------------------------------------


def apply_rules(
    past: PartitionHistory, heard: ActivityColumns, grace_ms: int, known: UInt64s
) -> tuple[Alerts, PartitionHistory]:
    """The alerts that are due and were not raised before, and what is remembered then.

    `known` are the fingerprints of alerts raised by an earlier run. A sensor is silent only after
    `grace_ms` more, because readings may be late.
    """
    heard = in_order(heard)
    past = with_homes(past, np.unique(heard.number))
    row = past.row_of(heard.number)
    since_armed, past = follow_modes(past, heard, row)
    starts = outages(past, heard)
    found = [break_ins(heard, since_armed), forgotten_windows(heard, since_armed)]
    fires, past = find_fires(past, heard, row)
    gaps, past = find_gaps(past, heard, row, starts, SILENT_MS + grace_ms)
    odd, past = find_unusual(past, heard)
    past = move_clock(follow_windows(past, heard, row), heard, starts)
    found += [fires, gaps, odd, silences(past, SILENT_MS + grace_ms), left_open(past, grace_ms)]
    new, past = first_of(past, together(found), known)
    return new, forgotten(past)


def in_order(heard: ActivityColumns) -> ActivityColumns:
    return heard.where(np.lexsort((heard.kind, heard.number, heard.at)))


def together(found: list[Alerts]) -> Alerts:
    names = ("kind", "number", "sensor", "at", "since")
    return Alerts(*(np.concatenate([getattr(one, name) for one in found]) for name in names))


def first_of(
    past: PartitionHistory, due: Alerts, known: UInt64s
) -> tuple[Alerts, PartitionHistory]:
    """Each alert once; one that is due again is remembered for longer."""
    order = np.argsort(due.at, kind="stable")
    due = due.where(order)
    fingerprints, first = np.unique(due.fingerprints(), return_index=True)
    fresh = ~np.isin(fingerprints, past.raised) & ~np.isin(fingerprints, known)
    new = due.where(np.sort(first[fresh]))
    again = np.isin(past.raised, fingerprints)
    at = np.where(again, np.maximum(past.raised_at, past.clock[0]), past.raised_at)
    added = ~np.isin(fingerprints, past.raised)
    raised = np.concatenate([past.raised, fingerprints[added]])
    raised_at = np.concatenate([at, np.full(int(added.sum()), past.clock[0])])
    return new, replace(past, raised=raised, raised_at=raised_at)


def alerts_of(kind: int, heard: ActivityColumns, since: Times | None = None) -> Alerts:
    kinds = np.full(len(heard), kind, np.int32)
    return Alerts(
        kinds, heard.number, heard.kind, heard.at, heard.since if since is None else since
    )


# -- modes ----------------------------------------------------------------------------------------


def follow_modes(
    past: PartitionHistory, heard: ActivityColumns, row: NDArray[np.intp]
) -> tuple[Times, PartitionHistory]:
    """Since when the alarm was on at each reading (0: it was off), and at the end."""
    armed = heard.mode > 0
    # A late reading tells its own mode, and nothing about those after it.
    late = heard.at < past.told[row]
    before = past.armed[row]
    since = np.where(armed & (before > 0) & (before <= heard.at), before, heard.at)
    timely = np.flatnonzero(~late)
    order = timely[np.argsort(row[timely], kind="stable")]
    if len(order):
        since[order] = runs(row[order], heard.at[order], armed[order], before[order])
    since = np.where(armed, since, 0)
    ends = order[last_of_each(row[order])]
    now_armed, told = past.armed.copy(), past.told.copy()
    now_armed[row[ends]], told[row[ends]] = since[ends], heard.at[ends]
    return since, replace(past, armed=now_armed, told=told)


def runs(row: NDArray[np.intp], at: Times, armed: Mask, before: Times) -> Times:
    """Where each reading's run of armed ones began; `before` is what was known of its home."""
    first = np.ones(len(row), bool)
    first[1:] = row[1:] != row[:-1]
    was = np.empty(len(row), bool)
    was[1:] = armed[:-1]
    was[first] = before[first] > 0
    begins = np.where(was & first, before, at)
    marked = armed & (first | ~was)
    start = np.maximum.accumulate(np.where(marked, np.arange(len(row)), 0))
    return begins[start]


def last_of_each(row: NDArray[np.intp]) -> NDArray[np.intp]:
    """Places of the last of each run of equal rows."""
    return np.flatnonzero(np.append(row[1:] != row[:-1], True)) if len(row) else row


# -- readings that are alerts ---------------------------------------------------------------------


def break_ins(heard: ActivityColumns, since_armed: Times) -> Alerts:
    """A door or a pane that opened while the alarm was on.

    The reading that tells of the change tells the mode as well. If it was lost, a later one does
    if the alarm has been on since before the change.
    """
    moved = np.isin(heard.kind, (DOOR, GLASS)) & (heard.value >= 1) & (since_armed > 0)
    age = heard.at - heard.since
    change = (age >= 0) & (age < CHANGE_MS)
    return alerts_of(BREAK_IN, heard.where(moved & (change | (since_armed <= heard.since))))


def forgotten_windows(heard: ActivityColumns, since_armed: Times) -> Alerts:
    is_open = (heard.kind == WINDOW) & (heard.value >= 1)
    alone = heard.at - np.maximum(heard.since, since_armed) >= FORGOTTEN_ARMED_MS
    long = (since_armed > 0) & alone | (heard.at - heard.since >= FORGOTTEN_MS)
    return alerts_of(FORGOTTEN, heard.where(is_open & long))


def find_fires(
    past: PartitionHistory, heard: ActivityColumns, row: NDArray[np.intp]
) -> tuple[Alerts, PartitionHistory]:
    """Smoke above the alarm, once per fire."""
    burns = np.flatnonzero((heard.kind == SMOKE) & (heard.value >= SMOKE_ALARM_PPM))
    burns = burns[np.argsort(row[burns], kind="stable")]
    home, at = row[burns], heard.at[burns]
    before = past.smoke[home]
    same = home[1:] == home[:-1]
    before[1:] = np.where(same, at[:-1], before[1:])
    new = np.abs(at - before) > FIRE_OVER_MS
    smoke = past.smoke.copy()
    np.maximum.at(smoke, home, at)
    return alerts_of(FIRE, heard.where(burns[new])), replace(past, smoke=smoke)


def find_unusual(past: PartitionHistory, heard: ActivityColumns) -> tuple[Alerts, PartitionHistory]:
    odd, past = unusual(past, heard)
    return alerts_of(UNUSUAL, heard.where(odd), heard.at[odd]), past


# -- what is not said -----------------------------------------------------------------------------


def outages(past: PartitionHistory, heard: ActivityColumns) -> Times:
    """When the whole partition spoke again after a silence; the last one known comes first."""
    at = heard.at
    before = np.maximum.accumulate(np.concatenate([past.clock, at]))[:-1]
    again = at[(at - before > OUTAGE_MS) & (before > 0)]
    return np.concatenate([past.resumed, again])


def find_gaps(
    past: PartitionHistory,
    heard: ActivityColumns,
    row: NDArray[np.intp],
    starts: Times,
    silent_ms: int,
) -> tuple[Alerts, PartitionHistory]:
    """Sensors that were silent for too long and speak again."""
    slot = row * len(KINDS) + heard.kind
    order = np.argsort(slot, kind="stable")
    slot, at = slot[order], heard.at[order]
    last = past.last.reshape(-1).copy()
    before = last[slot]
    same = slot[1:] == slot[:-1]
    before[1:] = np.where(same, np.maximum(at[:-1], before[1:]), before[1:])
    resumed = starts[np.searchsorted(starts, at, side="right") - 1]
    silent = (before > 0) & (at - np.maximum(before, resumed) >= silent_ms)
    np.maximum.at(last, slot, at)
    found = alerts_of(SILENT, heard.where(order[silent]), before[silent])
    return found, replace(past, last=last.reshape(past.last.shape))


def move_clock(past: PartitionHistory, heard: ActivityColumns, starts: Times) -> PartitionHistory:
    """As far as nearly all of the homes that spoke have come; never back."""
    if not len(heard):
        return past
    latest = np.zeros(len(past.homes), np.int64)
    np.maximum.at(latest, past.row_of(heard.number), heard.at)
    spoke = np.sort(latest[latest > 0])
    clock = max(int(past.clock[0]), int(spoke[int(CLOCKS * (len(spoke) - 1))]))
    return replace(past, clock=np.array([clock]), resumed=starts[-1:])


def silences(past: PartitionHistory, silent_ms: int) -> Alerts:
    """Sensors that have said nothing for too long by now."""
    quiet_since = np.maximum(past.last, past.resumed[0])
    home, kind = np.nonzero((past.last > 0) & (past.clock[0] - quiet_since >= silent_ms))
    return timed(past, SILENT, home, kind, past.last[home, kind])


def follow_windows(
    past: PartitionHistory, heard: ActivityColumns, row: NDArray[np.intp]
) -> PartitionHistory:
    # What a late reading says has been overtaken; a fault says nothing.
    told = (heard.kind == WINDOW) & ~np.isnan(heard.value) & (heard.at >= past.last[row, WINDOW])
    opened = past.opened.copy()
    # In the order of time: of several the last one stays.
    opened[row[told]] = np.where(heard.value[told] >= 1, heard.since[told], 0)
    return replace(past, opened=opened)


def left_open(past: PartitionHistory, grace_ms: int) -> Alerts:
    """Windows that were open when they were last heard, long ago by now."""
    now = past.clock[0] - grace_ms
    alone = (past.armed > 0) & (now - np.maximum(past.opened, past.armed) >= FORGOTTEN_ARMED_MS)
    long = alone | (now - past.opened >= FORGOTTEN_MS)
    (home,) = np.nonzero((past.opened > 0) & long)
    return timed(past, FORGOTTEN, home, np.full(len(home), WINDOW), past.opened[home])


def timed(
    past: PartitionHistory,
    kind: int,
    home: NDArray[np.intp],
    sensor: NDArray[np.intp],
    since: Times,
) -> Alerts:
    kinds = np.full(len(home), kind, np.int32)
    at = np.full(len(home), past.clock[0])
    return Alerts(kinds, past.homes[home], sensor.astype(np.int32), at, since)
