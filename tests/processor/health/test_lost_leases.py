"""A partition that is lost: the warning, its cause, and the callbacks of the three APIs."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from pumphouse.errors import LeaseLost, OwnershipLost, StoreUnavailable
from pumphouse.events import Event
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.health.loop_gaps import Gap, cause_of_expiry, late_limit_s
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.options import PartitionManagerOptions, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

OPTIONS = ProcessorOptions(interval_s=1.0, renew_s=1.0, lease_s=4.0)
BLOCKED = "a coroutine handler must not block; use a plain function, which runs in a thread"
STORE_AWAY = {"ownership_write_failed": StoreUnavailable("the store is away")}


def lines(caplog: pytest.LogCaptureFixture, event: str, level: int = logging.WARNING) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == level and record.getMessage().startswith(f"{event} ")
    ]


# -- which cause it is ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu_s", "handlers", "kind"),
    [
        (0.01, (), "process_suspended"),  # the process hardly ran
        (0.01, ("handle (partition 0)",), "loop_blocked"),  # it may have waited in a handler
        (4.9, (), "loop_blocked"),  # the process computed, outside of handlers
        (4.9, ("handle (partition 0)",), "loop_blocked"),
    ],
)
def test_the_kind_of_a_gap(cpu_s: float, handlers: tuple[str, ...], kind: str) -> None:
    assert Gap(100.0, 5.0, cpu_s, handlers).kind == kind


@pytest.mark.parametrize(
    ("gap", "failures", "unanswered", "kind"),
    [
        (Gap(105.0, 5.0, 0.0, ()), {}, False, "process_suspended"),
        (Gap(105.0, 5.0, 0.0, ("h (partition 0)",)), STORE_AWAY, True, "loop_blocked"),
        (Gap(99.0, 5.0, 0.0, ()), {}, False, "unknown"),  # it was over before the last renewal
        (Gap(105.0, 1.5, 1.5, ()), STORE_AWAY, True, "store_failed"),  # too short
        (Gap(105.0, 1.5, 1.5, ()), {}, False, "loop_blocked"),
        (None, STORE_AWAY, False, "store_failed"),
        (None, {}, True, "store_failed"),
        (None, {}, False, "unknown"),
    ],
)
def test_the_cause_of_an_expired_lease(
    gap: Gap | None, failures: dict[str, Exception], unanswered: bool, kind: str
) -> None:
    cause = cause_of_expiry(100.0, unanswered, gap, failures, OPTIONS)
    assert cause.kind == kind
    assert cause.todo


def test_a_short_delay_is_not_reported() -> None:
    assert late_limit_s(OPTIONS) == 1.0
    assert late_limit_s(ProcessorOptions(interval_s=30.0, renew_s=30.0, lease_s=90.0)) == 10.0


# -- the three APIs -------------------------------------------------------------------------------


class Blocking:
    """A coroutine handler that blocks the event loop for ten seconds, once."""

    def __init__(self, world: HubAndStore) -> None:
        self.world, self.blocked = world, False

    async def handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        if batch and not self.blocked:
            self.blocked = True
            block(10.0)


def block(seconds: float) -> None:
    """What `time.sleep` does to a loop in real time."""
    asyncio.get_running_loop().jumping.now += seconds  # type: ignore[attr-defined]


async def start_pull(world: HubAndStore, blocking: Blocking, errors: list[Any]) -> Any:
    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            await blocking.handle(partition, batch)

    processor = Processor(
        world.connection,
        store=world.store,
        host="a",
        options=OPTIONS,
        clock=world.clock,
        on_error=lambda partition, error: errors.append((partition, error)),
    )
    await processor.__aenter__()
    processor._serve_with(serve)
    return processor


async def start_push(world: HubAndStore, blocking: Blocking, errors: list[Any]) -> Any:
    class Counter:
        async def open(self, context: Any) -> None: ...

        async def close(self, context: Any, reason: Any) -> None: ...

        async def process_error(self, context: Any, error: Exception) -> None: ...

        async def process_events(self, context: Any, batch: list[Event]) -> None:
            await blocking.handle(context.partition, batch)

    host = EventProcessorHost(
        "a",
        world.connection,
        store=world.store,
        partition_manager_options=PartitionManagerOptions(4.0, 1.0),
        on_error=lambda error: errors.append((getattr(error, "partition", None), error)),
        clock=world.clock,
    )
    await host.register(Counter)
    return host


async def start_fixed(world: HubAndStore, blocking: Blocking, errors: list[Any]) -> Any:
    processor = FixedPartitionProcessor(
        world.connection,
        partitions=1,
        store=world.store,
        host="a",
        lease_s=4.0,
        renew_s=1.0,
        clock=world.clock,
    )
    processor.on_batch(blocking.handle)
    processor.on_error(lambda partition, error: errors.append((partition, error)))
    await processor.start()
    return processor


@pytest.mark.parametrize(
    ("start", "name"),
    [
        (start_pull, "start_pull.<locals>.serve"),
        (start_push, "start_push.<locals>.Counter.process_events"),
        (start_fixed, "Blocking.handle"),
    ],
)
def test_a_handler_that_blocks_the_loop_is_named(
    start: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        errors: list[Any] = []
        async with HubAndStore(partitions=1) as world:
            blocking = Blocking(world)
            running = await start(world, blocking, errors)
            await until(lambda: running.owned)
            await world.send("x")
            await until(lambda: errors)
            counts = running.engine.reporter.counts
            assert (counts["loop_blocked"], counts["partition_lost"]) == (1, 1)
            await until(lambda: running.owned)
            await running.stop()
        ((partition, error),) = errors
        assert partition == "0"
        assert isinstance(error, LeaseLost)
        assert error.reason == "lease_expired"
        assert error.seconds >= 10
        assert "the event loop was blocked for 9" in str(error)
        assert f"s by {name} (partition 0)" in str(error)

    with caplog.at_level(logging.INFO, "pumphouse.processor"):
        run(scenario())
    (blocked,) = lines(caplog, "loop_blocked")
    assert f'handlers="{name} (partition 0)"' in blocked
    assert f'todo="{BLOCKED}"' in blocked
    (lost,) = lines(caplog, "partition_lost")
    assert "reason=lease_expired cause=loop_blocked unrenewed_s=1" in lost
    assert f'todo="{BLOCKED}"' in lost
    assert not lines(caplog, "partition_lost", logging.INFO)
    assert lines(caplog, "partition_released", logging.INFO)


def test_a_process_that_was_stopped_is_the_reported_cause(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        errors: list[Any] = []
        async with HubAndStore(partitions=1) as world:
            running = await start_fixed(world, Blocking(world), errors)
            await until(lambda: running.owned)
            world.clock.ahead_s += 60.0  # as after SIGCONT, or standby
            await until(lambda: errors)
            await running.stop()
        assert isinstance(errors[0][1], OwnershipLost)

    with caplog.at_level(logging.INFO, "pumphouse.processor"):
        run(scenario())
    (suspended,) = lines(caplog, "process_suspended")
    assert "seconds=60" in suspended or "seconds=59" in suspended
    (lost,) = lines(caplog, "partition_lost")
    assert "cause=process_suspended" in lost
    assert "the process did not run for" in lost
