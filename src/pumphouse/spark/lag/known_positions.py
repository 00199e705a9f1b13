"""Positions whose offset and time are known, and the lag of a query computed from them.

Spark's progress has the end of a batch as sequence numbers, which give the lag in events. The lag
in seconds, and the offset for a checkpoint, need the time and the offset of single events: of the
newest, which the hub reports, and of the last ones read, which tasks report. The progress has them
beside the hub, under a key that is not a valid name of a hub, as partition/event/ms/offset:

    {"sensors": {"0": 120}, "@positions": {"0/119/1763200000000/8192": 0}}

Other tools compute the lag from the same JSON. So every value is a map of numbers, and those that
are no sequence numbers are 0, or the same in the journal.

    progress -> progress_of_sources -> PositionHistory.add -> partition_lags -> listener
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pumphouse.spark.offsets import hubs_in, part_of_hub

POSITIONS_KEY, UNAVAILABLE_KEY, TENANCY_KEY, READER_KEY, WAITING_KEY, ERROR_KEY = (
    "@positions",
    "@unavailable",
    "@tenancy",
    "@reader",
    "@waiting",
    "@error",
)
POSITIONS_MAX = 256  # remembered for each partition


@dataclass(frozen=True, slots=True)
class KnownPosition:
    """The position of one event: its sequence number and, if known, its offset and time."""

    sequence: int
    offset: str | None = None
    enqueued_ms: int | None = None

    def to_text(self, partition: str) -> str:
        ms = "" if self.enqueued_ms is None else self.enqueued_ms
        return f"{partition}/{self.sequence}/{ms}/{self.offset or ''}"


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """The lag of a partition: the number of unread events, and the seconds between the last event
    read and the newest event (None if a time is not known yet)."""

    partition: str
    events: int
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag of a query in one hub, after a batch."""

    query: str
    name: str | None
    batch: int
    hub: str
    partitions: tuple[PartitionLag, ...]
    unavailable: tuple[str, ...] = ()
    reader: str = ""  # the namespace and the consumer group

    @property
    def description(self) -> str:
        """The source in words. Spark's progress has the address of an object instead."""
        return f"eventhubs[hub={self.hub}, group={self.group}, namespace={self.namespace}]"

    @property
    def namespace(self) -> str:
        return self.reader.partition("/")[0]

    @property
    def group(self) -> str:
        return self.reader.partition("/")[2]

    @property
    def events(self) -> int:
        return sum(partition.events for partition in self.partitions)

    @property
    def seconds(self) -> float | None:
        """The largest lag of a partition; None if the lag of any is not known."""
        lags = [partition.seconds for partition in self.partitions]
        known = [seconds for seconds in lags if seconds is not None]
        return max(known, default=0.0) if len(known) == len(lags) else None


@dataclass(frozen=True, slots=True)
class SourceProgress:
    """What a progress contains about one source of ours."""

    hub: str
    end: Mapping[str, int]  # the next event to read
    latest: Mapping[str, int]  # the number after the newest event
    positions: Mapping[str, tuple[KnownPosition, ...]]
    unavailable: tuple[str, ...]
    epochs: Mapping[str, int] = field(default_factory=dict)  # of a tenant, at the end of the batch
    reader: str = ""  # see `reader_name`


def progress_of_sources(progress: Mapping[str, Any]) -> list[SourceProgress]:
    """The sources of a query that are ours, in the form of classic Spark or of Connect."""
    sources = []
    for source in progress.get("sources", ()):
        end = parse_nested_json(source.get("endOffset"))
        latest = parse_nested_json(source.get("latestOffset"))
        if end is None or latest is None:
            continue
        for hub in hubs_in(latest):
            part = part_of_hub(latest, hub)
            if POSITIONS_KEY in part:
                sources.append(progress_of_hub(hub, part_of_hub(end, hub), part))
    return sources


def progress_of_hub(hub: str, end: Mapping[str, Any], latest: Mapping[str, Any]) -> SourceProgress:
    return SourceProgress(
        hub,
        end=end[hub],
        latest=latest[hub],
        positions=positions_from_json(latest[POSITIONS_KEY]),
        unavailable=tuple(latest.get(UNAVAILABLE_KEY, ())),
        epochs=epochs_in_offset(end),
        reader=next(iter(latest.get(READER_KEY, ())), ""),
    )


