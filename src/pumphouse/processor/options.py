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
from pumphouse.errors import EventsExpired, OptionError
from pumphouse.events import EARLIEST, Position
from pumphouse.option_names import named_options
from pumphouse.processor.checks.values import (
    check_choice,
    check_flag,
    check_function,
    check_plain_function,
    check_position,
    check_positions,
    check_seconds,
    check_seconds_or_none,
    check_type,
    check_whole,
)
from pumphouse.processor.handling.key_order import Concurrency, KeyOrder, as_concurrency

Starts = Mapping[str, Position] | Callable[[str], Position]
NO_STARTS: Mapping[str, Position] = MappingProxyType({})

PREFETCH_BYTES_TOTAL = 256 * 1024 * 1024
STOP, SKIP, DEAD_LETTER, STOP_KEY = "stop", "skip", "dead-letter", "stop-key"
POISON_ENDS = (STOP, SKIP, DEAD_LETTER, STOP_KEY)

GIVE_UP_S = 300.0  # long enough to create a hub again, or to replace a key

REPORT, FAIL = "report", "fail"
CANCEL, GIVE_UP = "cancel", "give-up"
TIMEOUT_ACTIONS = (REPORT, CANCEL, GIVE_UP)
# What happens when events after the checkpoint are gone: "report" them and continue, "fail" (stop
# the partition until it is resumed), or a function that returns one of the two.
OnExpired = str | Callable[[EventsExpired], "Awaitable[str | None] | str | None"]


def _check_on_expired(value: OnExpired) -> None:
    if callable(value):
        check_function("on_expired", value, "error")
    elif value not in (REPORT, FAIL):
        raise OptionError(f"on_expired must be {REPORT!r}, {FAIL!r} or a function (got {value!r})")


def _check_each(check: Callable[[str, object], None], options: object, *names: str) -> None:
    """Check these fields of an options object."""
    for name in names:
        check(name, getattr(options, name))


def _check_sizes(options: object, *names: str) -> None:
    for name in names:
        check_whole(name, getattr(options, name), 1)


def _check_shared(
    options: EventProcessorOptions | FixedPartitionOptions | ProcessorOptions,
) -> None:
    """Check the fields that the options of all three APIs have."""
    _check_each(check_seconds, options, "stop_s")
    _check_each(check_seconds_or_none, options, "handler_timeout_s", "give_up_s")
    _check_sizes(options, "handler_threads", "prefetch_bytes", "prefetch_bytes_total")
    check_type("poison", options.poison, PoisonPolicy, f"PoisonPolicy(then={SKIP!r})")
    check_choice("on_handler_timeout", options.on_handler_timeout, TIMEOUT_ACTIONS)
    _check_on_expired(options.on_expired)
    if as_concurrency(options.concurrency).handlers == 1 and options.poison.then == STOP_KEY:
        raise OptionError(
            f"PoisonPolicy(then={STOP_KEY!r}) needs concurrency above 1 "
            f"(got {options.concurrency!r}): one handler at a time stops its partition"
        )


def _check_checkpoints(policy: CheckpointPolicy) -> None:
    check_type("checkpoints", policy, CheckpointPolicy, "CheckpointPolicy(every_events=100)")


@named_options()
@dataclass(frozen=True, slots=True)
class PoisonPolicy:
    """What happens to an event on which the handler raises.

    The batch is retried `retries` times, after delays that double from `first_s` to `most_s`. If
    it still fails, its events are retried one by one. `then` applies to those that fail: `stop` the
    partition (the host keeps it, but does not read it until `resume`), `skip` the event,
    `dead-letter` it, or with concurrency `stop-key`: its key waits until `resume`, and other keys
    continue as far as the buffer allows. Each such event is reported.
    """

    retries: int = 3
    first_s: float = 0.5
    most_s: float = 30.0
    then: str = STOP

    def __post_init__(self) -> None:
        check_whole("retries", self.retries, 0)
        _check_each(check_seconds, self, "first_s", "most_s")
        if self.first_s > self.most_s:
            raise OptionError(
                "a poison policy needs 0 < first_s <= most_s "
                f"(got first_s={self.first_s:g}, most_s={self.most_s:g})"
            )
        check_choice("then", self.then, POISON_ENDS)


