"""What the Fleet page shows of a consumer group, as plain data.

    overview -> group_shown -> JSON -> page
                ^^^^^^^^^^^ this module

Everything the page writes stands here in the form in which it travels; the page only chooses
colours and puts separators into numbers. Unknown is None, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pumphouse.dashboard.views.ownership_history import Change
from pumphouse.dashboard.views.rates import Rate
from pumphouse.processor.admin.overview import BAD, BEHIND, MEANING, OK, Overview, PartitionRow

# Each column of the ownership table, and what it means, for somebody who sees it first.
COLUMNS: Mapping[str, str] = {
    "Partition": "One ordered log of the hub. Every event is in exactly one.",
    "Owner": "The host that reads it now. An arrow names the host it is being handed to.",
    "Epoch": "Rises by one whenever the partition changes hands, so that a late owner is refused.",
    "Lease left": "How long the owner may stay silent before others take the partition.",
    "Checkpoint": "The last event that was handled, by its sequence number.",
    "End": "The newest event of the partition.",
    "Lag": "Events between the two: sent, and not handled yet.",
    "Lag time": "How much older the last event handled is than the newest.",
    "In": "Events per second that are sent to it.",
    "Out": "Events per second that are handled.",
    "Verdict": "All of it in a word.",
}
STATES: Mapping[str, str] = {
    "stable": "every partition has an owner, and the hosts are within one of even",
    "moving": "partitions are changing hands, or wait for an owner",
    "uneven": "one host owns at least two more than another",
    "nobody": "no host reads this group",
}


# Hosts checkpoint every few seconds at best, so that much lag is how keeping up looks.
NEAR_S = 10.0


def calmed(found: Overview) -> Overview:
    """The same, without alarm about a lag that grew by a hair and is a few seconds long."""
    return replace(
        found,
        lines=tuple(
            replace(line, verdict=OK)
            if line.verdict == BEHIND and line.lag_s is not None and line.lag_s < NEAR_S
            else line
            for line in found.lines
        ),
    )


def group_shown(
    key: str,
    title: str,
    found: Overview,
    rates: Mapping[str, Rate],
    total: Rate,
    lease_s: float,
) -> dict[str, Any]:
    """One group: its header, its hosts and its table."""
    fewest, most = found.shares()
    return {
        "key": key,
        "title": title,
        "hub": found.hub,
        "group": found.group,
        "state": found.state,
        "meaning": STATES[found.state],
        "lease_s": lease_s,
        "hosts": hosts_shown(found),
        "share": [fewest, most],
        "lag": found.lag,
        "lag_s": rounded(found.lag_s_max),
        "in": rounded(total.into),
        "out": rounded(total.out),
        "attention": sum(line.bad for line in found.lines),
        "lines": [line_shown(line, rates.get(line.partition, Rate())) for line in found.lines],
        "trouble": "",
    }


def hosts_shown(found: Overview) -> list[dict[str, Any]]:
    """Every live host, with what it owns; one that owns nothing is there too."""
    return [
        {
            "name": host,
            "partitions": [line.partition for line in found.lines if line.owner == host],
            "lag": sum(line.lag or 0 for line in found.lines if line.owner == host),
        }
        for host in found.hosts
    ]


def line_shown(line: PartitionRow, rate: Rate) -> dict[str, Any]:
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
        "verdict": line.verdict,
        "bad": line.bad,
    }


def unreachable(key: str, title: str, hub: str, group: str, why: str) -> dict[str, Any]:
    """A group that could not be looked at, in the same shape; the page says why."""
    return {
        "key": key,
        "title": title,
        "hub": hub,
        "group": group,
        "state": "unknown",
        "meaning": "the hub or the store did not answer",
        "hosts": [],
        "lines": [],
        "attention": 0,
        "trouble": why,
    }


def change_shown(number: int, key: str, change: Change) -> dict[str, Any]:
    return {
        "n": number,
        "key": key,
        "at": change.at_ms,
        "partition": change.partition,
        "word": change.word,
        "from": change.before,
        "to": change.after,
        "epoch": change.epoch,
        "text": change.sentence,
    }


def words() -> dict[str, Any]:
    """What columns, verdicts and states mean: the page shows it to whoever asks."""
    return {
        "columns": dict(COLUMNS),
        "verdicts": {
            word: {"meaning": meaning, "bad": word in BAD} for word, meaning in MEANING.items()
        },
        "states": dict(STATES),
    }


def rounded(value: float | None) -> float | None:
    """A number that JSON knows; what is infinite is not known."""
    return None if value is None or not math.isfinite(value) else round(value, 1)
