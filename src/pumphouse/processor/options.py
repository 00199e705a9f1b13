"""The options of the processors. They are validated when they are made.

ProcessorOptions                                -> engine, plan, cycle, pump, handlers
EventProcessorOptions, PartitionManagerOptions  -> host_engine_options  -> ProcessorOptions
FixedPartitionOptions                           -> fixed_engine_options -> ProcessorOptions
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypedDict

from pumphouse.client.base import PREFETCH, PREFETCH_BYTES_MAX
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Position

Starts = Mapping[str, Position] | Callable[[str], Position]
NO_STARTS: Mapping[str, Position] = MappingProxyType({})

STOP, SKIP, DEAD_LETTER = "stop", "skip", "dead-letter"
POISON_ENDS = (STOP, SKIP, DEAD_LETTER)


def _above_zero(name: str, value: float) -> None:
    if not value > 0:
        raise OptionError(f"{name} must be above 0 (got {value:g})")


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise OptionError(f"{name} must be at least {least} (got {value})")


@dataclass(frozen=True, slots=True)
class PoisonPolicy:
    """What happens to an event on which the handler raises.

    The batch is retried `retries` times, after delays that double from `first_s` to `most_s`. If
    it still fails, its events are retried one by one. `then` applies to those that fail: `stop` the
    partition (it stays ours and is not read until it is resumed), `skip` the event, or
    `dead-letter` it. Each such event is reported.
    """

    retries: int = 3
    first_s: float = 0.5
    most_s: float = 30.0
    then: str = STOP

    def __post_init__(self) -> None:
        _at_least("retries", self.retries, 0)
        if not 0 < self.first_s <= self.most_s:
            raise OptionError(
                "a poison policy needs 0 < first_s <= most_s "
                f"(got first_s={self.first_s:g}, most_s={self.most_s:g})"
            )
        if self.then not in POISON_ENDS:
            raise OptionError(f"then must be one of {', '.join(POISON_ENDS)} (got {self.then!r})")


@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a checkpoint is written automatically; never, if no field is given.

    With both, whichever is due first counts. A clean move or stop writes a checkpoint too.
    """

    every_events: int | None = None
    every_s: float | None = None

    def __post_init__(self) -> None:
        if self.every_events is not None:
            _at_least("every_events", self.every_events, 1)
        if self.every_s is not None:
            _above_zero("every_s", self.every_s)

    @property
    def on(self) -> bool:
        return self.every_events is not None or self.every_s is not None


@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """All options of the engine. Times are in seconds; the defaults suit most fleets."""

    interval_s: float = 10.0  # from the start of one cycle to the start of the next
    lease_s: float = 30.0  # how long an owner that does not renew keeps its partitions
    renew_s: float = 10.0  # a third of the lease: two renewals may fail
    hand_off_s: float | None = None  # the time an owner gets to finish; None: the rest of its lease
    stop_s: float = 30.0  # how long stop() waits for handlers

    prefetch: int = PREFETCH
    prefetch_bytes: int = PREFETCH_BYTES_MAX
    batch_events_max: int = 100
    batch_bytes_max: int = 16 * 1024 * 1024  # a single larger event is a batch of its own
    max_wait_s: float | None = None  # deliver an empty batch after this time without events

    start: Position = EARLIEST  # where a partition without a checkpoint starts
    starts: Starts = field(default_factory=lambda: NO_STARTS)  # the same per partition
    max_partitions: int | None = None

    handler_timeout_s: float | None = 60.0  # report a batch that takes longer; None: never
    handler_threads: int = 8  # for plain functions, which would block the event loop
    poison: PoisonPolicy = PoisonPolicy()
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    backoff_first_s: float = 0.5  # before a failed pump is started again; it doubles ...
    backoff_most_s: float = 30.0  # ... up to this

    def __post_init__(self) -> None:
        for name in ("interval_s", "lease_s", "renew_s", "stop_s", "backoff_first_s"):
            _above_zero(name, getattr(self, name))
        for name in ("hand_off_s", "max_wait_s", "handler_timeout_s"):
            if getattr(self, name) is not None:
                _above_zero(name, getattr(self, name))
        for name in ("prefetch", "prefetch_bytes", "batch_events_max", "batch_bytes_max"):
            _at_least(name, getattr(self, name), 1)
        _at_least("handler_threads", self.handler_threads, 1)
        if self.max_partitions is not None:
            _at_least("max_partitions", self.max_partitions, 1)
        self._check_times()

    def _check_times(self) -> None:
        if self.lease_s < 2 * self.renew_s:
            raise OptionError(
                "lease_s must be at least 2 x renew_s, better 3 x, so that a renewal may fail "
                f"(got lease_s={self.lease_s:g}, renew_s={self.renew_s:g})"
            )
        if self.granted_s < self.renew_s:
            raise OptionError(
                "hand_off_s must be at least renew_s: an owner sees a request when it renews "
                f"(got hand_off_s={self.granted_s:g}, renew_s={self.renew_s:g})"
            )
        if self.backoff_most_s < self.backoff_first_s:
            raise OptionError(
                "backoff_most_s must be at least backoff_first_s "
                f"(got {self.backoff_most_s:g} and {self.backoff_first_s:g})"
            )

    @property
    def granted_s(self) -> float:
        """The longest time an owner gets to finish its batch."""
        return self.lease_s if self.hand_off_s is None else self.hand_off_s

    @property
    def store_s(self) -> float:
        """The deadline of one call to the store: a third of the lease, so that two may hang."""
        return self.lease_s / 3

    def start_of(self, partition: str) -> Position:
        """Where a partition without a checkpoint starts."""
        if callable(self.starts):
            return self.starts(partition)
        return self.starts.get(partition, self.start)