@named_options()
@dataclass(frozen=True, slots=True)
class CheckpointPolicy:
    """When a checkpoint is written automatically; never, if no field is given.

    With both, whichever is due first counts.
    """

    every_events: int | None = None
    every_s: float | None = None

    def __post_init__(self) -> None:
        if self.every_events is not None:
            check_whole("every_events", self.every_events, 1)
        check_seconds_or_none("every_s", self.every_s)

    @property
    def on(self) -> bool:
        return self.every_events is not None or self.every_s is not None


@named_options()
@dataclass(frozen=True, slots=True)
class ProcessorOptions:
    """All options of the engine. Times are in seconds; the defaults suit most fleets."""

    interval_s: float = 10.0  # from the start of one cycle to the start of the next
    lease_s: float = 30.0  # how long an owner that does not renew keeps its partitions
    renew_s: float = 10.0  # a third of the lease: two renewals may fail
    hand_off_s: float | None = None  # the time an owner gets to finish; None: the rest of its lease
    stop_s: float = 30.0  # how long stop() waits for handlers

    prefetch: int = PREFETCH
    prefetch_bytes: int = PREFETCH_BYTES_MAX  # of one partition
    prefetch_bytes_total: int = PREFETCH_BYTES_TOTAL  # of all hosts of the process
    batch_events_max: int = 100
    batch_bytes_max: int = 16 * 1024 * 1024  # a single larger event is a batch of its own
    max_wait_s: float | None = None  # deliver an empty batch after this time without events

    start: Position = EARLIEST  # where a partition without a checkpoint starts
    starts: Starts = field(default_factory=lambda: NO_STARTS)  # the same per partition
    max_partitions: int | None = None

    handler_timeout_s: float | None = 60.0  # report a batch that takes longer; None: never
    # What else happens then. "cancel" cancels a coroutine handler: its batch is retried. "give-up"
    # releases the partition: another host takes it over, though the handler may still run.
    on_handler_timeout: str = REPORT
    # For plain functions, which would block the event loop. A thread starts only when all others
    # are busy, so there are at most as many as owned partitions, times their concurrency.
    handler_threads: int = 32
    # How many handlers a partition may have at once. Events of one key are handled in order.
    concurrency: int | Concurrency = 1
    poison: PoisonPolicy = PoisonPolicy()
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    on_expired: OnExpired = REPORT  # when retention has passed the checkpoint
    # Write what was handled on every hand-over and stop. Switch it off if handlers keep events in
    # memory after they have returned.
    checkpoint_on_stop: bool = True
    # After this time of a failure that does not pass by itself (a deleted hub or consumer group, a
    # rejected key) the host stops and run() raises. None: it retries without end.
    give_up_s: float | None = GIVE_UP_S
    backoff_first_s: float = 0.5  # before a failed pump is started again; it doubles ...
    backoff_most_s: float = 30.0  # ... up to this

    def __post_init__(self) -> None:
        _check_each(check_seconds, self, "interval_s", "lease_s", "renew_s")
        _check_each(check_seconds, self, "backoff_first_s", "backoff_most_s")
        _check_each(check_seconds_or_none, self, "hand_off_s", "max_wait_s")
        _check_sizes(self, "prefetch", "batch_events_max", "batch_bytes_max")
        if self.max_partitions is not None:
            check_whole("max_partitions", self.max_partitions, 1)
        check_position("start", self.start)
        check_positions("starts", self.starts)
        if isinstance(self.starts, Mapping):  # a copy: the caller may change its own
            object.__setattr__(self, "starts", dict(self.starts))
        check_flag("checkpoint_on_stop", self.checkpoint_on_stop)
        _check_checkpoints(self.checkpoints)
        _check_shared(self)
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
    def key_order(self) -> Concurrency | None:
        """How several handlers share a partition; None: one at a time."""
        concurrency = as_concurrency(self.concurrency)
        return None if concurrency.handlers == 1 else concurrency

    @property
    def granted_s(self) -> float:
        """The longest time an owner gets to finish its batch."""
        return self.lease_s if self.hand_off_s is None else self.hand_off_s

    @property
    def store_s(self) -> float:
        """The deadline of a store call: a third of the lease, so that two calls may time out."""
        return self.lease_s / 3

    def start_of(self, partition: str) -> Position:
        """Where a partition without a checkpoint starts."""
        if callable(self.starts):
            position = self.starts(partition)
            check_position(f"the start of partition {partition}", position)
            return position
        return self.starts.get(partition, self.start)


