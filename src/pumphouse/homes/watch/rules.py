"""The rules that raise alerts from activities, over columns: no IO, no clock, no random numbers.

    PartitionHistory, ActivityColumns -> apply_rules -> Alerts, PartitionHistory
                                         ^^^^^^^^^^^ this module

The same incident raises the same alert (kind, home, since) for any division of its readings into
batches, and for late readings. An alert that was raised before is not raised a second time.

Time is event time. Each partition has its own clock, which follows the readings of its homes. So
the sensors of a partition that is read late are not reported as silent. If a whole partition is
silent (the hub or its senders were down), that is an outage, and is not reported either.
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
    with_homes,
    without_expired,
)
from pumphouse.homes.watch.unusual import unusual_starts

DOOR, WINDOW, GLASS, SMOKE = (KINDS.index(kind) for kind in ("door", "window", "glass", "smoke"))
BREAK_IN, FIRE, FORGOTTEN_WINDOW, SILENT_SENSOR, UNUSUAL = range(len(ALERT_KINDS))

SAME_FIRE_MS: Final = 10 * MINUTE_MS  # smoke that returns sooner belongs to the same fire
# Of a home without changes every tenth reading is kept, and a home sends one reading a minute. A
# longer time without readings of any home is an outage.
OUTAGE_MS: Final = (ALIVE_EVERY + 5) * MINUTE_MS
# The clock of a partition is this quantile of the times of its homes, because a few homes have
# clocks that are ahead.
CLOCK_QUANTILE = 0.95

TEXTS = {
    (BREAK_IN, DOOR): "Door opened while the alarm is armed",
    (BREAK_IN, GLASS): "Glass broken while the alarm is armed",
    (FIRE, SMOKE): "Smoke or carbon monoxide above the alarm level",
    (FORGOTTEN_WINDOW, WINDOW): "Window open for too long",
}


@dataclass(frozen=True, slots=True)
class Alerts:
    """Alerts as columns."""

    kind: Ints  # index in ALERT_KINDS
    number: Ints  # of the home
    sensor: Ints  # index in KINDS
    at: Times
    since: Times

    def __len__(self) -> int:
        return len(self.at)

    def where(self, condition: Mask | NDArray[np.intp]) -> Alerts:
        return Alerts(
            self.kind[condition],
            self.number[condition],
            self.sensor[condition],
            self.at[condition],
            self.since[condition],
        )

    def fingerprints(self) -> UInt64s:
        return fingerprint(self.kind, self.number, self.sensor, self.since)

    def as_alerts(self) -> list[Alert]:
        columns = (self.kind, self.number, self.sensor, self.at, self.since)
        return [as_alert(*row) for row in zip(*(c.tolist() for c in columns), strict=True)]


def as_alert(kind: int, number: int, sensor: int, at: int, since: int) -> Alert:
    name = KINDS[sensor].capitalize()
    texts = {SILENT_SENSOR: f"{name} sensor sends no readings", UNUSUAL: f"{name} is unusual"}
    text = TEXTS.get((kind, sensor)) or texts[kind]
    return Alert(
        home_id(number), ALERT_KINDS[kind], KINDS[sensor], at, since, region_of(number), text
    )


def fingerprint(kind: Ints, number: Ints, sensor: Ints, since: Times) -> UInt64s:
    """The id of an alert as a 64-bit hash."""
    per_sensor = np.isin(kind, [ALERT_KINDS.index(name) for name in PER_SENSOR])
    subject = np.where(per_sensor, sensor, len(KINDS)).astype(np.uint64)
    home_and_kind = number.astype(np.uint64) << np.uint64(8) | kind.astype(np.uint64) << np.uint64(
        4
    )
    return mixed(mixed(home_and_kind | subject) ^ since.astype(np.uint64))


def fingerprints_of(alerts: Sequence[Alert]) -> UInt64s:
    return fingerprint(
        np.array([ALERT_KINDS.index(alert.kind) for alert in alerts], np.int32),
        np.array([home_number(alert.home) for alert in alerts], np.int32),
        np.array([KINDS.index(alert.sensor) for alert in alerts], np.int32),
        np.array([alert.since for alert in alerts], np.int64),
    )


def history_of_alerts(alerts: Sequence[Alert]) -> PartitionHistory:
    """A history of these alerts only, so that they are not raised a second time."""
    at = np.array([alert.at for alert in alerts], np.int64)
    return replace(EMPTY, raised=fingerprints_of(alerts), raised_at=at)


def mixed(words: UInt64s) -> UInt64s:
    """The final steps of SplitMix64."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


