"""Events that are known by number, offset and time; and how far behind a query is, from them.

Spark tells in its progress where a batch ended, as sequence numbers. How many events wait is then
plain; for how long, and with which offset a checkpoint would name the place, must be known of
single events: of the newest, which the hub tells, and of the last ones read, which tasks tell. In
the progress they stand beside the hub, under a name that no hub can have:

    {"sensors": {"0": 120}, "@marks": {"0": {"newest": [119, "8192", 1763...], "read": [...]}}}

    progress -> sources_of -> Memory.learn -> lag_of -> EventHubsLagListener
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POSITIONS_KEY, UNAVAILABLE_KEY, TENANCY_KEY, READER_KEY = (
    "@marks",
    "@unavailable",
    "@tenancy",
    "@reader",
)
POSITIONS_MAX = 256  # marks of a partition


@dataclass(frozen=True, slots=True)
class KnownPosition:
    """One event, known."""

    sequence: int
    offset: str | None = None
    enqueued_ms: int | None = None

    def to_json(self) -> list[Any]:
        return [self.sequence, self.offset, self.enqueued_ms]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a partition is behind: events that wait, and how much older than the newest one the
    last one read is. None if that is not known (yet)."""

    partition: str
    events: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a query is behind in one hub, after a batch."""

    query: str
    name: str | None
    batch: int
    hub: str
    partitions: tuple[PartitionLag, ...]
    unavailable: tuple[str, ...] = ()

    @property
    def events(self) -> int:
        return sum(one.events for one in self.partitions)

    @property
    def seconds(self) -> float | None:
        """That of the partition which is furthest behind; None if one is not known."""
        found = [one.seconds for one in self.partitions]
        known = [seconds for seconds in found if seconds is not None]
        return max(known, default=0.0) if len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What a progress says of one source of ours."""

    hub: str
    end: Mapping[str, int]  # the next event to be read
    latest: Mapping[str, int]
    marks: Mapping[str, tuple[KnownPosition, ...]]
    unavailable: tuple[str, ...]
    epochs: Mapping[str, int] = field(default_factory=dict)  # of a tenant, at the end of the batch
    reader: str = ""  # as whom the query reads: see `reader_of`


def progress_of_sources(progress: Mapping[str, Any]) -> list[SourceProgress]:
    """The sources of a query that are ours; classic Spark and Connect write them differently."""
    found = []
    for source in progress.get("sources", ()):
        end, latest = (
            parse_nested_json(source.get("endOffset")),
            parse_nested_json(source.get("latestOffset")),
        )
        if end is None or latest is None or POSITIONS_KEY not in latest:
            continue
        for hub in (name for name in latest if not name.startswith("@")):
            found.append(
                SourceProgress(
                    hub,
                    end=end.get(hub, {}),
                    latest=latest[hub],
                    marks={
                        one: positions_from_json(told)
                        for one, told in latest[POSITIONS_KEY].items()
                    },
                    unavailable=tuple(latest.get(UNAVAILABLE_KEY, ())),
                    epochs=epochs_in_offset(end),
                    reader=latest.get(READER_KEY, ""),
                )
            )
    return found


def reader_name(place: str, group: str) -> str:
    """A consumer group and where it is: hubs of one name may be in several places."""
    return f"{place}/{group}".lower()


def epochs_in_offset(end: Mapping[str, Any]) -> dict[str, int]:
    """The epochs under which a tenant has read a batch; none if the query is no tenant."""
    stretches = end.get(TENANCY_KEY, {}).get("stretches", {})
    return {one: epoch for one, (_, _, epoch) in stretches.items() if epoch is not None}


def parse_nested_json(told: Any) -> dict[str, Any] | None:
    """JSON, perhaps as text, perhaps as text within text."""
    while isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return None
    return told if isinstance(told, dict) else None


def positions_from_json(told: Mapping[str, Any]) -> tuple[KnownPosition, ...]:
    return tuple(KnownPosition(*one) for one in told.values() if one is not None)


class PositionHistory:
    """Marks of the partitions of one hub, as progress told of them."""

    def __init__(self) -> None:
        self._marks: dict[str, list[KnownPosition]] = {}  # by sequence

    def learn(self, marks: Mapping[str, tuple[KnownPosition, ...]]) -> None:
        for partition, told in marks.items():
            # Nothing lies behind the newest event, unless it is of a hub that was re-created.
            newest = max((mark.sequence for mark in told), default=-1)
            before = [mark for mark in self._marks.get(partition, ()) if mark.sequence <= newest]
            known = {mark.sequence: mark for mark in (*before, *told)}
            rising = sorted(known.values(), key=lambda mark: mark.sequence)
            self._marks[partition] = rising[-POSITIONS_MAX:]

    def at(self, partition: str, sequence: int) -> KnownPosition | None:
        """The mark of exactly this event."""
        known = self._marks.get(partition, [])
        place = bisect_left(known, sequence, key=lambda mark: mark.sequence)
        found = place < len(known) and known[place].sequence == sequence
        return known[place] if found else None

    def enqueued_ms(self, partition: str, sequence: int) -> float | None:
        """When an event was enqueued: known, or between the events next to it that are known."""
        known = [mark for mark in self._marks.get(partition, ()) if mark.enqueued_ms is not None]
        place = bisect_left(known, sequence, key=lambda mark: mark.sequence)
        if place < len(known) and known[place].sequence == sequence:
            return known[place].enqueued_ms
        if place in (0, len(known)):
            return None
        before, after = known[place - 1], known[place]
        assert before.enqueued_ms is not None
        assert after.enqueued_ms is not None
        part = (sequence - before.sequence) / (after.sequence - before.sequence)
        return before.enqueued_ms + part * (after.enqueued_ms - before.enqueued_ms)


def partition_lags(source: SourceProgress, memory: PositionHistory) -> tuple[PartitionLag, ...]:
    """How far each partition is behind."""
    return tuple(
        partition_lag(partition, source.end.get(partition), latest, memory)
        for partition, latest in source.latest.items()
    )


def partition_lag(
    partition: str, following: int | None, latest: int, memory: PositionHistory
) -> PartitionLag:
    waiting = max(0, latest - (following or 0))
    if not waiting:
        return PartitionLag(partition, 0, 0.0)
    if not following:
        return PartitionLag(partition, waiting, None)
    newest = memory.enqueued_ms(partition, latest - 1)
    read = memory.enqueued_ms(partition, following - 1)
    known = newest is not None and read is not None
    seconds = max(0.0, (newest - read) / 1000) if known else None  # type: ignore[operator]
    return PartitionLag(partition, waiting, seconds)
