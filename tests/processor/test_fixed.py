"""FixedPartitionProcessor: one test for every rule of its description."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from pumphouse.errors import OptionError
from pumphouse.events import LATEST, Event
from pumphouse.leases.flaky_store import NO_FAULTS, FlakyStore, RandomFaults
from pumphouse.leases.model import Checkpoint
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.options import FixedPartitionOptions, PoisonPolicy
from pumphouse.processor.partition import PartitionClient
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run

CONNECTION = "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=a2V5;EntityPath=eh"


def make_processor(env: HubAndStore, partitions: int, **more: Any) -> FixedPartitionProcessor:
    given: dict[str, Any] = {"store": env.store, "clock": env.clock} | more
    return FixedPartitionProcessor(env.connection, partitions=partitions, **given)


async def checkpoint_of(env: HubAndStore) -> Checkpoint:
    stored = await env.checkpoint()
    assert stored is not None
    return stored


@pytest.mark.parametrize("seed", range(5))
def test_one_partition_is_assigned_per_second_up_to_the_number(seed: int) -> None:
    async def scenario() -> None:
        at: list[float] = []
        async with HubAndStore(8) as env:
            processor = make_processor(env, 3, rng=Random(seed))

            @processor.on_assigned
            async def assigned(partition: str) -> None:
                at.append(asyncio.get_running_loop().time())

            async with processor:
                await until(lambda: len(processor.owned) == 3)
                await asyncio.sleep(120)
                assert len(processor.owned) == 3  # and no more, though other partitions are free
            gaps = [later - earlier for earlier, later in pairwise(at)]
            assert len(at) == 3
            assert all(1.0 <= gap <= 1.5 for gap in gaps), gaps

    run(scenario())


def test_partitions_are_never_reassigned_while_their_owner_lives() -> None:
    """A second fixed host takes nothing from the first."""

    async def scenario() -> None:
        async with HubAndStore(4) as env, make_processor(env, 4, host="a") as first:
            await until(lambda: len(first.owned) == 4)
            async with make_processor(env, 4, host="b") as second:
                await asyncio.sleep(130)  # two leases
                assert (len(first.owned), len(second.owned)) == (4, 0)

    run(scenario())


@pytest.mark.parametrize("strategy", ["steady", "greedy", "balanced", "eph", "eph_js"])
def test_nothing_is_given_to_a_host_that_balances(strategy: str) -> None:
    async def scenario() -> None:
        from pumphouse.processor.processor import Processor

        async with HubAndStore(4) as env, make_processor(env, 4, host="a") as first:
            await until(lambda: len(first.owned) == 4)
            greedy = Processor(
                env.connection, store=env.store, host="b", strategy=strategy, clock=env.clock
            )
            async with greedy:
                await asyncio.sleep(130)  # two leases
                assert (len(first.owned), greedy.owned) == (4, ())

    run(scenario())


def test_a_crashed_owner_is_replaced_after_its_lease() -> None:
    async def scenario() -> None:
        async with HubAndStore(2) as env:
            first = make_processor(env, 2, host="a", lease_s=30, renew_s=10)
            await first.start()
            await until(lambda: len(first.owned) == 2)
            first._engine.abandon()
            died_s = asyncio.get_running_loop().time()
            async with make_processor(env, 2, host="b", lease_s=30, renew_s=10) as second:
                await until(lambda: len(second.owned) == 2)
                waited_s = asyncio.get_running_loop().time() - died_s
                assert 19 < waited_s < 30 + 10  # its lease, and one second per partition
            await first.stop()

    run(scenario())


def test_batches_have_one_to_max_batch_size_events() -> None:
    async def scenario() -> None:
        sizes: list[int] = []
        async with HubAndStore(1) as env:
            await env.send(*map(str, range(25)))
            processor = make_processor(env, 1, max_batch_size=10)

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                assert partition.id == "0"
                sizes.append(len(batch))

            async with processor:
                await until(lambda: sum(sizes) == 25)
            assert all(1 <= size <= 10 for size in sizes)

    run(scenario())


def test_a_renewal_writes_a_checkpoint() -> None:
    async def scenario() -> None:
        renewed: list[str] = []
        async with HubAndStore(1) as env:
            processor = make_processor(env, 1, lease_s=30, renew_s=10)

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None: ...

            @processor.on_renewed
            def note(partition: str) -> None:
                renewed.append(partition)

            async with processor:
                await until(lambda: processor.owned)
                for number in range(5):
                    await env.send(str(number))
                    await asyncio.sleep(11)  # one renewal, and the checkpoint beside it
                    assert (await checkpoint_of(env)).sequence == number
                    assert len(renewed) >= number + 1

    run(scenario())


def test_handlers_are_called_when_a_partition_is_assigned_renewed_and_released() -> None:
    """They are coroutines, because virtual time does not wait for a thread."""

    async def scenario() -> None:
        calls: list[tuple[str, str]] = []
        seconds: set[tuple[str, str]] = set()

        def recorder(change: str) -> Callable[[str], Coroutine[Any, Any, None]]:
            async def record(partition: str) -> None:
                calls.append((change, partition))

            return record

        def second_recorder(change: str) -> Callable[[str], Coroutine[Any, Any, None]]:
            async def record(partition: str) -> None:
                seconds.add((change, partition))

            return record

        async with HubAndStore(2) as env:
            processor = make_processor(env, 2, lease_s=30, renew_s=10)
            for make_recorder in (recorder, second_recorder):
                processor.on_assigned(make_recorder("assigned"))
                processor.on_renewed(make_recorder("renewed"))
                processor.on_released(make_recorder("released"))
            async with processor:
                await until(lambda: len(processor.owned) == 2)
                assert {("assigned", "0"), ("assigned", "1")} == {*calls}
                await asyncio.sleep(25)
                assert {("renewed", "0"), ("renewed", "1")} <= {*calls}
            assert {*calls[-2:]} == {("released", "0"), ("released", "1")}
            assert seconds == {*calls}

    run(scenario())


def test_starting_returns_at_once() -> None:
    """It waits neither for partitions nor for the first cycle."""

    async def scenario() -> None:
        async with HubAndStore(4) as env:
            processor = make_processor(env, 4)
            started_s = env.clock.monotonic()
            await processor.start()
            assert env.clock.monotonic() - started_s < 1
            await until(lambda: len(processor.owned) == 4)
            await processor.stop()

    run(scenario())


def test_a_partition_that_cannot_be_renewed_is_released_after_the_lease() -> None:
    """A partition held for longer than LEASE_FOR_X_SEC is released."""

    async def scenario() -> None:
        released: list[tuple[str, float]] = []
        async with HubAndStore(1) as env:
            store = FlakyStore(env.store, clock=env.clock)
            processor = make_processor(env, 1, store=store, lease_s=30.0, renew_s=10.0)

            @processor.on_released
            async def note(name: str) -> None:
                released.append((name, env.clock.monotonic()))

            async with processor:
                await until(lambda: processor.owned)
                store.plan = RandomFaults(Random(1), before=1.0)  # no renewal arrives any more
                since_s = env.clock.monotonic()
                await until(lambda: released)
                assert processor.owned == ()
                (name, at_s), *_ = released
                assert name == "0"
                assert 20 <= at_s - since_s <= 40, "a lease, counted from the last renewal"
                store.plan = NO_FAULTS

    run(scenario())


def test_without_checkpoints_every_start_reads_from_the_start_position() -> None:
    """For a stage that keeps a day in memory and reads it again at each start."""

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            await env.send("a", "b")
            for _ in range(2):
                assert await read_two(make_processor(env, 1, should_checkpoint=False)) == [
                    b"a",
                    b"b",
                ]
            assert not (await checkpoint_of(env)).has_position

    run(scenario())


async def read_two(processor: FixedPartitionProcessor) -> list[bytes]:
    received: list[bytes] = []

    @processor.on_batch
    async def handle(partition: PartitionClient, batch: list[Event]) -> None:
        received.extend(event.body for event in batch)

    async with processor:
        await until(lambda: len(received) == 2)
        await asyncio.sleep(60)
    return received


def test_stopping_waits_for_work_in_progress() -> None:
    async def scenario() -> None:
        began, ended = asyncio.Event(), asyncio.Event()
        released: list[str] = []
        async with HubAndStore(1) as env:
            await env.send("a")
            processor = make_processor(env, 1)

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                began.set()
                await asyncio.sleep(7)
                ended.set()

            processor.on_released(released.append)
            await processor.start()
            await began.wait()
            await processor.stop()
            assert ended.is_set()
            assert released == ["0"]
            assert (await checkpoint_of(env)).sequence == 0

    run(scenario())


def test_every_error_reaches_on_error() -> None:
    async def scenario() -> None:
        errors: list[tuple[str | None, str]] = []
        async with HubAndStore(1) as env:
            await env.send("a", "b")
            poison = PoisonPolicy(retries=0, first_s=0.1, then="skip")
            processor = make_processor(env, 1, poison=poison)
            handled: list[bytes] = []

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                if batch[0].body == b"a":
                    raise ValueError("a is bad")
                handled.append(batch[0].body)

            @processor.on_error
            async def failed(partition: str | None, error: Exception) -> None:
                errors.append((partition, str(error)))

            async with processor:
                await until(lambda: handled)
            assert ("0", "a is bad") in errors

    run(scenario())


def test_a_partition_without_a_checkpoint_starts_at_the_start_position() -> None:
    async def scenario() -> None:
        received: list[bytes] = []
        async with HubAndStore(1) as env:
            await env.send("old")
            processor = make_processor(env, 1, start=LATEST)

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                received.extend(event.body for event in batch)

            async with processor:
                await until(lambda: processor.owned)
                await asyncio.sleep(5)
                await env.send("new")
                await until(lambda: received)
            assert received == [b"new"]

    run(scenario())


def test_options_and_keywords_are_combined() -> None:
    options = FixedPartitionOptions(lease_s=30, renew_s=10)
    processor = FixedPartitionProcessor(
        CONNECTION, partitions=2, store=MemoryStore(), options=options, max_batch_size=7
    )
    engine = processor._engine.options
    assert (engine.lease_s, engine.renew_s, engine.batch_events_max) == (30, 10, 7)
    with pytest.raises(OptionError, match="partitions must be at least 1"):
        FixedPartitionProcessor(CONNECTION, partitions=0, store=MemoryStore())
    with pytest.raises(OptionError, match="batch_size"):
        FixedPartitionProcessor(CONNECTION, partitions=1, store=MemoryStore(), batch_size=7)  # type: ignore[call-arg]


def test_without_a_batch_handler_no_event_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """A handler that is registered later gets all of them."""

    async def scenario() -> None:
        handled: list[bytes] = []
        async with HubAndStore(1) as env:
            await env.send("a", "b")
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock
            )
            async with processor:
                await until(lambda: processor.owned == ("0",))
                await asyncio.sleep(120)
                checkpoint = await env.checkpoint()
                assert checkpoint is None or checkpoint.sequence is None

                @processor.on_batch
                async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                    handled.extend(event.body for event in batch)

                await until(lambda: handled == [b"a", b"b"])

    run(scenario())
    assert "batch_handler_missing" in caplog.text