def key_order(options: ProcessorOptions) -> KeyOrder | None:
    """The order of events of one partition client; None: one handler at a time."""
    if (concurrency := options.key_order) is None:
        return None
    return KeyOrder(concurrency, options.batch_events_max, options.batch_bytes_max)


# The defaults of the official processors: fewer store calls, but a crash is noticed later.
RELAXED = ProcessorOptions(interval_s=30.0, lease_s=120.0, renew_s=30.0)


# -- EventProcessorHost ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExceptionReceived:
    """An error inside the host; `partition` is None if it concerns all partitions."""

    host_name: str
    partition: str | None
    exception: Exception


@named_options()
@dataclass(frozen=True, slots=True)
class EventProcessorOptions:
    """How events are delivered to an event processor, as in the Event Processor Host."""

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
    checkpoint_on_stop: bool = True  # write what was handled on every hand-over and stop
    handler_timeout_s: float | None = 60.0
    on_handler_timeout: str = REPORT  # or "cancel" or "give-up": see ProcessorOptions
    handler_threads: int = 32  # the most threads for plain methods
    stop_s: float = 30.0  # how long unregister() waits for handlers
    prefetch_bytes: int = PREFETCH_BYTES_MAX  # of one partition
    prefetch_bytes_total: int = PREFETCH_BYTES_TOTAL  # of all hosts of the process
    on_expired: OnExpired = REPORT  # when retention has passed the checkpoint
    give_up_s: float | None = GIVE_UP_S  # of a deleted hub or a rejected key; None: never
    concurrency: int | Concurrency = 1  # handlers of a partition at once, in order for each key

    def __post_init__(self) -> None:
        _check_sizes(self, "max_batch_size", "prefetch_count")
        check_seconds("receive_timeout_s", self.receive_timeout_s)
        flags = ("invoke_processor_after_receive_timeout", "checkpoint_on_stop")
        _check_each(check_flag, self, *flags)
        if (provider := self.initial_position_provider) is not None:
            check_plain_function("initial_position_provider", provider, "partition")
        if self.on_exception is not None:
            check_function("on_exception", self.on_exception, "error")
        _check_checkpoints(self.checkpoints)
        _check_shared(self)
        if self.prefetch_count < self.max_batch_size:
            raise OptionError(
                "prefetch_count must be at least max_batch_size "
                f"(got {self.prefetch_count} and {self.max_batch_size})"
            )


@named_options()
@dataclass(frozen=True, slots=True)
class PartitionManagerOptions:
    """How an EventProcessorHost keeps leases."""

    lease_duration_s: float = 30.0
    renew_interval_s: float = 10.0
    max_partitions: int | None = None  # the most that this host owns; None: no limit

    def __post_init__(self) -> None:
        _check_each(check_seconds, self, "lease_duration_s", "renew_interval_s")
        if self.max_partitions is not None:
            check_whole("max_partitions", self.max_partitions, 1)
        if self.lease_duration_s < 2 * self.renew_interval_s:
            raise OptionError(
                "lease_duration_s must be at least 2 x renew_interval_s, better 3 x, so that a "
                f"renewal may fail (got lease_duration_s={self.lease_duration_s:g}, "
                f"renew_interval_s={self.renew_interval_s:g})"
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
        max_partitions=leases.max_partitions,
        start=EARLIEST,
        starts=events.initial_position_provider or NO_STARTS,
        poison=events.poison,
        checkpoints=events.checkpoints,
        checkpoint_on_stop=events.checkpoint_on_stop,
        handler_timeout_s=events.handler_timeout_s,
        on_handler_timeout=events.on_handler_timeout,
        handler_threads=events.handler_threads,
        stop_s=events.stop_s,
        prefetch_bytes=events.prefetch_bytes,
        prefetch_bytes_total=events.prefetch_bytes_total,
        on_expired=events.on_expired,
        give_up_s=events.give_up_s,
        concurrency=events.concurrency,
    )


