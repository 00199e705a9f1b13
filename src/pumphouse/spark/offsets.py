"""Arithmetic with offsets: for each partition the sequence number to read next.

Spark journals offsets as JSON, in the form of the Scala connector, so its checkpoints can be
continued here: {"sensors": {"0": 120, "1": 87}}. A batch reads, for each partition, from its number
in the start (inclusive) to its number in the end (exclusive).

    initialOffset, latestOffset -> Offsets -> spans -> tasks
                                   ^^^^^^^^^^^^^^^^ this module
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

START_KEY = "@start"
Offsets = Mapping[str, int]  # partition -> the sequence number to read next

TASK_EVENTS = 1000  # a task with fewer events costs more than it saves
SMALL_TASK_SPANS = 8  # each takes about a millisecond; more of them are shared among the cores


class DataLoss(PumphouseError):
    """The events to read next are no longer in the hub, or the hub was re-created."""


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
    """A sort key: partitions are named by numbers, and 10 comes after 9."""
    return (int(partition) if partition.isdecimal() else 1 << 62, partition)


# -- JSON -----------------------------------------------------------------------------------------


def to_json(hub: str, offsets: Offsets) -> dict[str, dict[str, int]]:
    """As Spark journals it; partitions in order, so that equal offsets have equal text."""
    return {hub: {partition: offsets[partition] for partition in sorted(offsets, key=order)}}


def from_json(hub: str, offset: str | Mapping[str, Any]) -> dict[str, int]:
    """The offsets in a checkpoint; OptionError if it belongs to another hub."""
    try:
        journal = json.loads(offset) if isinstance(offset, str) else offset
        hubs = {str(name).lower(): offsets for name, offsets in journal.items()}
        if len(names := hubs_in(journal)) > 1:
            raise OptionError(
                f"the checkpoint is of a query that reads {', '.join(names)}; set "
                f"name={','.join(names)} as before, or use another checkpointLocation"
            )
        if hub.lower() not in hubs:
            raise OptionError(
                f"the checkpoint is of hub {', '.join(map(str, journal)) or '(none)'}, and the "
                f"query reads hub {hub}; use another checkpointLocation"
            )
        return {str(partition): int(number) for partition, number in hubs[hub.lower()].items()}
    except (ValueError, TypeError, AttributeError) as failed:
        if isinstance(failed, OptionError):
            raise
        raise OptionError(
            f"invalid offset in the checkpoint: {offset!r:.200}; expected "
            f'{{"{hub}": {{"0": 120, "1": 87}}}}'
        ) from None


def with_start(end: Mapping[str, Any], start: Offsets) -> dict[str, Any]:
    """The end of the first batch of a query, with its start.

    Spark does not journal where the first batch starts. If the batch runs again after a crash, its
    start position could resolve to another event.
    """
    return {**end, START_KEY: dict(start)}


def start_of_batch(
    hub: str, start: str | Mapping[str, Any], end: str | Mapping[str, Any]
) -> dict[str, int]:
    """Where a batch starts: at `start`, unless `end` contains its start."""
    fields = json.loads(end) if isinstance(end, str) else end
    if START_KEY not in fields or start == end:
        return from_json(hub, start)
    return {str(name): int(number) for name, number in fields[START_KEY].items()}


# -- several hubs ---------------------------------------------------------------------------------

# The journal of a query of several hubs has one entry for each hub. A key with an @ ends with a
# slash and its hub: {"a": {"0": 120}, "b": {"0": 7}, "@hub/a": {…}, "@hub/b": {…}}


def hubs_in(offset: Mapping[str, Any]) -> list[str]:
    """The hubs of an offset."""
    return [name for name in offset if not name.startswith("@")]


def join_hubs(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One offset out of those of several hubs."""
    joined = {hub: part[hub] for hub, part in parts.items()}
    for hub, part in parts.items():
        joined |= {f"{key}/{hub}": value for key, value in part.items() if key.startswith("@")}
    return joined


def part_of_hub(offset: Mapping[str, Any], hub: str) -> dict[str, Any]:
    """The offset of one hub. It has no partitions if the offset does not have the hub."""
    names = {name.lower(): name for name in hubs_in(offset)}
    part: dict[str, Any] = {hub: offset.get(names.get(hub.lower(), hub), {})}
    for key, value in offset.items():
        kind, slash, of_hub = key.partition("/")
        is_own = of_hub.lower() == hub.lower() if slash else [*names] == [hub.lower()]
        if kind.startswith("@") and is_own:
            part[kind] = value
    return part


# -- the ends of a partition ----------------------------------------------------------------------


def earliest(state: PartitionProperties) -> int:
    return state.last_sequence + 1 if state.empty else max(0, state.first_sequence)


def latest(state: PartitionProperties) -> int:
    return state.last_sequence + 1


# -- how much of the backlog a batch takes --------------------------------------------------------


def backlog(start: Offsets, end: Offsets) -> dict[str, int]:
    """The number of unread events of each partition. `start` has every partition of `end`."""
    return {partition: max(0, end[partition] - start[partition]) for partition in end}


def count_events(start: Offsets, end: Offsets) -> int:
    """The number of events of a batch; partitions that are new in `end` have none."""
    return sum(max(0, number - start.get(name, number)) for name, number in end.items())


def prorate(start: Offsets, end: Offsets, limit: int) -> dict[str, int]:
    """An end that takes at most `limit` events, in proportion to the backlogs.

    The parts sum to the limit exactly. Every partition with a backlog gets at least one event, so
    that a small one does not starve beside a huge one (if the limit is below their number, the
    longest backlogs get one each).
    """
    waiting = {name: count for name, count in backlog(start, end).items() if count}
    if sum(waiting.values()) <= limit:
        return not_before({name: start[name] for name in end}, end)
    if limit <= len(waiting):
        longest = sorted(waiting, key=lambda name: (-waiting[name], order(name)))[:limit]
        taken = dict.fromkeys(longest, 1)
    else:
        taken = fill_empty_parts(apportion(waiting, limit))
    return {name: start[name] + taken.get(name, 0) for name in end}