# -- all rules ------------------------------------------------------------------------------------


def apply_rules(
    history: PartitionHistory,
    activities: ActivityColumns,
    grace_ms: int,
    known: UInt64s,
    delegated: Mask | None = None,
) -> tuple[Alerts, PartitionHistory]:
    """The alerts that are due and were not raised before, and the new history.

    `known` are the fingerprints of alerts raised by an earlier run. A sensor is silent after
    SILENT_MS plus `grace_ms`, because readings may be late. `delegated` are the activities whose
    alarms (break-ins and fires) `sift` raises: the history contains them as raised.
    """
    order = order_of(activities)
    activities = activities.where(order)
    history = with_homes(history, np.unique(activities.number))
    row = history.row_of(activities.number)
    since_armed, history = follow_modes(history, activities, row)
    resumptions = outage_ends(history, activities)
    openings = break_in_rows(activities, since_armed)
    smoking, history = fire_rows(history, activities, row)
    alarms = alarms_of(activities, openings, smoking)
    if delegated is not None:
        by_sift = delegated[order][np.concatenate([openings, smoking])]
        known = np.concatenate([known, only_in(alarms, by_sift)])
    alerts = [alarms, forgotten_windows(activities, since_armed)]
    gaps, history = find_gaps(history, activities, row, resumptions, SILENT_MS + grace_ms)
    unusual, history = find_unusual(history, activities)
    history = move_clock(follow_windows(history, activities, row), activities, resumptions)
    alerts += [
        gaps,
        unusual,
        silences(history, SILENT_MS + grace_ms),
        left_open(history, grace_ms),
    ]
    new, history = deduplicated(history, concatenated(alerts), known)
    return new, without_expired(history)


def order_of(activities: ActivityColumns) -> NDArray[np.intp]:
    """The order of time."""
    return np.lexsort((activities.kind, activities.number, activities.at))


