"""Decides what the next micro-batch reads, from the offsets, the state of the hub and the limits.

Spark asks for the same batch several times, and replays it after a crash. So a plan does not
change: the first positions are remembered. Positions that would resolve to another event a second
later (`latest`, fifteen minutes ago) are pinned: the first batch is empty, which makes Spark
journal the sequence numbers.

    HubSnapshot, start, limit -> Planner.plan_end -> end -> Planner.plan_spans -> spans of the tasks
                                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pumphouse.client.base import PartitionProperties
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST, Position
from pumphouse.spark.generation import is_recreated
from pumphouse.spark.generation import recreated_error as recreated_hub_error
from pumphouse.spark.offsets import (
    DataLoss,
    Offsets,
    Span,
    available_part,
    backlog,
    check_available,
    earliest,
    latest,
    limit_per_partition,
    not_before,
    order,
    prorate,
    recreated_error,
    scale_by_factors,
    spans_between,
)
from pumphouse.spark.options import Limits, SourceOptions

Resolve = Callable[[str, Position], int]  # the sequence number at a position, read from the hub
Warn = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class HubSnapshot:
    """What the hub holds at one moment. Partitions that did not respond are listed apart."""

    partitions: Mapping[str, PartitionProperties]
    unavailable: tuple[str, ...] = ()
    created_ms: int | None = None  # when the hub was created


@dataclass(frozen=True, slots=True)
class ReadStatistics:
    """What tasks reported of earlier batches."""

    event_bytes: float | None = None  # the mean size of an event
    factors: Mapping[str, float] = field(default_factory=dict)  # of slow partitions, below 1


NO_STATISTICS = ReadStatistics()


# -- pure decisions -------------------------------------------------------------------------------


def partitions_to_read(
    snapshot: HubSnapshot, chosen: tuple[str, ...]
) -> dict[str, PartitionProperties]:
    """The partitions that the query reads and that respond."""
    known = {**snapshot.partitions, **dict.fromkeys(snapshot.unavailable)}
    if missing := [name for name in chosen if name not in known]:
        raise OptionError(
            f"invalid partitions: the hub has no partition {missing[0]}; it has "
            f"{', '.join(sorted(known, key=order))}"
        )
    return {
        name: state for name, state in snapshot.partitions.items() if not chosen or name in chosen
    }


def known_sequence(position: Position, state: PartitionProperties) -> int | None:
    """The sequence number at a position, if it is known without reading the hub."""
    if position == EARLIEST:
        return earliest(state)
    if position == LATEST:
        return latest(state)
    if position.kind == "sequence":
        return int(position.value) + (not position.inclusive)
    return None


def sequence_at(position: Position, state: PartitionProperties, resolve: Resolve) -> int:
    """The first sequence number to read for a position, within what the partition holds."""
    sequence = known_sequence(position, state)
    if sequence is None:
        sequence = resolve(state.partition, position)
    return min(max(sequence, earliest(state)), latest(state))


def is_unstable(position: Position, state: PartitionProperties) -> bool:
    """Whether the option may resolve to another event when it is read again after a crash.

    A time may be relative to now, and a sequence number beyond the newest event means the end.
    """
    if position == EARLIEST:
        return False
    return position.kind != "sequence" or int(position.value) >= latest(state)


def position_for_later(position: Position, now_ms: int) -> Position:
    """The position for a partition that does not respond yet: `latest` becomes the present time."""
    return Position("time", str(now_ms), inclusive=True) if position == LATEST else position


def limit_events(
    limits: Limits, rows: int | None, partitions: int, statistics: ReadStatistics
) -> int | None:
    """The most events that a batch takes; `rows` is Spark's limit."""
    maxima = [count for count in (rows, limits.events) if count is not None]
    if limits.bytes is not None and statistics.event_bytes:
        maxima.append(max(partitions, int(limits.bytes / statistics.event_bytes)))
    return min(maxima, default=None)


def next_end(
    start: Offsets, ends: Offsets, limits: Limits, rows: int | None, statistics: ReadStatistics
) -> dict[str, int]:
    """The end of a batch that starts at `start`, if everything up to `ends` may be read."""
    end = not_before({name: start[name] for name in ends}, ends)
    if limits.events_per_partition is not None:
        end = limit_per_partition(start, end, limits.events_per_partition)
    events_max = limit_events(limits, rows, len(end), statistics)
    if events_max is not None:
        end = prorate(start, end, events_max)
    if limits.slow_adjustment:
        end = scale_by_factors(end, start, statistics.factors)
    return end


