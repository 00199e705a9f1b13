"""What the next micro-batch reads: decided from where we are, what the hub holds, and the limits.

Spark asks the same questions again and again, sometimes twice, and repeats a batch after a crash.
So an answer once given stays: the first positions are remembered, and positions that might be
others a second later (`latest`, fifteen minutes ago) are pinned: the first batch is empty, which
makes Spark write them down.

    View, start, limit -> Planner.latest -> end -> Planner.work -> spans for the tasks
                          ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.offsets import (
    DataLoss,
    Offsets,
    Span,
    available_part,
    backlog,
    check_present,
    earliest,
    latest,
    limit_per_partition,
    not_before,
    order,
    prorate,
    recreated_error,
    scale_by_factors,
    spans,
    with_new_partitions,
)
from pumphouse.spark.options import EVENTS_PER_PARTITION, Limits, SourceOptions

Resolve = Callable[[str, Position], int]  # the sequence number at a position, asked of the hub
Warn = Callable[[str], object]  # somebody should know


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """What the hub holds, as it was seen last. Partitions that did not answer are named apart."""

    partitions: Mapping[str, PartitionProperties]
    unavailable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """What tasks reported of earlier batches."""

    event_bytes: float | None = None  # the mean size of an event
    factors: Mapping[str, float] = field(default_factory=dict)  # of slow partitions, below 1


NO_STATISTICS = ReadStatistics()


# -- pure decisions -------------------------------------------------------------------------------


def wanted(view: HubSnapshot, chosen: tuple[str, ...]) -> dict[str, PartitionProperties]:
    """The partitions that the query reads, of those that answer."""
    known = {**view.partitions, **dict.fromkeys(view.unavailable)}
    if missing := [one for one in chosen if one not in known]:
        there = ", ".join(sorted(known, key=order))
        raise OptionError(f"partitions names {missing[0]}, and the hub has {there}")
    return {one: found for one, found in view.partitions.items() if not chosen or one in chosen}


def known_sequence(position: Position, found: PartitionProperties) -> int | None:
    """The sequence number at a position that needs no asking; None if an event must be found."""
    if position == EARLIEST:
        return earliest(found)
    if position == LATEST:
        return latest(found)
    if position.kind == "sequence":
        return int(position.value) + (not position.inclusive)
    return None


def place(position: Position, found: PartitionProperties, resolve: Resolve) -> int:
    """The sequence number to be read first for a position, within what is there."""
    number = known_sequence(position, found)
    if number is None:
        number = resolve(found.partition, position)
    return min(max(number, earliest(found)), latest(found))


def is_unstable(position: Position, found: PartitionProperties) -> bool:
    """Whether the same option may mean another event when it is read again after a crash.

    A time may have been written as so long ago, and a number that is not there yet means the end.
    """
    if position == EARLIEST:
        return False
    return position.kind != "sequence" or int(position.value) >= latest(found)


def position_for_later(position: Position, now_ms: int) -> Position:
    """A position as it was meant now, for a partition that can be asked only later."""
    return Position("time", str(now_ms), inclusive=True) if position == LATEST else position


def limit_events(
    limits: Limits, rows: int | None, partitions: int, seen: ReadStatistics
) -> int | None:
    """How many events a batch takes at the most; `rows` is what Spark allows."""
    most = [count for count in (rows, limits.events) if count is not None]
    if limits.bytes is not None and seen.event_bytes:
        most.append(max(partitions, int(limits.bytes / seen.event_bytes)))
    return min(most, default=None)


def default_limit(limits: Limits, partitions: int) -> int:
    return limits.events or EVENTS_PER_PARTITION * max(1, partitions)


def next_end(
    start: Offsets, ends: Offsets, limits: Limits, rows: int | None, seen: ReadStatistics
) -> dict[str, int]:
    """The end of a batch that starts at `start`, if everything up to `ends` may be read."""
    end = not_before({one: start[one] for one in ends}, ends)
    if limits.events_per_partition is not None:
        end = limit_per_partition(start, end, limits.events_per_partition)
    most = limit_events(limits, rows, len(end), seen)
    if most is not None:
        end = prorate(start, end, most)
    if limits.slow_adjustment:
        end = scale_by_factors(end, start, seen.factors)
    return end


# -- the driver's memory --------------------------------------------------------------------------


class Planner:
    """Plans the batches of one run of a query."""

    def __init__(
        self, options: SourceOptions, resolve: Resolve, warn: Warn = lambda said: None
    ) -> None:
        self.options = options
        self.resolve = resolve
        self.warn = warn
        self._initial: dict[str, int] | None = None
        # Whether the initial positions must be journalled before anything is read.
        self._pin = False
        self._late: dict[str, Position] = {}  # where partitions start that could not be asked
        self._target: dict[str, int] | None = None  # of a run that ends when it is reached
        self._held_since_s: float | None = None  # since when too few events wait

    def initial(self, view: HubSnapshot, now_ms: int) -> dict[str, int]:
        """Where a query without a checkpoint starts. The same answer every time."""
        if self._initial is None:
            there = wanted(view, self.options.partitions)
            self.check_starts(view)
            self._initial = {
                one: place(self.position(one), found, self.resolve) for one, found in there.items()
            }
            self._pin = any(is_unstable(self.position(one), found) for one, found in there.items())
            self._late = {
                one: position_for_later(self.position(one), now_ms)
                for one in view.unavailable
                if not self.options.partitions or one in self.options.partitions
            }
        return dict(self._initial)

    def position(self, partition: str) -> Position:
        return self.options.starts.get(partition, self.options.start)

    def check_starts(self, view: HubSnapshot) -> None:
        known = {*wanted(view, self.options.partitions), *view.unavailable}
        for option, named in (
            ("startingPositions", self.options.starts),
            ("endingPositions", self.options.ends),
        ):
            if unknown := sorted(set(named) - known, key=order):
                raise OptionError(
                    f"{option} names partition {unknown[0]}, which the query does not read; it "
                    f"reads {', '.join(sorted(known, key=order))}"
                )

    def latest(
        self,
        start: Offsets,
        rows: int | None,
        view: HubSnapshot,
        now_s: float,
        seen: ReadStatistics = NO_STATISTICS,
        *,
        everything: bool = False,
    ) -> dict[str, int]:
        """The end of the batch that starts at `start`; `start` itself if nothing is to be read.

        `everything` is what Spark asks for when a query runs for one batch only: no limit holds.
        """
        if self._pin and start == self._initial:
            self._pin = False
            return dict(start)
        begin = self.beginning(start, view)
        ends = self.ends(view)
        if self._target is not None:
            ends = {one: min(number, self._target.get(one, 0)) for one, number in ends.items()}
        elif not everything and self.held_back(begin, ends, now_s):
            return dict(start)
        if not everything:
            ends |= self.unwritten(start, begin)
        limits = Limits() if everything else self.options.limits
        return begin | next_end(begin, ends, limits, rows, seen)

    def unwritten(self, start: Offsets, begin: Offsets) -> dict[str, int]:
        """Where partitions begin that no journal has: it is written there before they are read.

        Asked for again after a crash, the oldest event may be another, and so may `latest`.
        """
        return {one: number for one, number in begin.items() if one not in start}

    def beginning(self, start: Offsets, view: HubSnapshot) -> dict[str, int]:
        """The start with new partitions in it, from their oldest event.

        A start beyond the end is of a hub that was re-created: everything in it is new.
        """
        there = wanted(view, self.options.partitions)
        self.check_all_there(start, view)
        new = {one: self.first_of(found) for one, found in there.items() if one not in start}
        begin = with_new_partitions(start, new)
        for one, found in there.items():
            if begin[one] > latest(found):
                if self.options.fail_on_data_loss:
                    raise recreated_error(one, begin[one], found)
                begin[one] = earliest(found)
        return begin

    def check_all_there(self, start: Offsets, view: HubSnapshot) -> None:
        """A hub never has fewer partitions than it had; one that has is another."""
        known = {*view.partitions, *view.unavailable}
        if self.options.fail_on_data_loss and (gone := sorted(set(start) - known, key=order)):
            raise DataLoss(
                f"partition {gone[0]} is in the checkpoint, and the hub has "
                f"{', '.join(sorted(known, key=order))}: the hub was re-created; start with a new "
                "checkpointLocation, or set failOnDataLoss=false to go on with what is there"
            )

    def first_of(self, found: PartitionProperties) -> int:
        """Where a partition starts that is not in the offsets: it is new, or was not to be had."""
        late = self._late.get(found.partition)
        return earliest(found) if late is None else place(late, found, self.resolve)

    def ends(self, view: HubSnapshot) -> dict[str, int]:
        there = wanted(view, self.options.partitions)
        return {one: latest(found) for one, found in there.items()}

    def held_back(self, start: Offsets, ends: Offsets, now_s: float) -> bool:
        """Whether too few events wait, and have not waited for too long."""
        least = self.options.limits.events_min
        count = sum(backlog(start, ends).values())
        if least is None or count >= least or count == 0:
            self._held_since_s = None
            return False
        if self._held_since_s is None:
            self._held_since_s = now_s
        if now_s - self._held_since_s < self.options.limits.delay_max_s:
            return True
        self._held_since_s = None
        return False

    def freeze(self, view: HubSnapshot) -> None:
        """From now on the target is what is there now: a run that ends when it is reached."""
        self._target = self.ends(view)

    def report(self, view: HubSnapshot) -> dict[str, int]:
        """The newest that could be read, for the progress of the query."""
        return self.ends(view)

    def work(self, start: Offsets, end: Offsets, view: HubSnapshot) -> list[Span]:
        """What the tasks of a batch read: exactly the range, or an error if part of it has gone."""
        begins = self.beginning(start, view)
        for moved in (partition for partition in start if begins[partition] != start[partition]):
            self.warn(
                f"partition {moved} has no event {start[moved]} any more and is read from "
                f"{begins[moved]}: the hub was re-created (failOnDataLoss=false)"
            )
        found = spans({one: begins.get(one, start.get(one, 0)) for one in end}, end)
        return [one for span in found if (one := self.checked(span, view)).count]

    def checked(self, span: Span, view: HubSnapshot) -> Span:
        properties = view.partitions.get(span.partition)
        if properties is None:
            return span  # it does not answer now; the task will find out
        try:
            check_present(span, properties)
        except DataLoss:
            if self.options.fail_on_data_loss:
                raise
            left = available_part(span, properties)
            self.warn(
                f"partition {span.partition}: of events {span.first} to {span.last - 1} only "
                f"{left.count} are left (failOnDataLoss=false)"
            )
            return left
        return span


def batch_range(
    options: SourceOptions, view: HubSnapshot, resolve: Resolve
) -> tuple[Offsets, Offsets]:
    """Start and end of a query that is no stream."""
    there = wanted(view, options.partitions)
    start = {
        one: place(options.starts.get(one, options.start), found, resolve)
        for one, found in there.items()
    }
    end = {
        one: place(options.ends.get(one, options.end), found, resolve)
        for one, found in there.items()
    }
    for one in sorted(there, key=order):
        if start[one] > end[one]:
            raise OptionError(
                f"partition {one}: the start (event {start[one]}) lies after the end "
                f"(event {end[one]}); look at startingPosition and endingPosition"
            )
    return start, end