# -- FixedPartitionProcessor ----------------------------------------------------------------------

# A fixed processor claims at most one partition in any second. Jitter shortens an interval by up to
# a tenth, so the interval is longer than a second.
ASSIGN_EVERY_S = 1.25


@named_options()
@dataclass(frozen=True, slots=True)
class FixedPartitionOptions:
    """How a FixedPartitionProcessor reads, checkpoints and keeps its leases."""

    start: Position = EARLIEST  # where a partition without a checkpoint starts
    should_checkpoint: bool = True  # write a checkpoint with every renewal
    lease_s: float = 60.0
    renew_s: float = 20.0  # a lease lasts for three renewals
    max_batch_size: int = 100
    poison: PoisonPolicy = PoisonPolicy()
    handler_timeout_s: float | None = 60.0  # report a batch that takes longer; None: never
    on_handler_timeout: str = REPORT  # or "cancel" or "give-up": see ProcessorOptions
    handler_threads: int = 32  # the most threads for plain functions
    stop_s: float = 30.0  # how long stop() waits for handlers
    prefetch_bytes: int = PREFETCH_BYTES_MAX  # of one partition
    prefetch_bytes_total: int = PREFETCH_BYTES_TOTAL  # of all hosts of the process
    on_expired: OnExpired = REPORT  # when retention has passed the checkpoint
    # Write what was handled when the processor stops. None: as should_checkpoint.
    checkpoint_on_stop: bool | None = None
    give_up_s: float | None = GIVE_UP_S  # of a deleted hub or a rejected key; None: never
    concurrency: int | Concurrency = 1  # handlers of a partition at once, in order for each key

    def __post_init__(self) -> None:
        check_position("start", self.start)
        check_flag("should_checkpoint", self.should_checkpoint)
        if self.checkpoint_on_stop is not None:
            check_flag("checkpoint_on_stop", self.checkpoint_on_stop)
        _check_each(check_seconds, self, "lease_s", "renew_s")
        _check_sizes(self, "max_batch_size")
        _check_shared(self)
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
    handler_timeout_s: float | None
    on_handler_timeout: str
    handler_threads: int
    stop_s: float
    prefetch_bytes: int
    prefetch_bytes_total: int
    on_expired: OnExpired
    checkpoint_on_stop: bool | None
    give_up_s: float | None
    concurrency: int | Concurrency


def fixed_engine_options(fixed: FixedPartitionOptions, partitions: int) -> ProcessorOptions:
    """The options of the engine for these. Checkpoints are as frequent as renewals."""
    every_s = fixed.renew_s if fixed.should_checkpoint else None
    on_stop = fixed.checkpoint_on_stop
    return ProcessorOptions(
        interval_s=ASSIGN_EVERY_S,
        lease_s=fixed.lease_s,
        renew_s=fixed.renew_s,
        batch_events_max=fixed.max_batch_size,
        prefetch=max(300, fixed.max_batch_size),
        start=fixed.start,
        max_partitions=partitions,
        checkpoints=CheckpointPolicy(every_s=every_s),
        checkpoint_on_stop=fixed.should_checkpoint if on_stop is None else on_stop,
        poison=fixed.poison,
        handler_timeout_s=fixed.handler_timeout_s,
        on_handler_timeout=fixed.on_handler_timeout,
        handler_threads=fixed.handler_threads,
        stop_s=fixed.stop_s,
        prefetch_bytes=fixed.prefetch_bytes,
        prefetch_bytes_total=fixed.prefetch_bytes_total,
        on_expired=fixed.on_expired,
        give_up_s=fixed.give_up_s,
        concurrency=fixed.concurrency,
    )
