"""The data of the Fleet page: consumer groups with their hosts and partitions.

    overview -> group_json -> JSON -> page
                ^^^^^^^^^^^ this module

The page only formats these values. An unknown value is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pumphouse.dashboard.views.ownership_history import Change
from pumphouse.dashboard.views.rates import Rate
from pumphouse.dashboard.views.table import TableColumn, columns_json
from pumphouse.processor.admin.overview import (
    BAD,
    BEHIND,
    MEANING,
    OK,
    UNOWNED,
    Overview,
    PartitionRow,
)

# The columns of the ownership table. A row has a field for each of them; the page formats the cell
# in static/ownership_table.js.
COLUMNS = (
    TableColumn("partition", "Partition", "An ordered log of the hub.", numeric=False),
    TableColumn(
        "owner",
        "Owner",
        "The host that reads the partition. An arrow shows the successor during a hand-over.",
        numeric=False,
    ),
    TableColumn("epoch", "Epoch", "Rises with every change of owner; a stale owner is refused."),
    TableColumn(
        "lease_left_s",
        "Lease left",
        "Time until the lease expires and another host may claim the partition.",
        numeric=False,
    ),
    TableColumn("checkpoint", "Checkpoint", "Sequence number of the last handled event."),
    TableColumn("end", "End", "Sequence number of the newest event."),
    TableColumn("lag", "Lag", "Number of events that are not handled yet."),
    TableColumn("lag_s", "Lag time", "Time between the last handled and the newest event."),
    TableColumn("in", "In", "Events per second that are sent to the partition."),
    TableColumn("out", "Out", "Events per second that are handled."),
    TableColumn("status", "Status", "Summary of the state of the partition.", numeric=False),
)
STATES: Mapping[str, str] = {
    "stable": "every partition has an owner, and the shares differ by at most one",
    "moving": "some partitions have no owner, or are being handed over",
    "uneven": "one host owns at least two partitions more than another",
    "stopped": "an event that cannot be handled has stopped a partition, until it is resumed",
    "stuck": "a partition has events waiting and makes no progress",
    UNOWNED: "no partition has an owner",
}


# Hosts checkpoint every few seconds at best, so a lag of a few seconds is normal.
SHORT_LAG_S = 10.0


def without_short_lags(overview: Overview) -> Overview:
    """The overview with OK in place of BEHIND for partitions that lag only a few seconds."""
    return replace(
        overview,
        lines=tuple(
            replace(line, status=OK)
            if line.status == BEHIND and line.lag_s is not None and line.lag_s < SHORT_LAG_S
            else line
            for line in overview.lines
        ),
    )


def group_json(
    key: str,
    title: str,
    overview: Overview,
    rates: Mapping[str, Rate],
    total: Rate,
    lease_s: float,
) -> dict[str, Any]:
    """One group: header, hosts and ownership table."""
    fewest, most = overview.shares()
    return {
        "key": key,
        "title": title,
        "hub": overview.hub,
        "group": overview.group,
        "status": overview.state,
        "state": "nobody" if overview.state == UNOWNED else overview.state,  # deprecated
        "meaning": STATES[overview.state],
        "lease_s": lease_s,
        "hosts": hosts_json(overview),
        "share": [fewest, most],
        "lag": overview.lag,
        "lag_s": rounded(overview.lag_s_max),
        "in": rounded(total.into),
        "out": rounded(total.out),
        "attention": sum(line.bad for line in overview.lines),
        "lines": [line_json(line, rates.get(line.partition, Rate())) for line in overview.lines],
        "trouble": "",
    }


def hosts_json(overview: Overview) -> list[dict[str, Any]]:
    """Every live host with its partitions, also one that owns none."""
    return [
        {
            "name": host,
            "partitions": [line.partition for line in overview.lines if line.owner == host],
            "lag": sum(line.lag or 0 for line in overview.lines if line.owner == host),
        }
        for host in overview.hosts
    ]


def line_json(line: PartitionRow, rate: Rate) -> dict[str, Any]:
    return {
        "partition": line.partition,
        "owner": line.owner,
        "successor": line.successor,
        "epoch": line.epoch,
        "lease_left_s": rounded(line.lease_left_s),
        "checkpoint": line.checkpoint,
        "end": line.end if line.end >= 0 else None,
        "lag": line.lag,
        "lag_s": rounded(line.lag_s),
        "in": rounded(rate.into),
        "out": rounded(rate.out),
        "status": line.status,
        "verdict": line.status,  # deprecated
        "bad": line.bad,
    }


def unreachable(key: str, title: str, hub: str, group: str, reason: str) -> dict[str, Any]:
    """A group that cannot be read: the fields of `group_json` without data, and the reason."""
    return {
        "key": key,
        "title": title,
        "hub": hub,
        "group": group,
        "status": "unknown",
        "state": "unknown",  # deprecated
        "meaning": "the hub or the store did not respond",
        "hosts": [],
        "lines": [],
        "attention": 0,
        "trouble": reason,
    }


def change_json(number: int, key: str, change: Change) -> dict[str, Any]:
    return {
        "n": number,
        "key": key,
        "at": change.at_ms,
        "partition": change.partition,
        "kind": change.kind,
        "word": change.kind,  # deprecated
        "from": change.before,
        "to": change.after,
        "epoch": change.epoch,
        "text": change.sentence,
    }


def vocabulary() -> dict[str, Any]:
    """The meaning of columns, statuses and states, for the tooltips and help texts."""
    statuses = {
        status: {"meaning": meaning, "bad": status in BAD} for status, meaning in MEANING.items()
    }
    return {
        "columns": columns_json(COLUMNS),
        "statuses": statuses,
        "verdicts": statuses,  # deprecated
        "states": dict(STATES),
    }


def rounded(value: float | None) -> float | None:
    """One decimal place; None for an unknown or infinite value, which JSON cannot represent."""
    return None if value is None or not math.isfinite(value) else round(value, 1)