def fill_empty_parts(parts: Mapping[str, int]) -> dict[str, int]:
    """Parts with the same sum, none of them 0: each empty part gets one event of the largest."""
    heap = [(-part, order(name), name) for name, part in parts.items() if part > 1]
    heapify(heap)
    nonzero = dict(parts)
    for empty in (name for name, part in parts.items() if not part):
        _, rank, largest = heappop(heap)
        nonzero[empty], nonzero[largest] = 1, nonzero[largest] - 1
        if nonzero[largest] > 1:
            heappush(heap, (-nonzero[largest], rank, largest))
    return nonzero


def apportion(waiting: Mapping[str, int], limit: int) -> dict[str, int]:
    """Parts of `limit` in proportion, as whole numbers; the rest goes to the largest remainders."""
    total = sum(waiting.values())
    if not total or limit >= total:
        return dict(waiting)
    parts = {name: count * limit // total for name, count in waiting.items()}
    rest = limit - sum(parts.values())
    remainders = sorted(waiting, key=lambda name: (-(waiting[name] * limit % total), order(name)))
    for name in remainders[:rest]:
        parts[name] += 1
    return parts


def scale_by_factors(end: Offsets, start: Offsets, factors: Mapping[str, float]) -> dict[str, int]:
    """An end that takes fewer events of slow partitions: each factor (0..1) scales its part."""
    return {
        partition: start[partition] + scaled(number - start[partition], factors.get(partition, 1.0))
        for partition, number in end.items()
    }


def scaled(count: int, factor: float) -> int:
    """At least one event: a partition that gets none could never show that it recovered."""
    return count if count <= 0 else max(1, min(count, int(count * factor)))


def limit_per_partition(start: Offsets, end: Offsets, most: int) -> dict[str, int]:
    """An end that takes at most `most` events of each partition."""
    return {name: min(number, start[name] + most) for name, number in end.items()}


def not_before(start: Offsets, end: Offsets) -> dict[str, int]:
    """The later of start and end in each partition. It has the partitions of both."""
    return {name: max(number, end.get(name, number)) for name, number in start.items()} | {
        name: number for name, number in end.items() if name not in start
    }


# -- spans and tasks ------------------------------------------------------------------------------


def spans_between(start: Offsets, end: Offsets) -> list[Span]:
    """What a batch reads.

    After a crash Spark may ask for a range whose start lies after its end: it has no spans.
    """
    return [
        Span(partition, start[partition], end[partition])
        for partition in sorted(end, key=order)
        if start[partition] < end[partition]
    ]


def spans_per_task(spans: Sequence[Span]) -> int:
    """How many spans a task reads if the user has not chosen a number.

    A task costs as much as reading hundreds of events, so few events are read by few tasks. The
    result depends only on the spans: a repeated batch has the same tasks.
    """
    tasks = max(1, sum(span.count for span in spans) // TASK_EVENTS)
    return max(1, min(SMALL_TASK_SPANS, -(-len(spans) // tasks)))


def assign_to_tasks(spans: Sequence[Span], per_task: int | None = None) -> list[tuple[Span, ...]]:
    """Tasks of about equal size, with at most `per_task` spans each.

    Spans are assigned from the longest to the shortest, each to the task that is smallest so far.
    """
    if not spans:
        return []
    per_task = per_task or spans_per_task(spans)
    tasks: list[list[Span]] = [[] for _ in range(-(-len(spans) // per_task))]
    for longest in sorted(spans, key=lambda span: (-span.count, order(span.partition))):
        not_full = [task for task in tasks if len(task) < per_task]
        min(not_full, key=lambda task: sum(span.count for span in task)).append(longest)
    return [tuple(sorted(task, key=lambda span: order(span.partition))) for task in tasks]


def split_span(span: Span, pieces: int) -> list[Span]:
    """At most `pieces` parts of about the same size, none of them empty."""
    pieces = max(1, min(pieces, span.count))
    cuts = [span.first + span.count * number // pieces for number in range(pieces + 1)]
    return [Span(span.partition, a, b) for a, b in pairwise(cuts)]


# -- data loss ------------------------------------------------------------------------------------


def check_available(span: Span, state: PartitionProperties) -> None:
    """Raise DataLoss unless the hub still holds the whole span."""
    if max(span.first, span.last) > latest(state):
        raise recreated_error(span.partition, max(span.first, span.last - 1), state)
    if span.first < earliest(state):
        last_lost = min(span.last, earliest(state)) - 1
        raise DataLoss(
            f"partition {span.partition}: retention removed events {span.first} to {last_lost} "
            f"before they were read; the oldest is {earliest(state)}. Set failOnDataLoss=false to "
            "continue without them"
        )


def recreated_error(partition: str, expected: int, state: PartitionProperties) -> DataLoss:
    return DataLoss(
        f"partition {partition}: event {expected} is expected, but the newest is "
        f"{state.last_sequence}: the hub was re-created, or another hub has its name; start with a "
        "new checkpointLocation, or set failOnDataLoss=false to read what it holds now"
    )


def available_part(span: Span, state: PartitionProperties) -> Span:
    """The part of a span that the hub still holds."""
    first, last = earliest(state), latest(state)
    if span.first > last:  # the hub was re-created: all its events are new
        return Span(span.partition, first, last)
    begin = max(span.first, first)
    return Span(span.partition, begin, max(begin, min(span.last, last)))
