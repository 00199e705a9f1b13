"""Errors reach every callback, even if handlers hang or other callbacks raise."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.client.factory import open_client
from pumphouse.clock import SystemClock
from pumphouse.errors import HandlerStuck
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.handling.threads import CallbackThreads
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy, ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.reporting import RENEWED, Reporter
from tests.processor.handling.test_handlers import HandlerHost
from tests.processor.support.hub_and_store import HUB, HubAndStore, until
from tests.processor.support.virtual_time import run

SKIP = PoisonPolicy(retries=0, then="skip")


class PlainProcessor:
    """An event processor with plain methods."""

    def open(self, context: PartitionContext) -> None: ...

    def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

    def process_events(self, context: PartitionContext, messages: list[Event]) -> None: ...

    def process_error(self, context: PartitionContext, error: Exception) -> None: ...


async def until_in_real_time(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_errors_are_reported_while_all_handler_threads_hang() -> None:
    """In real time: a virtual loop does not wait for a thread."""
    go, errors, names = threading.Event(), [], set()

    class HangingProcessor(PlainProcessor):
        def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            go.wait(60)

    def record(failed: Exception) -> None:
        errors.append(failed)
        names.add(threading.current_thread().name)

    options = EventProcessorOptions(handler_timeout_s=0.2)
    async with EmbeddedHub({HUB: 8}) as hub, open_client(hub.connection_string(HUB)) as client:
        for partition in range(8):
            await (await client.sender(str(partition))).send([Event(b"x")])
        host = EventProcessorHost(
            "a", hub.connection_string(HUB), store=MemoryStore(), strategy="greedy", on_error=record
        )
        async with host:
            await host.register(HangingProcessor, options)
            try:
                await until_in_real_time(lambda: len(errors) == 8)
            finally:
                go.set()
    assert {type(failed) for failed in errors} == {HandlerStuck}
    assert all(name.startswith("pumphouse on_error") for name in names)


def test_an_error_callback_that_raises_does_not_prevent_the_others() -> None:
    async def scenario() -> None:
        errors: list[str] = []

        class Bad:
            async def open(self, context: PartitionContext) -> None: ...

            async def close(self, context: PartitionContext, reason: CloseReason) -> None: ...

            async def process_events(self, context: PartitionContext, messages: list[Event]) -> Any:
                raise ValueError("bad")

            async def process_error(self, context: PartitionContext, error: Exception) -> None:
                raise KeyError("in process_error")

        async def raises(received: object) -> None:
            raise KeyError("in on_exception")

        async def record(failed: Exception) -> None:
            errors.append(type(failed).__name__)

        async with HubAndStore(1) as env:
            host = EventProcessorHost(
                "a", env.connection, store=env.store, clock=env.clock, on_error=record
            )
            await env.send("a")
            async with host:
                await host.register(Bad, EventProcessorOptions(poison=SKIP, on_exception=raises))
                await until(lambda: errors == ["ValueError", "PoisonEvent"])

    run(scenario())


def test_a_fixed_callback_that_raises_does_not_prevent_the_others() -> None:
    async def scenario() -> None:
        errors: list[str] = []
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, clock=env.clock, poison=SKIP
            )

            async def raises(*given: object) -> None:
                raise KeyError("in a listener")

            @processor.on_batch
            async def handle(partition: PartitionClient, batch: list[Event]) -> None:
                raise ValueError("bad")

            async def assigned(partition: str) -> None:
                errors.append(f"assigned {partition}")

            async def failed(partition: str | None, error: Exception) -> None:
                errors.append(type(error).__name__)

            processor.on_assigned(raises)
            processor.on_assigned(assigned)
            processor.on_error(raises)
            processor.on_error(failed)
            await env.send("a")
            async with processor:
                await until(lambda: errors == ["assigned 0", "ValueError", "PoisonEvent"])

    run(scenario())


@pytest.mark.parametrize("face", ["class", "functions", "fixed"])
async def test_stop_iteration_of_a_plain_handler_is_reported(face: str) -> None:
    """In real time: a virtual loop does not wait for a thread."""
    errors: list[str] = []

    def bad(*given: object) -> None:
        next(iter([]))

    async def record(*given: object) -> None:
        errors.append(str(given[-1]))

    async with EmbeddedHub({HUB: 1}) as hub, open_client(hub.connection_string(HUB)) as client:
        await (await client.sender()).send([Event(b"x")])
        async with await start(face, hub.connection_string(HUB), bad, record):
            await until_in_real_time(lambda: len(errors) == 2)
    assert errors[0] == "the handler raised StopIteration"


async def test_stop_iteration_of_a_plain_function_is_reported() -> None:
    def bad(partition: PartitionClient, batch: list[Event]) -> None:
        next(iter([]))

    async with HandlerHost(bad, ProcessorOptions(poison=SKIP), clock=SystemClock()) as host:
        await host.send(b"x")
        await until_in_real_time(lambda: len(host.errors) == 2)
        assert host.kinds() == ["RuntimeError", "PoisonEvent"]


async def start(face: str, connection: str, bad: Any, record: Any) -> Any:
    if face == "fixed":
        fixed = FixedPartitionProcessor(connection, partitions=1, store=MemoryStore(), poison=SKIP)
        fixed.on_batch(bad)
        fixed.on_error(record)
        return fixed
    host = EventProcessorHost("a", connection, store=MemoryStore(), on_error=record)
    options = EventProcessorOptions(poison=SKIP)
    if face == "functions":
        await host.start(bad, None, options)
    else:
        await host.register(type("Bad", (PlainProcessor,), {"process_events": bad}), options)
    return host


async def takes_both(partition: str | None, error: Exception) -> None:
    raise Received(partition, error)


async def takes_the_error(error: Exception, prefix: str = "x") -> None:
    raise Received(error)


async def takes_any(*arguments: object) -> None:
    raise Received(*arguments)


class Received(Exception):
    """The arguments of a callback."""


@pytest.mark.parametrize(
    ("on_error", "arguments"), [(takes_both, 2), (takes_the_error, 1), (takes_any, 2)]
)
def test_on_error_of_a_host_gets_the_partition_unless_it_takes_only_the_error(
    on_error: Any, arguments: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with HubAndStore(1) as env:
            host = EventProcessorHost(
                "a", env.connection, store=env.store, clock=env.clock, on_error=on_error
            )
            await env.send("a")
            async with host:
                await host.start(fails, options=EventProcessorOptions(poison=SKIP))
                await until(lambda: received())

    async def fails(context: PartitionContext, event: Event) -> None:
        raise ValueError("bad")

    def received() -> list[tuple[object, ...]]:
        raised = [record.exc_info[1] for record in caplog.records if record.exc_info]
        return [each.args for each in raised if isinstance(each, Received)]

    run(scenario())
    error = received()[0][-1]
    assert isinstance(error, ValueError)
    assert received()[0] == ("0", error)[2 - arguments :]


async def test_a_callback_that_always_raises_is_logged_as_often_as_other_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def raises(*given: object) -> None:
        raise KeyError("in the callback")

    callbacks = CallbackThreads(Reporter("a"), "on_error", "on_exception")
    for number in range(101):
        await callbacks.call("on_error", raises, number)
    await callbacks.call("on_exception", raises, 1)
    logged = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    failure = """error="KeyError: 'in the callback'\""""
    assert logged == [
        f"callback_failed host=a callback=on_error {failure}",
        f"callback_failed host=a callback=on_error {failure} count=10",
        f"callback_failed host=a callback=on_error {failure} count=100",
        f"callback_failed host=a callback=on_exception {failure}",
    ]


