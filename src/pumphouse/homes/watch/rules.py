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
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.kinds.defaults import DEFAULT
from pumphouse.homes.kinds.model import Kinds, Lasting, Silence, Unusual
from pumphouse.homes.schema import ALIVE_EVERY, MINUTE_MS, Alert
from pumphouse.homes.watch.alarms import alarm_rows, alarms_of, combined, rows_of
from pumphouse.homes.watch.alerts import Alerts, alerts_of, concatenated, fingerprints_of
from pumphouse.homes.watch.history import (
    NEVER,
    ActivityColumns,
    Ints,
    Mask,
    PartitionHistory,
    Times,
    UInt64s,
    empty,
    with_homes,
    without_expired,
)
from pumphouse.homes.watch.unusual import unusual_starts

# Of a home without changes every tenth reading is kept, and a home sends one reading a minute. A
# longer time without readings of any home is an outage.
OUTAGE_MS: Final = (ALIVE_EVERY + 5) * MINUTE_MS
# The clock of a partition is this quantile of the times of its homes, because a few homes have
# clocks that are ahead.
CLOCK_QUANTILE = 0.95


def history_of_alerts(alerts: Sequence[Alert], kinds: Kinds = DEFAULT) -> PartitionHistory:
    """A history of these alerts only, so that they are not raised a second time."""
    at = np.array([alert.at for alert in alerts], np.int64)
    return replace(empty(kinds), raised=fingerprints_of(alerts, kinds), raised_at=at)


# -- all rules ------------------------------------------------------------------------------------


def apply_rules(
    history: PartitionHistory,
    activities: ActivityColumns,
    grace_ms: int,
    known: UInt64s,
    delegated: Mask | None = None,
    kinds: Kinds = DEFAULT,
) -> tuple[Alerts, PartitionHistory]:
    """The alerts that are due and were not raised before, and the new history.

    `known` are the fingerprints of alerts raised by an earlier run. A sensor is silent after the
    time of its rule plus `grace_ms`, because readings may be late. `delegated` are the activities
    whose alarms (such as break-ins and fires) `sift` raises: the history contains them as raised.
    """
    order = order_of(activities)
    activities = activities.where(order)
    history = with_homes(history, np.unique(activities.number))
    row = history.row_of(activities.number)
    since_armed, history = follow_modes(history, activities, row)
    resumptions = outage_ends(history, activities)
    raising, history = alarm_rows(kinds, history, activities, row, since_armed)
    alarms = alarms_of(activities, raising)
    if delegated is not None:
        known = np.concatenate([known, only_in(alarms, delegated[order][rows_of(raising)])])
    alerts = [alarms, *lasted(kinds, activities, since_armed)]
    silence = SilenceRules(kinds, grace_ms)
    gaps, history = find_gaps(history, activities, row, resumptions, silence)
    unusual, history = find_unusual(history, activities, kinds)
    combinations, history = combined(kinds, history, activities, row)
    history = follow_lasting(kinds, history, activities, row)
    history = move_clock(history, activities, resumptions)
    alerts += [gaps, unusual, *combinations, silences(history, silence)]
    alerts += still_lasting(kinds, history, grace_ms)
    new, history = deduplicated(history, concatenated(alerts), known)
    return new, without_expired(history)


def order_of(activities: ActivityColumns) -> NDArray[np.intp]:
    """The order of time."""
    return np.lexsort((activities.kind, activities.number, activities.at))


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


def only_in(alerts: Alerts, condition: Mask) -> UInt64s:
    """The fingerprints of the alerts that meet a condition at every activity that raises them."""
    return np.setdiff1d(
        alerts.where(condition).fingerprints(), alerts.where(~condition).fingerprints()
    )


def find_unusual(
    history: PartitionHistory, activities: ActivityColumns, kinds: Kinds
) -> tuple[Alerts, PartitionHistory]:
    starts, history = unusual_starts(history, activities, kinds)
    alert_of = np.zeros(len(kinds.names), np.int32)
    for kind, rule in kinds.rules(Unusual):
        alert_of[kind] = kinds.alert_index(rule.alert)
    unusual = activities.where(starts)
    return alerts_of(alert_of[unusual.kind], unusual, unusual.at), history


# -- values that last -----------------------------------------------------------------------------


