"""The rules that one reading decides, `change` and `threshold`; and combinations of readings.

    PartitionHistory, ActivityColumns -> alarm_rows -> which activities raise which alerts
                                      -> combined -> Alerts
                                         ^^^^^^^^ this module

The stage sift applies the former, the stage watch applies all of them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pumphouse.homes.kinds.model import Change, Combination, Kinds, Threshold
from pumphouse.homes.schema import CHANGE_MS
from pumphouse.homes.watch.alerts import Alerts, alerts_of, concatenated
from pumphouse.homes.watch.history import ActivityColumns, Ints, Mask, PartitionHistory, Times

Rows = NDArray[np.intp]
AlarmRows = list[tuple[int, Rows]]  # for each kind of alert: the activities that raise it


def alarm_rows(
    kinds: Kinds,
    history: PartitionHistory,
    activities: ActivityColumns,
    row: Rows,
    since_armed: Times,
) -> tuple[AlarmRows, PartitionHistory]:
    """The activities that raise alerts by the rules `change` and `threshold`; the new history."""
    raised = changed_rows(kinds, activities, since_armed)
    met = history.met.copy()
    for column, (kind, rule) in enumerate(kinds.rules(Threshold)):
        in_range = rule.values.contains(activities.value)
        rows = np.flatnonzero((activities.kind == kind) & in_range)
        rows = first_of_each(rows, row[rows], activities.at, met[:, column], rule.same_ms)
        raised.append((kinds.alert_index(rule.alert), rows))
    return raised, replace(history, met=met)


def alarms_of(activities: ActivityColumns, raised: AlarmRows) -> Alerts:
    return concatenated([alerts_of(alert, activities.where(rows)) for alert, rows in raised])


def rows_of(raised: AlarmRows) -> Rows:
    """The activity of each alert of `alarms_of`."""
    return np.concatenate([np.empty(0, np.intp), *(rows for _, rows in raised)])


def changed_rows(kinds: Kinds, activities: ActivityColumns, since_armed: Times) -> AlarmRows:
    """The readings of sensors that became active; for some rules, only while the alarm was armed.

    The reading that reports the change contains the mode of the alarm. If that reading was lost, a
    later one raises the alert if the alarm was armed before the change.
    """
    age = activities.at - activities.since
    is_change = (age >= 0) & (age < CHANGE_MS)
    armed = (since_armed > 0) & (is_change | (since_armed <= activities.since))
    by_alert: dict[str, Mask] = {}
    for kind, rule in kinds.rules(Change):
        active = (activities.kind == kind) & rule.values.contains(activities.value)
        raises = active & armed if rule.armed else active
        by_alert[rule.alert] = by_alert.get(rule.alert, np.zeros(len(age), bool)) | raises
    return [(kinds.alert_index(name), np.flatnonzero(mask)) for name, mask in by_alert.items()]


def first_of_each(rows: Rows, home: Rows, at: Times, before: Times, same_ms: int) -> Rows:
    """The rows that begin an incident: the last reading of their home is over `same_ms` away.

    `before` has the time of the last such reading of each home, and is updated.
    """
    order = np.argsort(home, kind="stable")
    rows, home = rows[order], home[order]
    last = before[home]
    same = home[1:] == home[:-1]
    last[1:] = np.where(same, at[rows][:-1], last[1:])
    np.maximum.at(before, home, at[rows])
    begins: Rows = rows[np.abs(at[rows] - last) > same_ms]
    return begins


# -- combinations


def combined(
    kinds: Kinds, history: PartitionHistory, activities: ActivityColumns, row: Rows
) -> tuple[list[Alerts], PartitionHistory]:
    """The alerts of the combinations, and the new history.

    The columns of a combination in `history.met` are the last time when all of its conditions held,
    and for each condition the last time when it held, with the `since` of that reading.
    """
    met, raised, column = history.met.copy(), list[Alerts](), len(kinds.rules(Threshold))
    for combination in kinds.combinations:
        width = combination.columns
        columns = met[:, column : column + width]  # a view
        condition = conditions_met(kinds, combination, activities)
        rows, since = completed(combination, columns, activities, row, condition)
        kind = kinds.alert_index(combination.alert)
        raised.append(alerts_of(kind, activities.where(rows), since))
        column += width
    return raised, replace(history, met=met)


def conditions_met(kinds: Kinds, combination: Combination, activities: ActivityColumns) -> Ints:
    """The index of the condition that each activity meets; -1 for none."""
    met = np.full(len(activities), -1, np.int32)
    for index, condition in enumerate(combination.conditions):
        of_kind = activities.kind == kinds.names.index(condition.kind)
        met[of_kind & condition.values.contains(activities.value)] = index
    return met


def completed(
    combination: Combination,
    columns: Times,
    activities: ActivityColumns,
    row: Rows,
    condition: Ints,
) -> tuple[Rows, Times]:
    """The activities with which all conditions hold, and since when. In order of time: few
    activities meet a condition."""
    rows, sinces = [], []
    for index in np.flatnonzero(condition >= 0).tolist():
        home, at = columns[row[index]], int(activities.at[index])
        times, since = home[1::2], home[2::2]
        if at >= times[condition[index]]:
            times[condition[index]], since[condition[index]] = at, activities.since[index]
        if (np.abs(times - at) <= combination.within_ms).all():
            if abs(at - int(home[0])) > combination.within_ms:
                rows.append(index)
                sinces.append(int(since.max()))
            home[0] = max(int(home[0]), at)
    return np.array(rows, np.intp), np.array(sinces, np.int64)
