"""What a processor can be told: how often, how long, how much, from where, and what if it fails.

Options are checked when they are made, so that a processor never starts with ones that cannot work.

    ProcessorOptions -> plan, cycle, pump, handlers
    ^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

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
    """What becomes of an event on which the handler raises.

    The batch is tried again `retries` times, after delays that double from `first_s` to `most_s`.
    If it still fails its events are tried one by one, so that only the bad ones meet their end:
    `stop` the partition (it stays ours and is not read until it is resumed), `skip` the event, or
    `dead-letter` it. Each of them is reported.
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
    """When a checkpoint is written without being asked for; neither given, never.

    With both, whichever comes first. What was handled before a clean move or stop is written too.
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
    """Everything a processor can be told. Times are seconds; the defaults suit most fleets."""

    interval_s: float = 10.0  # from the start of one cycle to the start of the next
    lease_s: float = 30.0  # how long a silent owner keeps its partitions
    renew_s: float = 10.0  # a third of the lease: two renewals may fail
    hand_off_s: float | None = None  # what we grant an owner to finish; None: as long as a lease
    stop_s: float = 30.0  # how long stop() waits for handlers

    prefetch: int = PREFETCH
    prefetch_bytes: int = PREFETCH_BYTES_MAX
    batch_events_max: int = 100
    batch_bytes_max: int = 16 * 1024 * 1024  # a single larger event is a batch of its own
    max_wait_s: float | None = None  # deliver an empty batch after so long without events

    start: Position = EARLIEST  # where a partition without a checkpoint starts
    starts: Starts = field(default_factory=lambda: NO_STARTS)  # the same per partition
    max_partitions: int | None = None

    handler_timeout_s: float | None = 60.0  # report a batch that takes longer; None: never
    handler_threads: int = 8  # for plain functions: in threads they hold up nothing else
    poison: PoisonPolicy = PoisonPolicy()
    checkpoints: CheckpointPolicy = CheckpointPolicy()
    backoff_first_s: float = 0.5  # before a pump that died is started again; it doubles,
    backoff_most_s: float = 30.0  # up to this

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
                "hand_off_s must be at least renew_s: an owner hears of a hand-off when it renews "
                f"(got hand_off_s={self.granted_s:g}, renew_s={self.renew_s:g})"
            )
        if self.backoff_most_s < self.backoff_first_s:
            raise OptionError(
                "backoff_most_s must be at least backoff_first_s "
                f"(got {self.backoff_most_s:g} and {self.backoff_first_s:g})"
            )

    @property
    def granted_s(self) -> float:
        """What an owner is granted to finish what it has in hand."""
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


# The defaults of the processor notes, which today's official processors share: fewer store calls,
# slower to notice a host that died.
RELAXED = ProcessorOptions(interval_s=30.0, lease_s=120.0, renew_s=30.0)