def concatenated(parts: list[Alerts]) -> Alerts:
    names = ("kind", "number", "sensor", "at", "since")
    return Alerts(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def deduplicated(
    history: PartitionHistory, due: Alerts, known: UInt64s
) -> tuple[Alerts, PartitionHistory]:
    """The due alerts that were not raised before. The history keeps an alert for a day after it was
    last due."""
    order = np.argsort(due.at, kind="stable")
    due = due.where(order)
    fingerprints, first = np.unique(due.fingerprints(), return_index=True)
    fresh = ~np.isin(fingerprints, history.raised) & ~np.isin(fingerprints, known)
    new = due.where(np.sort(first[fresh]))
    due_again = np.isin(history.raised, fingerprints)
    at = np.where(due_again, np.maximum(history.raised_at, history.clock[0]), history.raised_at)
    added = ~np.isin(fingerprints, history.raised)
    raised = np.concatenate([history.raised, fingerprints[added]])
    raised_at = np.concatenate([at, np.full(int(added.sum()), history.clock[0])])
    return new, replace(history, raised=raised, raised_at=raised_at)


def alerts_of(kind: int, activities: ActivityColumns, since: Times | None = None) -> Alerts:
    kinds = np.full(len(activities), kind, np.int32)
    return Alerts(
        kinds,
        activities.number,
        activities.kind,
        activities.at,
        activities.since if since is None else since,
    )


# -- modes ----------------------------------------------------------------------------------------


def follow_modes(
    history: PartitionHistory, activities: ActivityColumns, row: NDArray[np.intp]
) -> tuple[Times, PartitionHistory]:
    """When the alarm was armed, for each reading (0: not armed); and the history after the last."""
    armed = activities.mode > 0
    # The mode of a late reading applies to that reading only.
    late = activities.at < history.mode_at[row]
    before = history.armed[row]
    since = np.where(armed & (before > 0) & (before <= activities.at), before, activities.at)
    timely = np.flatnonzero(~late)
    order = timely[np.argsort(row[timely], kind="stable")]
    if len(order):
        since[order] = armed_since(row[order], activities.at[order], armed[order], before[order])
    since = np.where(armed, since, 0)
    ends = order[last_of_each(row[order])]
    now_armed, mode_at = history.armed.copy(), history.mode_at.copy()
    now_armed[row[ends]], mode_at[row[ends]] = since[ends], activities.at[ends]
    return since, replace(history, armed=now_armed, mode_at=mode_at)


def armed_since(row: NDArray[np.intp], at: Times, armed: Mask, before: Times) -> Times:
    """When each reading's run of armed readings began; `before` is `history.armed` of its home."""
    first = np.ones(len(row), bool)
    first[1:] = row[1:] != row[:-1]
    was_armed = np.empty(len(row), bool)
    was_armed[1:] = armed[:-1]
    was_armed[first] = before[first] > 0
    begins = np.where(was_armed & first, before, at)
    starts_run = armed & (first | ~was_armed)
    start = np.maximum.accumulate(np.where(starts_run, np.arange(len(row)), 0))
    return begins[start]


def last_of_each(row: NDArray[np.intp]) -> NDArray[np.intp]:
    """The index of the last of each run of equal rows."""
    return np.flatnonzero(np.append(row[1:] != row[:-1], True)) if len(row) else row


# -- readings that are alerts ---------------------------------------------------------------------


def alarms_of(
    activities: ActivityColumns, openings: NDArray[np.intp], smoking: NDArray[np.intp]
) -> Alerts:
    """The alerts that one reading decides: break-ins and fires."""
    return concatenated(
        [
            alerts_of(BREAK_IN, activities.where(openings)),
            alerts_of(FIRE, activities.where(smoking)),
        ]
    )


def only_in(alerts: Alerts, condition: Mask) -> UInt64s:
    """The fingerprints of the alerts that meet a condition at every activity that raises them."""
    return np.setdiff1d(
        alerts.where(condition).fingerprints(), alerts.where(~condition).fingerprints()
    )


def break_in_rows(activities: ActivityColumns, since_armed: Times) -> NDArray[np.intp]:
    """A door opened or a pane broken while the alarm was armed.

    The reading that reports the change contains the mode of the alarm. If that reading was lost, a
    later one raises the alert if the alarm was armed before the change.
    """
    active = np.isin(activities.kind, (DOOR, GLASS)) & (activities.value >= 1) & (since_armed > 0)
    age = activities.at - activities.since
    change = (age >= 0) & (age < CHANGE_MS)
    return np.flatnonzero(active & (change | (since_armed <= activities.since)))


def forgotten_windows(activities: ActivityColumns, since_armed: Times) -> Alerts:
    is_open = (activities.kind == WINDOW) & (activities.value >= 1)
    long_armed = activities.at - np.maximum(activities.since, since_armed) >= FORGOTTEN_ARMED_MS
    long = (since_armed > 0) & long_armed | (activities.at - activities.since >= FORGOTTEN_MS)
    return alerts_of(FORGOTTEN_WINDOW, activities.where(is_open & long))


def fire_rows(
    history: PartitionHistory, activities: ActivityColumns, row: NDArray[np.intp]
) -> tuple[NDArray[np.intp], PartitionHistory]:
    """Smoke above the alarm level, once per fire."""
    smoking = np.flatnonzero((activities.kind == SMOKE) & (activities.value >= SMOKE_ALARM_PPM))
    smoking = smoking[np.argsort(row[smoking], kind="stable")]
    home, at = row[smoking], activities.at[smoking]
    before = history.smoke[home]
    same = home[1:] == home[:-1]
    before[1:] = np.where(same, at[:-1], before[1:])
    new = np.abs(at - before) > SAME_FIRE_MS
    smoke = history.smoke.copy()
    np.maximum.at(smoke, home, at)
    return smoking[new], replace(history, smoke=smoke)


def find_unusual(
    history: PartitionHistory, activities: ActivityColumns
) -> tuple[Alerts, PartitionHistory]:
    starts, history = unusual_starts(history, activities)
    return alerts_of(UNUSUAL, activities.where(starts), activities.at[starts]), history


# -- missing readings -----------------------------------------------------------------------------


def outage_ends(history: PartitionHistory, activities: ActivityColumns) -> Times:
    """The ends of outages of the whole partition, starting with the last one in the history."""
    at = activities.at
    before = np.maximum.accumulate(np.concatenate([history.clock, at]))[:-1]
    ends = at[(at - before > OUTAGE_MS) & (before > 0)]
    return np.concatenate([history.resumed, ends])


def find_gaps(
    history: PartitionHistory,
    activities: ActivityColumns,
    row: NDArray[np.intp],
    resumptions: Times,
    silent_ms: int,
) -> tuple[Alerts, PartitionHistory]:
    """Sensors that send again after they were silent for too long.

    The silence during an outage, which ends at one of the `resumptions`, does not count.
    """
    slot = row * len(KINDS) + activities.kind
    order = np.argsort(slot, kind="stable")
    slot, at = slot[order], activities.at[order]
    last = history.last.reshape(-1).copy()
    before = last[slot]
    same = slot[1:] == slot[:-1]
    before[1:] = np.where(same, np.maximum(at[:-1], before[1:]), before[1:])
    resumed = resumptions[np.searchsorted(resumptions, at, side="right") - 1]
    silent = (before > 0) & (at - np.maximum(before, resumed) >= silent_ms)
    np.maximum.at(last, slot, at)
    alerts = alerts_of(SILENT_SENSOR, activities.where(order[silent]), before[silent])
    return alerts, replace(history, last=last.reshape(history.last.shape))


def move_clock(
    history: PartitionHistory, activities: ActivityColumns, resumptions: Times
) -> PartitionHistory:
    """Move the clock to the event time that nearly all active homes have reached; never back."""
    if not len(activities):
        return history
    latest = np.zeros(len(history.homes), np.int64)
    np.maximum.at(latest, history.row_of(activities.number), activities.at)
    active = np.sort(latest[latest > 0])
    clock = max(int(history.clock[0]), int(active[int(CLOCK_QUANTILE * (len(active) - 1))]))
    return replace(history, clock=np.array([clock]), resumed=resumptions[-1:])


def silences(history: PartitionHistory, silent_ms: int) -> Alerts:
    """Sensors that have been silent for too long at the time of the partition's clock."""
    quiet_since = np.maximum(history.last, history.resumed[0])
    home, kind = np.nonzero((history.last > 0) & (history.clock[0] - quiet_since >= silent_ms))
    return alerts_now(history, SILENT_SENSOR, home, kind, history.last[home, kind])


def follow_windows(
    history: PartitionHistory, activities: ActivityColumns, row: NDArray[np.intp]
) -> PartitionHistory:
    # A late reading is outdated, and a fault has no value.
    valid = (
        (activities.kind == WINDOW)
        & ~np.isnan(activities.value)
        & (activities.at >= history.last[row, WINDOW])
    )
    opened = history.opened.copy()
    # In order of time, so the last of several readings wins.
    opened[row[valid]] = np.where(activities.value[valid] >= 1, activities.since[valid], 0)
    return replace(history, opened=opened)


def left_open(history: PartitionHistory, grace_ms: int) -> Alerts:
    """Windows that were open at their last reading, and have now been open for too long."""
    now = history.clock[0] - grace_ms
    long_armed = (history.armed > 0) & (
        now - np.maximum(history.opened, history.armed) >= FORGOTTEN_ARMED_MS
    )
    long = long_armed | (now - history.opened >= FORGOTTEN_MS)
    (home,) = np.nonzero((history.opened > 0) & long)
    return alerts_now(
        history, FORGOTTEN_WINDOW, home, np.full(len(home), WINDOW), history.opened[home]
    )


def alerts_now(
    history: PartitionHistory,
    kind: int,
    home: NDArray[np.intp],
    sensor: NDArray[np.intp],
    since: Times,
) -> Alerts:
    """Alerts at the time of the partition's clock; `home` are rows of the history."""
    kinds = np.full(len(home), kind, np.int32)
    at = np.full(len(home), history.clock[0])
    return Alerts(kinds, history.homes[home], sensor.astype(np.int32), at, since)