def lasted(kinds: Kinds, activities: ActivityColumns, since_armed: Times) -> list[Alerts]:
    """Readings with a value that has lasted for too long."""
    return [
        alerts_of(
            kinds.alert_index(rule.alert),
            activities.where(
                (activities.kind == kind)
                & rule.values.contains(activities.value)
                & is_long(rule, activities.at, activities.since, since_armed)
            ),
        )
        for kind, rule in kinds.rules(Lasting)
    ]


def is_long(rule: Lasting, now: Times | int, since: Times, since_armed: Times) -> Mask:
    """Whether a value has lasted too long: in any mode, or while the alarm is armed."""
    long: Mask = now - since >= rule.any_ms
    if rule.armed_ms is not None:
        armed_ms = now - np.maximum(since, since_armed)
        long |= (since_armed > 0) & (armed_ms >= rule.armed_ms)
    return long


def follow_lasting(
    kinds: Kinds, history: PartitionHistory, activities: ActivityColumns, row: NDArray[np.intp]
) -> PartitionHistory:
    since = history.lasting.copy()
    for column, (kind, rule) in enumerate(kinds.rules(Lasting)):
        # A late reading is outdated, and a fault has no value.
        valid = (
            (activities.kind == kind)
            & ~np.isnan(activities.value)
            & (activities.at >= history.last[row, kind])
        )
        holds = rule.values.contains(activities.value[valid])
        # In order of time, so the last of several readings wins.
        since[row[valid], column] = np.where(holds, activities.since[valid], 0)
    return replace(history, lasting=since)


def still_lasting(kinds: Kinds, history: PartitionHistory, grace_ms: int) -> list[Alerts]:
    """Values that held at the last reading, and have now lasted for too long."""
    now, alerts = int(history.clock[0]) - grace_ms, []
    for column, (kind, rule) in enumerate(kinds.rules(Lasting)):
        since = history.lasting[:, column]
        (home,) = np.nonzero((since > 0) & is_long(rule, now, since, history.armed))
        alert, sensor = kinds.alert_index(rule.alert), np.full(len(home), kind)
        alerts.append(alerts_now(history, alert, home, sensor, since[home]))
    return alerts


# -- missing readings -----------------------------------------------------------------------------


class SilenceRules:
    """For each kind: how long a sensor may be silent, and the alert; NEVER without a rule."""

    def __init__(self, kinds: Kinds, grace_ms: int) -> None:
        self.after_ms = np.full(len(kinds.names), NEVER)
        self.alert = np.zeros(len(kinds.names), np.int32)
        for kind, rule in kinds.rules(Silence):
            self.after_ms[kind] = rule.after_ms + grace_ms
            self.alert[kind] = kinds.alert_index(rule.alert)


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
    silence: SilenceRules,
) -> tuple[Alerts, PartitionHistory]:
    """Sensors that send again after they were silent for too long.

    The silence during an outage, which ends at one of the `resumptions`, does not count.
    """
    slot = row * history.last.shape[1] + activities.kind
    order = np.argsort(slot, kind="stable")
    slot, at = slot[order], activities.at[order]
    last = history.last.reshape(-1).copy()
    before = last[slot]
    same = slot[1:] == slot[:-1]
    before[1:] = np.where(same, np.maximum(at[:-1], before[1:]), before[1:])
    resumed = resumptions[np.searchsorted(resumptions, at, side="right") - 1]
    silent_ms = silence.after_ms[activities.kind[order]]
    silent = (before > 0) & (at - np.maximum(before, resumed) >= silent_ms)
    np.maximum.at(last, slot, at)
    resuming = activities.where(order[silent])
    alerts = alerts_of(silence.alert[resuming.kind], resuming, before[silent])
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


def silences(history: PartitionHistory, silence: SilenceRules) -> Alerts:
    """Sensors that have been silent for too long at the time of the partition's clock."""
    quiet_since = np.maximum(history.last, history.resumed[0])
    is_silent = history.clock[0] - quiet_since >= silence.after_ms
    home, kind = np.nonzero((history.last > 0) & is_silent)
    return alerts_now(history, silence.alert[kind], home, kind, history.last[home, kind])


def alerts_now(
    history: PartitionHistory,
    kind: int | Ints,
    home: NDArray[np.intp],
    sensor: NDArray[np.intp],
    since: Times,
) -> Alerts:
    """Alerts at the time of the partition's clock; `home` are rows of the history."""
    kinds = np.broadcast_to(np.asarray(kind, np.int32), len(home))
    at = np.full(len(home), history.clock[0])
    return Alerts(kinds, history.homes[home], sensor.astype(np.int32), at, since)