@pytest.mark.parametrize("is_coroutine", [False, True])
async def test_an_ownership_callback_that_always_raises_is_logged_at_powers_of_ten(
    is_coroutine: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(change: str, partition: str) -> None:
        raise KeyError("in the callback")

    async def coroutine(change: str, partition: str) -> None:
        plain(change, partition)

    callback: Any = coroutine if is_coroutine else plain
    reporter = Reporter("a", on_ownership=callback)
    for number in range(101):
        reporter.changed(RENEWED, str(number % 4))
    await reporter.wait(30)
    await asyncio.sleep(0)  # the callbacks of the tasks
    counts = [r.getMessage().partition(" count=")[2] for r in caplog.records]
    assert counts == ["", "10", "100"]
    assert reporter.counts["callback_failed"] == 101


async def test_all_callbacks_get_the_errors_in_the_same_order() -> None:
    """With two threads for all lanes, the second error would overtake the first."""
    callbacks = CallbackThreads(Reporter("a"), "on_exception", "on_error")
    first: list[int] = []
    second: list[int] = []

    def slow_at_first(error: int) -> None:
        first.append(error)
        if error == 0:
            time.sleep(0.05)

    async def report(error: int) -> None:
        await callbacks.call("on_exception", slow_at_first, error)
        await callbacks.call("on_error", second.append, error)

    await asyncio.gather(*map(report, range(5)))
    callbacks.close()
    assert first == second == list(range(5))
