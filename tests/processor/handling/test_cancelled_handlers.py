"""A handler that leaves its own task cancelled has failed: it is reported and retried."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from pumphouse.errors import PoisonEvent
from pumphouse.events import Event
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from tests.processor.concurrency.env import Env, N
from tests.processor.support.fleet import Fleet
from tests.processor.support.hub_and_store import until
from tests.processor.support.virtual_time import run

OPTIONS = ProcessorOptions(
    checkpoints=CheckpointPolicy(every_events=1), poison=PoisonPolicy(retries=2), batch_events_max=2
)
End = Callable[["asyncio.Task[None]"], Awaitable[None]]


async def awaits(task: asyncio.Task[None]) -> None:
    await asyncio.sleep(1)


async def returns(task: asyncio.Task[None]) -> None:
    """The cancellation would be raised by the next await of the task, in code of ours."""


async def ignores(task: asyncio.Task[None]) -> None:
    """The count of cancellations of the task stays above 0."""
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        return


async def repeats(task: asyncio.Task[None]) -> None:
    try:
        await asyncio.sleep(1)
    except asyncio.CancelledError:
        task.cancel()
        raise


class SelfCancelling:
    """Cancels its own task at the first call with an event of key `x`."""

    def __init__(self, end: End, times: float = 1) -> None:
        self.end, self.times = end, times
        self.calls: Counter[str | None] = Counter()
        self.handled: list[int] = []

    async def __call__(self, partition: PartitionClient, events: list[Event]) -> None:
        key = events[0].partition_key
        self.calls[key] += 1
        if key == "x" and self.calls[key] <= self.times:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await self.end(task)
            return
        await asyncio.sleep(1)
        self.handled += [event.sequence or 0 for event in events]


@pytest.mark.parametrize("end", [awaits, returns, repeats])
@pytest.mark.parametrize("concurrency", [1, N])
def test_a_handler_that_cancels_its_task_is_reported_and_retried(
    concurrency: int, end: End
) -> None:
    async def scenario() -> None:
        handler = SelfCancelling(end)
        async with Env() as env:
            await env.send_keys("xaxb")
            async with env.host(handler, replace(OPTIONS, concurrency=concurrency)):
                await env.until_checkpoint(3)
        assert [str(error) for error in env.errors] == [
            "the handler cancelled its own task, or awaited a task or future that was cancelled"
        ]
        assert sorted(handler.handled) == [0, 1, 2, 3]

    run(scenario())


@pytest.mark.parametrize("concurrency", [1, N])
def test_a_handler_that_catches_its_cancellation_has_succeeded(concurrency: int) -> None:
    """Older libraries implement a timeout like this. The next failure is still its own."""

    async def scenario() -> None:
        handler = SelfCancelling(ignores)
        handled_x: list[int] = []

        async def handle(partition: PartitionClient, events: list[Event]) -> None:
            await handler(partition, events)
            task = asyncio.current_task()
            assert task is not None
            if handler.calls["x"] == 2 and not handled_x:
                handled_x.append(task.cancelling())
                task.cancel()
            await asyncio.sleep(0)

        async with Env() as env:
            await env.send_keys("xaxb")
            options = replace(OPTIONS, concurrency=concurrency, batch_events_max=1)
            async with env.host(handle, options):
                await env.until_checkpoint(3)
        assert [type(error) for error in env.errors] == [RuntimeError]
        assert handled_x == [0]

    run(scenario())


@pytest.mark.parametrize("end", [awaits, returns])
@pytest.mark.parametrize("concurrency", [1, N])
def test_an_event_whose_handler_always_cancels_its_task_is_poison(
    concurrency: int, end: End
) -> None:
    async def scenario() -> None:
        handler = SelfCancelling(end, times=100)
        policy = PoisonPolicy(retries=1, then="skip")
        async with Env() as env:
            await env.send_keys("xab")
            options = replace(OPTIONS, concurrency=concurrency, poison=policy, batch_events_max=1)
            async with env.host(handler, options):
                await env.until_checkpoint(2)
        kinds = [type(error) for error in env.errors]
        assert kinds == [RuntimeError, RuntimeError, PoisonEvent]

    run(scenario())


def test_a_task_that_is_cancelled_while_it_waits_for_a_call_continues() -> None:
    """Another task of the user has kept the task of a handler."""

    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []

        async def handler(partition: PartitionClient, events: list[Event]) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)

        async with Env() as env:
            await env.send_keys("x")
            async with env.host(handler, replace(OPTIONS, concurrency=N)):
                await env.until_checkpoint(0)
                tasks[0].cancel()
                await env.send_keys("x")
                await env.until_checkpoint(1)
        assert not env.errors

    run(scenario())


def test_a_task_that_is_cancelled_between_two_attempts_restarts_its_partition() -> None:
    async def scenario() -> None:
        tasks: list[asyncio.Task[None]] = []

        async def handler(partition: PartitionClient, events: list[Event]) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.append(task)
            if len(tasks) == 1:
                raise ValueError("once")

        async with Env() as env:
            await env.send_keys("xab")
            async with env.host(handler, replace(OPTIONS, concurrency=N)):
                await until(lambda: env.errors)
                await asyncio.sleep(0.1)
                tasks[0].cancel()
                await env.until_checkpoint(2)
        assert [type(error) for error in env.errors] == [ValueError, RuntimeError]

    run(scenario())


@pytest.mark.parametrize("end", [awaits, returns])
def test_a_loop_that_cancels_its_task_is_reported_and_restarted(end: End) -> None:
    async def scenario() -> None:
        async def work(partition: PartitionClient, batch: list[Event]) -> None:
            if not fleet.errors:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await end(task)

        async with Fleet(1) as fleet:
            await fleet.add("a", work=work)
            await fleet.send()
            await fleet.until(lambda: fleet.errors, "the report")
            await fleet.until(lambda: len(fleet.record["0"]) >= 10, "all events")
            assert [str(failed) for _, _, failed in fleet.errors] == [
                "the code that serves the partition cancelled its own task, or awaited a task or "
                "future that was cancelled"
            ]

    run(scenario())


@pytest.mark.parametrize("concurrency", [1, N])
def test_a_late_handler_is_still_cancelled_when_the_host_stops(concurrency: int) -> None:
    async def scenario() -> None:
        begun, ends = asyncio.Event(), list[str]()

        async def handler(partition: PartitionClient, events: list[Event]) -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                ends.append("cancelled")
                raise

        options = replace(OPTIONS, concurrency=concurrency, stop_s=5.0)
        async with Env() as env:
            await env.send_keys("x")
            async with env.host(handler, options):
                await begun.wait()
        assert ends == ["cancelled"]

    run(scenario())
