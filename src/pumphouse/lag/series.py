"""The series of an overview: values and labels by metric. Pure.

overviews of groups, partitions of a hub -> series -> meter -> Prometheus
                                            ^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pumphouse.client.base import PartitionProperties
from pumphouse.escapes import printable
from pumphouse.processor.admin import overview as statuses
from pumphouse.processor.admin.overview import Overview, PartitionRow
from pumphouse.telemetry import definitions
from pumphouse.telemetry.definitions import Metric

Labels = Mapping[str, str]
Series = dict[str, list[tuple[float, Labels]]]  # by the name of the metric

# The status numbers of the lag monitor Burrow: 1 OK, 2 WARN, 3 ERR, 4 STOP, 5 STALL.
OK, BEHIND, ERROR, STOPPED, STUCK = 1, 2, 3, 4, 5
STATUS = {
    statuses.IDLE: OK,
    statuses.OK: OK,
    statuses.MOVING: OK,
    statuses.UNREAD: OK,
    statuses.PAUSED: OK,  # on purpose
    statuses.BEHIND: BEHIND,
    statuses.NO_OWNER: ERROR,
    statuses.LOST: ERROR,
    statuses.AHEAD: ERROR,
    statuses.STOPPED: STOPPED,
    statuses.STUCK: STUCK,
}


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group at one instant, and the lag of its partitions in seconds."""

    overview: Overview
    lag_s: Mapping[str, float | None]  # by partition; None: unknown


def partition_series(namespace: str, partitions: Iterable[PartitionProperties]) -> Series:
    series: Series = {}
    for each in partitions:
        labels = {"namespace": namespace, "eventhub": each.hub, "partition": each.partition}
        add(series, definitions.LATEST_OFFSET, each.last_sequence, labels)
        add(series, definitions.EARLIEST_OFFSET, each.first_sequence, labels)
    return series


def group_series(namespace: str, groups: Iterable[GroupLag]) -> Series:
    series: Series = {}
    for group in groups:
        current = group.overview
        labels = {"namespace": namespace, "eventhub": current.hub, "group": current.group}
        for row in current.lines:
            add_row(series, row, group.lag_s.get(row.partition), labels)
        add_totals(series, group, labels)
    return series


def add_row(series: Series, row: PartitionRow, lag_s: float | None, group: Labels) -> None:
    labels = {**group, "partition": row.partition, "owner": printable(row.owner)}
    add(series, definitions.GROUP_OFFSET, row.checkpoint, labels)
    add(series, definitions.GROUP_LAG, row.lag, labels)
    add(series, definitions.GROUP_LAG_SECONDS, lag_s, labels)
    add(series, definitions.GROUP_STATUS, STATUS[row.status], labels)


def add_totals(series: Series, group: GroupLag, labels: Labels) -> None:
    """Add the totals of a group. One with an unknown part would be too small, so it is left out."""
    lags = known([row.lag for row in group.overview.lines])
    seconds = known([group.lag_s.get(row.partition) for row in group.overview.lines])
    add(series, definitions.GROUP_SUM_LAG, sum(lags) if lags else None, labels)
    add(series, definitions.GROUP_MAX_LAG, max(lags, default=None), labels)
    add(series, definitions.GROUP_MAX_LAG_SECONDS, max(seconds, default=None), labels)


def known(values: list[int | None] | list[float | None]) -> list[float]:
    """The values; none if one of them is unknown."""
    return [] if None in values else [value for value in values if value is not None]


def add(series: Series, metric: Metric, value: float | None, labels: Labels) -> None:
    """Add a value; an unknown one is not exported."""
    if value is not None:
        series.setdefault(metric.name, []).append((value, labels))
