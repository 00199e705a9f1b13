"""Options of the processors: invalid ones are refused with the reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.options import (
    RELAXED,
    CheckpointPolicy,
    EventProcessorOptions,
    FixedPartitionOptions,
    PartitionManagerOptions,
    PoisonPolicy,
    ProcessorOptions,
    fixed_engine_options,
    host_engine_options,
)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"lease_s": 15.0}, r"at least 2 x renew_s.*lease_s=15, renew_s=10"),
        ({"renew_s": 0}, r"renew_s must be above 0 \(got 0\)"),
        ({"interval_s": -1}, "interval_s must be above 0"),
        ({"interval_s": float("nan")}, "interval_s must be above 0"),
        ({"hand_off_s": 5.0}, "hand_off_s must be at least renew_s"),
        ({"stop_s": 0}, "stop_s must be above 0"),
        ({"prefetch": 0}, r"prefetch must be at least 1 \(got 0\)"),
        ({"batch_events_max": 0}, "batch_events_max must be at least 1"),
        ({"batch_bytes_max": 0}, "batch_bytes_max must be at least 1"),
        ({"max_partitions": 0}, "max_partitions must be at least 1"),
        ({"max_wait_s": 0}, "max_wait_s must be above 0"),
        ({"handler_timeout_s": 0}, "handler_timeout_s must be above 0"),
        ({"handler_threads": 0}, "handler_threads must be at least 1"),
        ({"backoff_most_s": 0.1}, "backoff_most_s must be at least backoff_first_s"),
    ],
)
def test_invalid_processor_options_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        ProcessorOptions(**settings)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"retries": -1}, "retries must be at least 0"),
        ({"first_s": 5.0, "most_s": 1.0}, "0 < first_s <= most_s"),
        ({"then": "pray"}, "then must be one of stop, skip, dead-letter"),
    ],
)
def test_an_invalid_poison_policy_is_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(OptionError, match=sentence):
        PoisonPolicy(**settings)


@pytest.mark.parametrize("settings", [{"every_events": 0}, {"every_s": 0.0}])
def test_an_invalid_checkpoint_policy_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match="every_"):
        CheckpointPolicy(**settings)


def test_relaxed_has_the_defaults_of_the_processor_notes() -> None:
    assert (RELAXED.interval_s, RELAXED.lease_s) == (30.0, 120.0)


def test_the_start_position_of_a_partition() -> None:
    assert ProcessorOptions().start_of("3") is EARLIEST
    options = ProcessorOptions(start=LATEST, starts={"3": EARLIEST})
    assert (options.start_of("3"), options.start_of("4")) == (EARLIEST, LATEST)


@pytest.mark.parametrize(
    ("invalid", "reason"),
    [
        (
            lambda: EventProcessorOptions(max_batch_size=20, prefetch_count=10),
            "prefetch_count must",
        ),
        (
            lambda: PartitionManagerOptions(10, 10),
            "lease_duration_s must be above renew_interval_s",
        ),
        (lambda: EventProcessorHost("", "x", store=MemoryStore()), "host_name is empty"),
    ],
)
def test_invalid_host_options_are_refused(invalid: Callable[[], object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        invalid()


def test_the_defaults_are_those_of_the_event_processor_host() -> None:
    events, leases = EventProcessorOptions(), PartitionManagerOptions()
    assert (events.max_batch_size, events.prefetch_count, events.receive_timeout_s) == (10, 300, 60)
    assert (leases.lease_duration_s, leases.renew_interval_s) == (30, 10)
    options = host_engine_options(events, leases)
    assert (options.lease_s, options.renew_s, options.interval_s) == (30, 10, 10)
    assert options.max_wait_s is None


def test_a_fixed_processor_needs_a_lease_of_three_renewals() -> None:
    with pytest.raises(OptionError, match=r"at least 3 x renew_s.*lease_s=50, renew_s=20"):
        FixedPartitionOptions(lease_s=50.0)


@pytest.mark.parametrize(("should_checkpoint", "every_s"), [(True, 20.0), (False, None)])
def test_a_fixed_processor_checkpoints_with_every_renewal(
    should_checkpoint: bool, every_s: float | None
) -> None:
    fixed = FixedPartitionOptions(should_checkpoint=should_checkpoint, max_batch_size=500)
    options = fixed_engine_options(fixed, 4)
    assert options.checkpoints == CheckpointPolicy(every_s=every_s)
    assert (options.max_partitions, options.prefetch, options.interval_s) == (4, 500, 1.0)
