"""The options of each API, and the options of the engine that they become."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, LATEST
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
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore


def test_relaxed_has_the_defaults_of_the_processor_notes() -> None:
    assert (RELAXED.interval_s, RELAXED.lease_s) == (30.0, 120.0)


def test_the_start_position_of_a_partition() -> None:
    assert ProcessorOptions().start_of("3") is EARLIEST
    options = ProcessorOptions(start=LATEST, starts={"3": EARLIEST})
    assert (options.start_of("3"), options.start_of("4")) == (EARLIEST, LATEST)


def test_the_defaults_are_those_of_the_event_processor_host() -> None:
    events, leases = EventProcessorOptions(), PartitionManagerOptions()
    assert (events.max_batch_size, events.prefetch_count, events.receive_timeout_s) == (10, 300, 60)
    assert (leases.lease_duration_s, leases.renew_interval_s) == (30, 10)
    options = host_engine_options(events, leases)
    assert (options.lease_s, options.renew_s, options.interval_s) == (30, 10, 10)
    assert options.max_wait_s is None


def test_a_host_may_limit_its_partitions() -> None:
    leases = PartitionManagerOptions(max_partitions=3)
    assert host_engine_options(EventProcessorOptions(), leases).max_partitions == 3
    with pytest.raises(OptionError, match="max_partitions must be at least 1"):
        PartitionManagerOptions(max_partitions=0)


def test_a_fixed_processor_needs_a_lease_of_three_renewals() -> None:
    with pytest.raises(OptionError, match=r"at least 3 x renew_s.*lease_s=50, renew_s=20"):
        FixedPartitionOptions(lease_s=50.0)
    with pytest.raises(OptionError, match="at least 3 x renew_s"):
        FixedPartitionOptions(lease_s=59.9)
    FixedPartitionOptions(lease_s=60.0)


@pytest.mark.parametrize(("should_checkpoint", "every_s"), [(True, 20.0), (False, None)])
def test_a_fixed_processor_checkpoints_with_every_renewal(
    should_checkpoint: bool, every_s: float | None
) -> None:
    fixed = FixedPartitionOptions(should_checkpoint=should_checkpoint, max_batch_size=500)
    options = fixed_engine_options(fixed, 4)
    assert options.checkpoints == CheckpointPolicy(every_s=every_s)
    assert (options.max_partitions, options.prefetch, options.interval_s) == (4, 500, 1.25)


# Options that the engine has under the same name, with a value that is not the default.
SHARED: dict[str, Any] = {
    "poison": PoisonPolicy(retries=7),
    "checkpoints": CheckpointPolicy(every_events=7),
    "checkpoint_on_stop": False,
    "handler_timeout_s": 7.0,
    "on_handler_timeout": "cancel",
    "handler_threads": 7,
    "stop_s": 7.0,
    "prefetch_bytes": 7_000,
    "prefetch_bytes_total": 70_000,
    "on_expired": "fail",
    "give_up_s": 7.0,
    "concurrency": 7,
    "start": LATEST,
    "lease_s": 77.0,
    "renew_s": 7.0,
}


def shared_with_the_engine(cls: Any) -> set[str]:
    return {each.name for each in fields(cls)} & {each.name for each in fields(ProcessorOptions)}


@pytest.mark.parametrize("name", sorted(shared_with_the_engine(EventProcessorOptions)))
def test_an_option_of_a_host_reaches_the_engine(name: str) -> None:
    given: Any = {name: SHARED[name]}
    engine = host_engine_options(EventProcessorOptions(**given), PartitionManagerOptions())
    assert getattr(engine, name) == SHARED[name] != getattr(ProcessorOptions(), name)


@pytest.mark.parametrize("name", sorted(shared_with_the_engine(FixedPartitionOptions)))
def test_an_option_of_a_fixed_processor_reaches_the_engine(name: str) -> None:
    given: Any = {name: SHARED[name]}
    engine = fixed_engine_options(FixedPartitionOptions(**given), 1)
    assert getattr(engine, name) == SHARED[name] != getattr(ProcessorOptions(), name)


async def test_a_start_of_a_partition_that_does_not_exist_is_refused() -> None:
    options = ProcessorOptions(start=LATEST, starts={"7": EARLIEST})
    async with HubAndStore(2) as env:
        with pytest.raises(OptionError, match="starts has the partition '7', and hub eh has 0, 1"):
            async with Processor(env.connection, store=env.store, options=options):
                pass


def test_a_partition_that_is_a_number_is_refused_as_a_start() -> None:
    starts: Any = {0: EARLIEST}
    with pytest.raises(OptionError, match="starts has the partition 0: partitions are texts"):
        ProcessorOptions(starts=starts)


def test_options_keep_a_copy_of_the_starts() -> None:
    starts = {"0": EARLIEST}
    options = ProcessorOptions(start=LATEST, starts=starts)
    starts.clear()
    assert options.start_of("0") == EARLIEST
