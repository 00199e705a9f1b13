"""Arithmetic with offsets: for each partition the sequence number to be read next.

Spark journals offsets as JSON, in the form the Scala connector wrote, so that its checkpoints go on
here: {"sensors": {"0": 120, "1": 87}}. A batch reads, for each partition, from its number in the
start (inclusive) to its number in the end (exclusive).

    initialOffset, latestOffset -> Offsets -> spans -> tasks
                                   ^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from typing import Any

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError, PumphouseError

Offsets = Mapping[str, int]  # partition -> the sequence number to be read next


class DataLoss(PumphouseError):
    """Events that should be read next are gone, or the hub was re-created."""


@dataclass(frozen=True, slots=True)
class Span:
    """The events [first, last) of one partition."""

    partition: str
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first


def order(partition: str) -> tuple[int, str]:
    """Partitions are named by numbers, and 10 comes after 9."""
    return (int(partition) if partition.isdecimal() else 1 << 62, partition)


# -- JSON -----------------------------------------------------------------------------------------


def to_json(hub: str, offsets: Offsets) -> dict[str, dict[str, int]]:
    """As Spark shall write it; partitions in their natural order, so that equal is equal."""
    return {hub: {partition: offsets[partition] for partition in sorted(offsets, key=order)}}


def from_json(hub: str, found: str | Mapping[str, Any]) -> dict[str, int]:
    """Offsets out of a checkpoint; one that belongs to another hub is refused."""
    try:
        journal = json.loads(found) if isinstance(found, str) else found
        hubs = {str(name).lower(): offsets for name, offsets in journal.items()}
        if hub.lower() not in hubs:
            raise OptionError(
                f"the checkpoint is of hub {', '.join(map(str, journal)) or '(none)'}, and the "
                f"query reads hub {hub}; use another checkpointLocation"
            )
        return {str(partition): int(number) for partition, number in hubs[hub.lower()].items()}
    except (ValueError, TypeError, AttributeError) as wrong:
        if isinstance(wrong, OptionError):
            raise
        raise OptionError(
            f"{found!r:.200} is no offset of this source; expected "
            f'{{"{hub}": {{"0": 120, "1": 87}}}}'
        ) from None


# -- the borders of a partition -------------------------------------------------------------------


def earliest(found: PartitionProperties) -> int:
    return found.last_sequence + 1 if found.empty else max(0, found.first_sequence)


def latest(found: PartitionProperties) -> int:
    return found.last_sequence + 1


# -- how much of what waits a batch takes ---------------------------------------------------------


def with_new_partitions(start: Offsets, begins: Offsets) -> dict[str, int]:
    """A start that knows every partition: one that is new is read from its beginning.

    All functions below take such a start.
    """
    return {**begins, **start}


def backlog(start: Offsets, end: Offsets) -> dict[str, int]:
    """Events that wait, by partition."""
    return {partition: max(0, end[partition] - start[partition]) for partition in end}


def prorate(start: Offsets, end: Offsets, limit: int) -> dict[str, int]:
    """An end that takes at most `limit` events, from each partition its part of the backlog.

    The parts sum to the limit exactly. Every partition that waits gets one event at least, so that
    a small one does not starve beside a huge one (if the limit is below their number: the longest
    backlogs get one each).
    """
    waiting = {one: count for one, count in backlog(start, end).items() if count}
    if sum(waiting.values()) <= limit:
        return not_before({one: start[one] for one in end}, end)
    if limit <= len(waiting):
        first = sorted(waiting, key=lambda one: (-waiting[one], order(one)))[:limit]
        taken = dict.fromkeys(first, 1)
    else:
        taken = give_each_one(apportion(waiting, limit))
    return {one: start[one] + taken.get(one, 0) for one in end}


def give_each_one(parts: Mapping[str, int]) -> dict[str, int]:
    """Parts of which none is empty, with the same sum: the largest give."""
    largest = [(-part, order(one), one) for one, part in parts.items() if part > 1]
    heapify(largest)
    fair = dict(parts)
    for poor in (one for one, part in parts.items() if not part):
        _, rank, rich = heappop(largest)
        fair[poor], fair[rich] = 1, fair[rich] - 1
        if fair[rich] > 1:
            heappush(largest, (-fair[rich], rank, rich))
    return fair


def apportion(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """Parts of `limit` in proportion, whole numbers; what is left over goes to the most rounded."""
    total = sum(waiting.values())
    if not total or limit >= total:
        return dict(waiting)
    parts = {one: count * limit // total for one, count in waiting.items()}
    rest = limit - sum(parts.values())
    rounded = sorted(waiting, key=lambda one: (-(waiting[one] * limit % total), order(one)))
    for one in rounded[:rest]:
        parts[one] += 1
    return parts


def scale_by_factors(end: Offsets, start: Offsets, factors: Mapping[str, float]) -> dict[str, int]:
    """An end that gives slow partitions less: each factor (0..1) scales what is taken of it."""
    return {
        partition: start[partition] + scaled(number - start[partition], factors.get(partition, 1.0))
        for partition, number in end.items()
    }


def scaled(count: int, factor: float) -> int:
    """At least one of what waits: a partition that gets nothing could never show that it healed."""
    return count if count <= 0 else max(1, min(count, int(count * factor)))


def limit_per_partition(start: Offsets, end: Offsets, most: int) -> dict[str, int]:
    """At most so many events from each partition."""
    return {one: min(number, start[one] + most) for one, number in end.items()}


def not_before(start: Offsets, end: Offsets) -> dict[str, int]:
    """An end that is at no partition before the start, and has every partition of it."""
    return {one: max(number, end.get(one, number)) for one, number in start.items()} | {
        one: number for one, number in end.items() if one not in start
    }


# -- from two offsets to work ---------------------------------------------------------------------


def spans(start: Offsets, end: Offsets) -> list[Span]:
    """What a batch reads.

    After a crash Spark may ask for a range whose start lies behind its end; there is nothing to
    read then, and nothing wrong.
    """
    return [
        Span(partition, start[partition], end[partition])
        for partition in sorted(end, key=order)
        if start[partition] < end[partition]
    ]


def assign_to_tasks(work: Sequence[Span], per_task: int) -> list[tuple[Span, ...]]:
    """Tasks of about equal size with at most so many partitions each: the longest first."""
    if not work:
        return []
    tasks: list[list[Span]] = [[] for _ in range(-(-len(work) // per_task))]
    for span in sorted(work, key=lambda one: (-one.count, order(one.partition))):
        room = [task for task in tasks if len(task) < per_task]
        min(room, key=lambda task: sum(one.count for one in task)).append(span)
    return [tuple(sorted(task, key=lambda one: order(one.partition))) for task in tasks]


def split(span: Span, pieces: int) -> list[Span]:
    """A span in so many pieces of about the same size, none of them empty."""
    pieces = max(1, min(pieces, span.count))
    cuts = [span.first + span.count * number // pieces for number in range(pieces + 1)]
    return [Span(span.partition, a, b) for a, b in pairwise(cuts)]


# -- what has gone ---------------------------------------------------------------------------------


def check_present(span: Span, found: PartitionProperties) -> None:
    """Raise DataLoss unless the span can still be read as a whole."""
    if max(span.first, span.last) > latest(found):
        raise recreated_error(span.partition, max(span.first, span.last - 1), found)
    if span.first < earliest(found):
        gone = min(span.last, earliest(found)) - span.first
        raise DataLoss(
            f"partition {span.partition}: events {span.first} to {span.first + gone - 1} have left "
            f"the hub before they were read (retention); the oldest is {earliest(found)}. Set "
            "failOnDataLoss=false to go on without them"
        )


def recreated_error(partition: str, wanted: int, found: PartitionProperties) -> DataLoss:
    return DataLoss(
        f"partition {partition}: event {wanted} should be there, and the newest is "
        f"{found.last_sequence}: the hub was re-created, or another hub has its name; start with a "
        "new checkpointLocation, or set failOnDataLoss=false to go on with what is there"
    )


def available_part(span: Span, found: PartitionProperties) -> Span:
    """The part of a span that is still there, for those who go on in spite of a loss."""
    first, last = earliest(found), latest(found)
    if span.first > last:  # the hub was re-created: everything in it is new
        return Span(span.partition, first, last)
    begin = max(span.first, first)
    return Span(span.partition, begin, max(begin, min(span.last, last)))
