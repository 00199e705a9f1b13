"""The options of an Event Processor Host, by the names and with the defaults its users know.

EventProcessorOptions, PartitionManagerOptions -> engine_options -> ProcessorOptions
                                                  ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Position
from pumphouse.processor.options import NO_STARTS, CheckpointPolicy, PoisonPolicy, ProcessorOptions

LEASE_S_MIN, LEASE_S_MAX = 15.0, 60.0  # what a blob lease can last


@dataclass(frozen=True, slots=True)
class ExceptionReceived:
    """Something went wrong inside the host; `partition` is None if it concerns all of them."""

    host_name: str
    partition: str | None
    exception: Exception


@dataclass(frozen=True, slots=True)
class EventProcessorOptions:
    """How events are handed to an event processor."""

    max_batch_size: int = 10
    prefetch_count: int = 300  # at least max_batch_size
    receive_timeout_s: float = 60.0
    # Call process_events with no events when none came within receive_timeout_s.
    invoke_processor_after_receive_timeout: bool = False
    # Where a partition without a checkpoint starts; without it, at the oldest event.
    initial_position_provider: Callable[[str], Position] | None = None
    on_exception: Callable[[ExceptionReceived], Awaitable[None] | None] | None = None
    poison: PoisonPolicy = field(default_factory=PoisonPolicy)
    # Checkpoints that are written by themselves; otherwise only when you say so.
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
    """How leases are kept."""

    lease_duration_s: float = 30.0
    renew_interval_s: float = 10.0

    def __post_init__(self) -> None:
        if self.lease_duration_s <= self.renew_interval_s:
            raise OptionError(
                "lease_duration_s must be above renew_interval_s "
                f"(got {self.lease_duration_s:g} and {self.renew_interval_s:g})"
            )


def engine_options(
    events: EventProcessorOptions, leases: PartitionManagerOptions
) -> ProcessorOptions:
    """Both in the engine's words. The host scans as often as it renews."""
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