def plan_batch_query(
    options: SourceOptions, snapshot: HubSnapshot, resolve: Resolve
) -> tuple[Offsets, Offsets]:
    """Start and end of a batch query."""
    states = partitions_to_read(snapshot, options.partitions)
    start = {
        name: sequence_at(options.starts.get(name, options.start), state, resolve)
        for name, state in states.items()
    }
    end = {
        name: sequence_at(options.ends.get(name, options.end), state, resolve)
        for name, state in states.items()
    }
    for name in sorted(states, key=order):
        if start[name] > end[name]:
            raise OptionError(
                f"partition {name}: the start (event {start[name]}) lies after the end "
                f"(event {end[name]}); check startingPosition and endingPosition"
            )
    return start, end


class TriggerDelay:
    """Delays a batch until `minEventsPerTrigger` events wait, or for `maxTriggerDelay`."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._since_s: float | None = None

    def waits(self, count: int, now_s: float) -> bool:
        """Whether to delay a batch while `count` events wait."""
        events_min = self.limits.events_min
        if events_min is None or count >= events_min or count == 0:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        if now_s - self._since_s < self.limits.delay_max_s:
            return True
        self._since_s = None
        return False


# -- the planner of a stream ----------------------------------------------------------------------


class Planner:
    """Plans the batches of one run of a query."""

    def __init__(
        self, options: SourceOptions, resolve: Resolve, warn: Warn = lambda message: None
    ) -> None:
        self.options = options
        self.resolve = resolve
        self.warn = warn
        self._initial: dict[str, int] | None = None
        self._pin = False  # the initial positions must be journalled before anything is read
        self._late: dict[str, Position] = {}  # start positions of partitions that did not respond
        self._target: dict[str, int] | None = None  # the end of a run with AvailableNow
        self._delay = TriggerDelay(options.limits)

    def initial_offsets(self, snapshot: HubSnapshot, now_ms: int) -> dict[str, int]:
        """Where a query without a checkpoint starts. The same at every call."""
        if self._initial is None:
            states = partitions_to_read(snapshot, self.options.partitions)
            self.check_position_options(snapshot)
            self._initial = {
                name: sequence_at(self.start_position(name), state, self.resolve)
                for name, state in states.items()
            }
            self._pin = any(
                is_unstable(self.start_position(name), state) for name, state in states.items()
            )
            self._late = {
                name: position_for_later(self.start_position(name), now_ms)
                for name in snapshot.unavailable
                if not self.options.partitions or name in self.options.partitions
            }
        return dict(self._initial)

    def is_initial(self, start: Offsets) -> bool:
        """Whether a batch that starts here is the first one of a query."""
        return start == self._initial

    def start_position(self, partition: str) -> Position:
        return self.options.starts.get(partition, self.options.start)

    def check_position_options(self, snapshot: HubSnapshot) -> None:
        """Raise if an option gives a position for a partition that the query does not read."""
        read = {*partitions_to_read(snapshot, self.options.partitions), *snapshot.unavailable}
        for option, positions in (
            ("startingPositions", self.options.starts),
            ("endingPositions", self.options.ends),
        ):
            if unknown := sorted(set(positions) - read, key=order):
                raise OptionError(
                    f"{option} names partition {unknown[0]}, which the query does not read; it "
                    f"reads {', '.join(sorted(read, key=order))}"
                )

    def plan_end(
        self,
        start: Offsets,
        rows: int | None,
        snapshot: HubSnapshot,
        now_s: float,
        statistics: ReadStatistics = NO_STATISTICS,
        *,
        everything: bool = False,
        created_ms: int | None = None,
    ) -> dict[str, int]:
        """The end of the batch that starts at `start`; `start` itself if nothing is read.

        Spark asks for `everything` if a query runs for one batch only: no limit applies, and the
        batch is not empty. Its journal contains its start (see `with_start`).
        `created_ms` is the creation time of the hub that `start` is of.
        """
        if self._pin and start == self._initial and not everything:
            self._pin = False
            return dict(start)
        begin = self.complete_start(start, snapshot, created_ms)
        ends = self.newest_ends(snapshot)
        if self._target is not None:
            ends = {name: min(number, self._target.get(name, 0)) for name, number in ends.items()}
        elif not everything and self._delay.waits(sum(backlog(begin, ends).values()), now_s):
            return dict(start)
        if not everything:
            # Spark journals the start of a new partition before a batch reads it: after a crash
            # `earliest` or `latest` could resolve to another event.
            ends |= {name: number for name, number in begin.items() if name not in start}
        limits = Limits() if everything else self.options.limits
        return begin | next_end(begin, ends, limits, rows, statistics)

    def complete_start(
        self, start: Offsets, snapshot: HubSnapshot, created_ms: int | None = None
    ) -> dict[str, int]:
        """The start of every partition to read, also of those that `start` does not contain.

        All events of a re-created hub are new. Its creation time shows that, or a start beyond the
        newest event.
        """
        states = partitions_to_read(snapshot, self.options.partitions)
        self._check_no_partition_missing(start, snapshot)
        if self.is_recreated(created_ms, snapshot):
            return {name: earliest(state) for name, state in states.items()}
        new = {
            name: self._start_of_new(state) for name, state in states.items() if name not in start
        }
        begin = {**new, **start}
        for name, state in states.items():
            if begin[name] > latest(state):
                if self.options.fail_on_data_loss:
                    raise recreated_error(name, begin[name], state)
                begin[name] = earliest(state)
        return begin

    def is_recreated(self, created_ms: int | None, snapshot: HubSnapshot) -> bool:
        """Whether an offset is of an earlier hub of this name; DataLoss if failOnDataLoss=true."""
        if not is_recreated(created_ms, snapshot.created_ms):
            return False
        if self.options.fail_on_data_loss:
            hub = self.options.identity.hub
            raise recreated_hub_error(hub, created_ms, snapshot.created_ms)
        return True

    def _check_no_partition_missing(self, start: Offsets, snapshot: HubSnapshot) -> None:
        """A hub never loses partitions: one that has fewer was re-created."""
        known = {*snapshot.partitions, *snapshot.unavailable}
        missing = sorted(set(start) - known, key=order)
        if self.options.fail_on_data_loss and missing:
            raise DataLoss(
                f"partition {missing[0]} is in the checkpoint, but the hub has only "
                f"{', '.join(sorted(known, key=order))}: the hub was re-created; start with a new "
                "checkpointLocation, or set failOnDataLoss=false to read what it holds now"
            )

    def _start_of_new(self, state: PartitionProperties) -> int:
        """The start of a partition that is not in the offsets: it is new, or did not respond."""
        position = self._late.get(state.partition)
        return earliest(state) if position is None else sequence_at(position, state, self.resolve)

    def newest_ends(self, snapshot: HubSnapshot) -> dict[str, int]:
        """The end of each partition that the query reads."""
        states = partitions_to_read(snapshot, self.options.partitions)
        return {name: latest(state) for name, state in states.items()}

    def waiting(self, start: Offsets, snapshot: HubSnapshot) -> int:
        """How many events wait after `start`; in a run that ends, only those that it reads."""
        ends = self.newest_ends(snapshot)
        if self._target is not None:
            ends = {name: min(number, self._target.get(name, 0)) for name, number in ends.items()}
        firsts = {name: earliest(state) for name, state in snapshot.partitions.items()}
        return sum(max(0, ends[name] - start.get(name, firsts[name])) for name in ends)

    def end_at_newest(self, snapshot: HubSnapshot) -> None:
        """End the run at what the hub holds now."""
        self._target = self.newest_ends(snapshot)

    def plan_spans(
        self,
        start: Offsets,
        end: Offsets,
        snapshot: HubSnapshot,
        created_ms: tuple[int | None, int | None] = (None, None),
    ) -> list[Span]:
        """What the tasks of a batch read: exactly the range, or an error if events are gone.

        `created_ms` are the creation times of the hub in the start and in the end of the batch.
        """
        if self.is_recreated(created_ms[1], snapshot):
            self.warn(
                f"hub {self.options.identity.hub} was re-created after the batch was planned: its "
                "events are gone (failOnDataLoss=false)"
            )
            return []
        begin = self.complete_start(start, snapshot, created_ms[0])
        for moved in (name for name in start if begin.get(name, start[name]) != start[name]):
            self.warn(
                f"partition {moved} no longer has event {start[moved]} and is read from "
                f"{begin[moved]}: the hub was re-created (failOnDataLoss=false)"
            )
        spans = spans_between({name: begin.get(name, start.get(name, 0)) for name in end}, end)
        available = [self.check_span(span, snapshot) for span in spans]
        return [span for span in available if span.count]

    def check_span(self, span: Span, snapshot: HubSnapshot) -> Span:
        """The part of a span that the hub still holds; DataLoss if failOnDataLoss=true."""
        state = snapshot.partitions.get(span.partition)
        if state is None:
            return span  # the partition does not respond now; the task raises if it still does not
        try:
            check_available(span, state)
        except DataLoss:
            if self.options.fail_on_data_loss:
                raise
            available = available_part(span, state)
            self.warn(
                f"partition {span.partition}: of events {span.first} to {span.last - 1} only "
                f"{available.count} are left (failOnDataLoss=false)"
            )
            return available
        return span
