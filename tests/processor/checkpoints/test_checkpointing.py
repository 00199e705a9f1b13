"""What a checkpoint covers: what was handled, never what was only handed out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pumphouse.errors import OptionError, PoisonEvent
from pumphouse.events import Event
from pumphouse.processor.checkpointing import RETRY_MOST_S, Progress, retry_delay_s
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.user_code import APIS, Errors, HostOptions, host_of
from tests.processor.support.virtual_time import run

Checkpoint = Callable[..., Awaitable[None]]
SLOW_RETRIES = PoisonPolicy(retries=3, first_s=60.0, most_s=60.0)
STOP_AT_ONCE = PoisonPolicy(retries=0)


async def stored(env: HubAndStore, partition: str = "0") -> int | None:
    checkpoint = await env.checkpoint(partition)
    return None if checkpoint is None else checkpoint.sequence


def events(*sequences: int) -> list[Event]:
    return [Event(b"", sequence=sequence) for sequence in sequences]


# -- Progress -------------------------------------------------------------------------------------


def test_in_its_handler_the_current_batch_is_covered() -> None:
    progress, batch = Progress(), events(0, 1, 2)
    assert progress.covered() is None
    progress.begin(batch)
    assert progress.covered() is batch[-1]
    progress.end()
    assert progress.covered() is None, "handed out, and not handled"


def test_while_an_exception_is_handled_the_current_batch_is_not_covered() -> None:
    progress = Progress()
    progress.mark_handled(events(0))
    progress.begin(events(1, 2))
    try:
        raise ValueError
    except ValueError:
        assert progress.covered() == events(0)[0]


def test_marking_again_marks_only_what_is_new() -> None:
    progress = Progress()
    assert progress.mark_handled(events(0, 1)) == events(0, 1)
    assert progress.mark_handled(events(0, 1, 2)) == events(2)
    assert progress.mark_handled(events(1)) == []
    assert progress.mark_handled([]) == []
    assert progress.handled == events(2)[0]


def test_another_task_does_not_cover_the_current_batch() -> None:
    async def scenario() -> None:
        progress = Progress()

        async def other() -> Event | None:
            await asyncio.sleep(0)
            return progress.covered()

        before = asyncio.create_task(other())  # started before the batch was delivered
        progress.begin(events(0))
        assert await before is None
        inside = asyncio.create_task(other())  # a part of the handler, which may fail meanwhile
        assert await inside is None
        assert progress.covered() == events(0)[0]
        late = asyncio.create_task(other())  # started in this call, and running in the next one
        progress.begin(events(1))
        assert await late is None

    run(scenario())


def test_the_delay_between_retries_grows_to_its_limit() -> None:
    class NoJitter:
        def random(self) -> float:
            return 0.0

    rng: Any = NoJitter()
    assert [retry_delay_s(failures, rng) for failures in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert retry_delay_s(1000, rng) == RETRY_MOST_S


# -- close, errors and other tasks ----------------------------------------------------------------


@pytest.mark.parametrize("moment", ["during the retries", "after poison"])
@pytest.mark.parametrize("api", ["class", "functions"])
def test_a_checkpoint_in_close_does_not_pass_a_failed_batch(api: str, moment: str) -> None:
    async def scenario() -> None:
        handled: list[bytes] = []
        failing = asyncio.Event()
        errors: Errors = []

        async def handle(checkpoint: Checkpoint, batch: list[Event]) -> None:
            if any(event.body.startswith(b"bad") for event in batch):
                failing.set()
                raise ValueError("cannot")
            handled.extend(event.body for event in batch)

        async def on_close(checkpoint: Checkpoint, batch: list[Event]) -> None:
            await checkpoint()

        poison = SLOW_RETRIES if moment == "during the retries" else STOP_AT_ONCE
        options = HostOptions(poison=poison, on_close=on_close, batch=5, checkpoint_on_stop=False)
        async with HubAndStore(1) as env:
            await env.send(*map(str, range(5)))
            async with host_of(api, env, env.store, handle, errors, options=options):
                await until(lambda: len(handled) == 5)
                await env.send("bad", "a", "b", "c", "d")
                await failing.wait()
                await asyncio.sleep(20)
            expected = 4 if api == "class" else None  # functions have no close
            assert await stored(env) == expected

    run(scenario())


def test_an_error_callback_does_not_checkpoint_the_failed_batch() -> None:
    async def scenario() -> None:
        reported: list[Exception] = []

        class Failing:
            async def open(self, context: PartitionContext) -> None: ...

            async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

            async def process_events(self, context: PartitionContext, batch: list[Event]) -> None:
                raise ValueError("cannot")

            async def process_error(self, context: PartitionContext, error: Exception) -> None:
                await context.checkpoint()
                reported.append(error)

        async with HubAndStore(1) as env:
            await env.send("a", "b")
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            await host.register(Failing, EventProcessorOptions(poison=STOP_AT_ONCE))
            await until(lambda: any(isinstance(error, PoisonEvent) for error in reported))
            await host.stop()
            assert await stored(env) is None

    run(scenario())


@pytest.mark.parametrize("api", APIS)
def test_a_timer_of_the_user_checkpoints_only_what_was_handled(api: str) -> None:
    """A task that checkpoints from time to time must not pass the batch that is being handled."""

    async def scenario() -> None:
        handling = asyncio.Event()
        checkpoints: list[Checkpoint] = []
        handled: list[bytes] = []
        errors: Errors = []

        async def timer() -> None:
            while not checkpoints:  # noqa: ASYNC110
                await asyncio.sleep(1)
            await handling.wait()
            await checkpoints[0]()

        async def handle(checkpoint: Checkpoint, batch: list[Event]) -> None:
            checkpoints.append(checkpoint)
            if b"slow" in [event.body for event in batch]:
                handling.set()
                await ticked
            handled.extend(event.body for event in batch)

        async with HubAndStore(1) as env:
            ticked = asyncio.create_task(timer())
            async with host_of(api, env, env.store, handle, errors) as host:
                await env.send("a", "b")
                await until(lambda: len(handled) == 2)
                await env.send("slow")
                await ticked
                assert await stored(env) == 1
                await until(lambda: len(handled) == 3)
                assert host.owned == ("0",)
        assert errors == []

    run(scenario())


def test_a_finally_around_the_loop_does_not_checkpoint_the_batch_that_failed() -> None:
    async def scenario() -> None:
        calls: list[bytes] = []
        failures = 0

        async def serve(partition: PartitionClient) -> None:
            nonlocal failures
            try:
                async for batch in partition.batches():
                    calls.extend(event.body for event in batch)
                    if batch[0].body == b"c" and failures == 0:
                        failures += 1
                        raise ValueError("once")
            finally:
                await partition.checkpoint()

        async with HubAndStore(1) as env:
            options = ProcessorOptions(checkpoint_on_stop=False)
            processor = Processor(env.connection, store=env.store, clock=env.clock, options=options)
            async with processor:
                running = asyncio.create_task(processor.run(serve))
                await env.send("a", "b")
                await until(lambda: len(calls) == 2)
                await env.send("c", "d")
                await until(lambda: len(calls) == 6)
            await running
        assert calls == [b"a", b"b", b"c", b"d", b"c", b"d"]

    run(scenario())


def test_with_two_batch_handlers_only_the_last_one_checkpoints_the_batch() -> None:
    async def scenario() -> None:
        between: list[int | None] = []
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock
            )

            @processor.on_batch
            async def first(partition: PartitionClient, batch: list[Event]) -> None:
                await partition.checkpoint()
                between.append(await stored(env))

            @processor.on_batch
            async def second(partition: PartitionClient, batch: list[Event]) -> None:
                await partition.checkpoint()

            async with processor:
                await env.send("a", "b")
                await env.until_checkpoint(1)
        assert between == [None]

    run(scenario())


# -- events of other partitions -------------------------------------------------------------------


def test_an_event_of_another_partition_is_refused() -> None:
    async def scenario() -> None:
        refused: list[str] = []
        seen: dict[str, Event] = {}

        async def serve(partition: PartitionClient) -> None:
            async for batch in partition.batches():
                seen[partition.id] = batch[-1]
                other = "1" if partition.id == "0" else "0"
                await until(lambda: len(seen) == 2)
                with pytest.raises(OptionError) as refusal:
                    await partition.checkpoint(seen[other])
                refused.append(str(refusal.value))

        async with HubAndStore(2) as env:
            processor = Processor(env.connection, store=env.store, clock=env.clock)
            async with processor:
                running = asyncio.create_task(processor.run(serve))
                await env.send("a", partition="0")
                await env.send("a", partition="1")
                await until(lambda: len(refused) == 2)
            await running
        assert sorted(refused)[0] == (
            "cannot checkpoint event 0 of partition 0 in partition 1: "
            "use the client of the event's own partition"
        )

    run(scenario())