# The defaults of the official processors: fewer store calls, but a crash is noticed later.
RELAXED = ProcessorOptions(interval_s=30.0, lease_s=120.0, renew_s=30.0)


# -- EventProcessorHost ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExceptionReceived:
    """An error inside the host; `partition` is None if it concerns all partitions."""

    host_name: str
    partition: str | None
    exception: Exception


@dataclass(frozen=True, slots=True)
class EventProcessorOptions:
    """How events are handed to an event processor. Names and defaults are those of the EPH."""

    max_batch_size: int = 10
    prefetch_count: int = 300  # at least max_batch_size
    receive_timeout_s: float = 60.0
    # Call process_events without events if none came within receive_timeout_s.
    invoke_processor_after_receive_timeout: bool = False
    # Where a partition without a checkpoint starts. None: at the oldest event.
    initial_position_provider: Callable[[str], Position] | None = None
    on_exception: Callable[[ExceptionReceived], Awaitable[None] | None] | None = None
    poison: PoisonPolicy = field(default_factory=PoisonPolicy)
    # Automatic checkpoints; by default only context.checkpoint() writes them.
    checkpoints: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    handler_timeout_s: float | None = 60.0

    def __post_init__(self) -> None:
        if self.prefetch_count < self.max_batch_size:
            raise OptionError(
                "prefetch_count must be at least max_batch_size "
                f"(got {self.prefetch_count} and {self.max_batch_size})"
            )


@dataclass(frozen=True, slots=True)
class PartitionManagerOptions:
    """How an EventProcessorHost keeps leases."""

    lease_duration_s: float = 30.0
    renew_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if self.lease_duration_s <= self.renew_interval_s:
            raise OptionError(
                "lease_duration_s must be above renew_interval_s "
                f"(got {self.lease_duration_s:g} and {self.renew_interval_s:g})"
            )


def host_engine_options(
    events: EventProcessorOptions, leases: PartitionManagerOptions
) -> ProcessorOptions:
    """The options of the engine for these two. Cycles run as often as leases are renewed."""
    idle_calls = events.invoke_processor_after_receive_timeout
    return ProcessorOptions(
        interval_s=leases.renew_interval_s,
        renew_s=leases.renew_interval_s,
        lease_s=leases.lease_duration_s,
        batch_events_max=events.max_batch_size,
        prefetch=events.prefetch_count,
        max_wait_s=events.receive_timeout_s if idle_calls else None,
        start=EARLIEST,
        starts=events.initial_position_provider or NO_STARTS,
        poison=events.poison,
        checkpoints=events.checkpoints,
        handler_timeout_s=events.handler_timeout_s,
    )


# -- FixedPartitionProcessor ----------------------------------------------------------------------

ASSIGN_EVERY_S = 1.0  # a fixed processor claims one partition per second


@dataclass(frozen=True, slots=True)
class FixedPartitionOptions:
    """How a FixedPartitionProcessor reads, checkpoints and keeps its leases."""

    start: Position = EARLIEST  # where a partition without a checkpoint starts
    should_checkpoint: bool = True  # write a checkpoint with every renewal
    lease_s: float = 60.0
    renew_s: float = 20.0  # a lease lasts for three renewals
    max_batch_size: int = 100
    poison: PoisonPolicy = PoisonPolicy()

    def __post_init__(self) -> None:
        if self.lease_s < 3 * self.renew_s:
            raise OptionError(
                "lease_s must be at least 3 x renew_s, so that renewals may fail "
                f"(got lease_s={self.lease_s:g}, renew_s={self.renew_s:g})"
            )


class FixedPartitionSettings(TypedDict, total=False):
    """The fields of FixedPartitionOptions, as plain keywords of the processor."""

    start: Position
    should_checkpoint: bool
    lease_s: float
    renew_s: float
    max_batch_size: int
    poison: PoisonPolicy


def fixed_engine_options(fixed: FixedPartitionOptions, partitions: int) -> ProcessorOptions:
    """The options of the engine for these. Checkpoints are as frequent as renewals."""
    every_s = fixed.renew_s if fixed.should_checkpoint else None
    return ProcessorOptions(
        interval_s=ASSIGN_EVERY_S,
        lease_s=fixed.lease_s,
        renew_s=fixed.renew_s,
        batch_events_max=fixed.max_batch_size,
        prefetch=max(300, fixed.max_batch_size),
        start=fixed.start,
        max_partitions=partitions,
        checkpoints=CheckpointPolicy(every_s=every_s),
        poison=fixed.poison,
    )