def reader_name(address: str, group: str) -> str:
    """A consumer group and its namespace: several namespaces may have hubs of one name."""
    return f"{address}/{group}".lower()


def epochs_in_offset(end: Mapping[str, Any]) -> dict[str, int]:
    """The epochs with which a tenant has read a batch; none if the query is not a tenant."""
    ranges = end.get(TENANCY_KEY, {}).get("stretches", {})
    return {name: epoch for name, (_, _, epoch) in ranges.items() if epoch is not None}


def parse_nested_json(value: Any) -> dict[str, Any] | None:
    """A JSON object, which may be text, or text inside text; None for anything else."""
    while isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    return value if isinstance(value, dict) else None


def positions_to_json(positions: Iterable[tuple[str, KnownPosition]]) -> dict[str, int]:
    return {position.to_text(partition): 0 for partition, position in positions}


def positions_from_json(fields: Iterable[str]) -> dict[str, tuple[KnownPosition, ...]]:
    """The positions by partition."""
    positions: dict[str, tuple[KnownPosition, ...]] = {}
    for text in fields:
        partition, sequence, ms, offset = text.split("/", 3)
        position = KnownPosition(int(sequence), offset or None, int(ms) if ms else None)
        positions[partition] = (*positions.get(partition, ()), position)
    return positions


class PositionHistory:
    """The known positions in the partitions of one hub, collected from progress."""

    def __init__(self) -> None:
        self._positions: dict[str, list[KnownPosition]] = {}  # by sequence number

    def add(self, positions: Mapping[str, tuple[KnownPosition, ...]]) -> None:
        for partition, new in positions.items():
            # A stored position beyond the newest event is older than a re-creation of the hub.
            newest = max((position.sequence for position in new), default=-1)
            old = [each for each in self._positions.get(partition, ()) if each.sequence <= newest]
            known = {position.sequence: position for position in (*old, *new)}
            by_sequence = sorted(known.values(), key=sequence_of)
            self._positions[partition] = by_sequence[-POSITIONS_MAX:]

    def at(self, partition: str, sequence: int) -> KnownPosition | None:
        """The position of exactly this event, if it is known."""
        known = self._positions.get(partition, [])
        index = bisect_left(known, sequence, key=sequence_of)
        is_known = index < len(known) and known[index].sequence == sequence
        return known[index] if is_known else None

    def enqueued_ms(self, partition: str, sequence: int) -> float | None:
        """When an event was enqueued: known, or interpolated between its known neighbours."""
        known = [
            each for each in self._positions.get(partition, ()) if each.enqueued_ms is not None
        ]
        index = bisect_left(known, sequence, key=sequence_of)
        if index < len(known) and known[index].sequence == sequence:
            return known[index].enqueued_ms
        if index in (0, len(known)):
            return None
        before, after = known[index - 1], known[index]
        assert before.enqueued_ms is not None
        assert after.enqueued_ms is not None
        fraction = (sequence - before.sequence) / (after.sequence - before.sequence)
        return before.enqueued_ms + fraction * (after.enqueued_ms - before.enqueued_ms)


def sequence_of(position: KnownPosition) -> int:
    return position.sequence


def partition_lags(source: SourceProgress, history: PositionHistory) -> tuple[PartitionLag, ...]:
    """The lag of each partition."""
    return tuple(
        partition_lag(partition, source.end.get(partition), latest, history)
        for partition, latest in source.latest.items()
    )


def partition_lag(
    partition: str, next_sequence: int | None, latest: int, history: PositionHistory
) -> PartitionLag:
    unread = max(0, latest - (next_sequence or 0))
    if not unread:
        return PartitionLag(partition, 0, 0.0)
    if not next_sequence:
        return PartitionLag(partition, unread, None)
    newest_ms = history.enqueued_ms(partition, latest - 1)
    read_ms = history.enqueued_ms(partition, next_sequence - 1)
    known = newest_ms is not None and read_ms is not None
    seconds = max(0.0, (newest_ms - read_ms) / 1000) if known else None  # type: ignore[operator]
    return PartitionLag(partition, unread, seconds)
