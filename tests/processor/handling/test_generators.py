"""A generator function is refused as a handler, because a call of it runs nothing of its body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from pumphouse.cli.process import find_handler
from pumphouse.errors import OptionError, PoisonEvent
from pumphouse.events import Event
from pumphouse.leases.model import Checkpoint
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.checks.factories import check_factory
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost
from pumphouse.processor.options import CheckpointPolicy, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.simulation import Scenario, simulate
from tests.processor.support.hub_and_store import HubAndStore, until

CONNECTION = (
    "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=k;SharedAccessKey=k;EntityPath=eh;"
    "UseDevelopmentEmulator=true"
)


def generator(first: object, second: object) -> Iterator[None]:
    yield


async def async_generator(first: object, second: object) -> AsyncIterator[None]:
    yield


class CallableObject:
    def __call__(self, first: object, second: object) -> Iterator[None]:
        yield


class GeneratorProcessor:
    def open(self, context: object) -> None: ...

    def close(self, context: object, reason: object) -> None: ...

    async def process_events(self, context: object, messages: object) -> AsyncIterator[None]:
        yield

    def process_error(self, context: object, error: object) -> None: ...


def run_handler(handler: Any) -> None:
    processor = Processor(CONNECTION, store=MemoryStore())
    asyncio.run(processor.run(handler=handler))


def start_host(handler: Any) -> None:
    asyncio.run(EventProcessorHost("host", CONNECTION, store=MemoryStore()).start(handler))


def register_on_batch(handler: Any) -> None:
    FixedPartitionProcessor(CONNECTION, store=MemoryStore(), partitions=1).on_batch(handler)


def simulate_with(handler: Any) -> None:
    simulate(Scenario(hours=0.01), handler=handler)


@pytest.mark.parametrize(
    "handler",
    [generator, async_generator, partial(generator), CallableObject()],
    ids=["def", "async def", "partial", "object"],
)
@pytest.mark.parametrize(
    "use", [run_handler, start_host, register_on_batch, simulate_with], ids=lambda use: use.__name__
)
def test_a_generator_function_is_refused(use: Callable[[Any], None], handler: Any) -> None:
    with pytest.raises(OptionError, match="is a generator function: remove `yield` from it"):
        use(handler)


def test_a_class_with_a_generator_method_is_refused() -> None:
    with pytest.raises(OptionError, match="process_events is a generator function"):
        check_factory(GeneratorProcessor)


def test_the_command_line_refuses_a_generator_function() -> None:
    with pytest.raises(OptionError, match="HANDLER must be a function, and generator is a"):
        find_handler(f"{__name__}:generator")


OPTIONS = ProcessorOptions(
    checkpoints=CheckpointPolicy(every_events=1),
    poison=PoisonPolicy(retries=0, then="stop"),
)


async def test_a_generator_that_a_function_returns_is_a_failure_of_the_handler() -> None:
    def handler(partition: PartitionClient, events: list[Event]) -> Iterator[None]:
        return generator(partition, events)

    errors, stored = await failures(handler)
    assert errors == [
        "the handler returned the generator generator, whose body has not run: remove `yield` from "
        "it"
    ]
    assert stored is None or stored.sequence is None


async def test_a_future_of_another_thread_is_awaited() -> None:
    """As asyncio.run_coroutine_threadsafe and the submit of an executor return it."""

    def work(events: list[Event]) -> None:
        raise ValueError(f"{events[0].body!r} in another thread")

    with ThreadPoolExecutor(1) as threads:

        def handler(partition: PartitionClient, events: list[Event]) -> Future[None]:
            return threads.submit(work, events)

        errors, _ = await failures(handler)
    assert errors == ["b'a' in another thread"]


@pytest.mark.parametrize("is_plain", [False, True], ids=["coroutine", "plain"])
async def test_an_awaitable_that_a_handler_returns_is_awaited(is_plain: bool) -> None:
    """As of a coroutine function without its `await`."""

    async def save(events: list[Event]) -> None:
        raise ValueError("saved")

    def plain(partition: PartitionClient, events: list[Event]) -> Any:
        return save(events)

    async def coroutine(partition: PartitionClient, events: list[Event]) -> Any:
        return save(events)

    errors, _ = await failures(plain if is_plain else coroutine)
    assert errors == ["saved"]


async def failures(handler: Any) -> tuple[list[str], Checkpoint | None]:
    """Why the handler has failed on one event, and the checkpoint after that."""
    causes: list[str] = []

    def failed(partition: str | None, error: Exception) -> None:
        if isinstance(error, PoisonEvent):
            causes.append(str(error.__cause__))

    async with HubAndStore(1) as env:
        await env.send("a")
        processor = Processor(env.connection, store=env.store, options=OPTIONS, on_error=failed)
        running = asyncio.create_task(processor.run(handler=handler))
        await until(lambda: causes)
        await processor.stop()
        await running
        return causes, await env.checkpoint()
