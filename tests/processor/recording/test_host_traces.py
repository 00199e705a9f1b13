"""Spans of hosts: what they link to, and when they are the current one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import SpanKind, StatusCode

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import EventProcessorOptions, PoisonPolicy
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore, until
from tests.processor.support.virtual_time import run
from tests.telemetry.page import recording
from tests.telemetry.traces import Traces, id_of, links, tracing


@pytest.fixture
def traces() -> Iterator[Traces]:
    with tracing() as traces:
        yield traces


async def send(env: HubAndStore, *bodies: str) -> None:
    async with open_client(env.connection) as client:
        await (await client.sender("0")).send([Event(body.encode()) for body in bodies])


def test_a_batch_of_a_loop_is_a_span_that_links_to_its_events(traces: Traces) -> None:
    seen: list[trace.Span] = []

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            seen.append(trace.get_current_span())
            with traces.tracer.start_as_current_span("mine"):
                await partition.checkpoint(batch[-1])
        assert trace.get_current_span() is trace.INVALID_SPAN

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            await send(env, "a", "b")
            processor = Processor(env.connection, store=env.store, host="a", clock=env.clock)
            running = asyncio.create_task(processor.run(serve))
            await until(lambda: traces.named("mine"))
            await send(env, "c")
            await until(lambda: len(traces.named("mine")) == 2)
            await processor.stop()
            await running

    run(scenario())
    first, second = traces.named("process eh")
    assert id_of(seen[0].get_span_context()) == id_of(first.get_span_context())
    assert set(links(first)) == traces.ids("create eh")
    assert links(second) == [id_of(traces.named("send eh")[1].get_span_context())]
    assert (first.kind, first.parent) == (SpanKind.CONSUMER, None)
    attributes = dict(first.attributes or {})
    assert attributes.pop("server.address") == "127.0.0.1"
    assert attributes.pop("server.port")
    assert attributes == {
        "messaging.system": "eventhubs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "eh",
        "messaging.destination.partition.id": "0",
        "messaging.consumer.group.name": "$Default",
        "messaging.batch.message_count": 2,
    }
    mine, checkpoint = traces.named("mine")[0], traces.named("checkpoint eh")[0]
    assert id_of(mine.parent) == id_of(first.get_span_context())
    assert id_of(checkpoint.parent) == id_of(mine.get_span_context())
    assert (checkpoint.attributes or {})["messaging.operation.type"] == "settle"
    assert checkpoint.kind == SpanKind.CLIENT


@pytest.mark.parametrize("is_plain", [False, True])
def test_the_span_is_current_in_a_handler(traces: Traces, is_plain: bool) -> None:
    seen: list[trace.Span] = []

    async def handle(partition: PartitionClient, batch: list[Event]) -> None:
        seen.append(trace.get_current_span())
        await asyncio.sleep(0)

    async def call(partition: PartitionClient, batch: list[Event]) -> None:
        """As a helper of the user that starts a task: it gets the span too."""
        await asyncio.create_task(handle(partition, batch))

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, host="a", clock=env.clock
            )
            processor.on_batch(handle if is_plain else call)
            async with processor:
                await send(env, "a")
                await until(lambda: traces.named("process eh"))

    run(scenario())
    (span,) = traces.named("process eh")
    assert [id_of(each.get_span_context()) for each in seen] == [id_of(span.get_span_context())]
    assert links(span) == list(traces.ids("send eh"))


def test_each_call_of_a_function_is_a_span_and_a_failure_is_shown(traces: Traces) -> None:
    async def on_message(context: PartitionContext, event: Event) -> None:
        if event.body == b"bad":
            raise ValueError("cannot")

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            host = EventProcessorHost("a", env.connection, store=env.store, clock=env.clock)
            options = EventProcessorOptions(poison=PoisonPolicy(retries=0, then="skip"))
            await host.start(on_message, options=options)
            await send(env, "bad", "good")
            await until(lambda: len(traces.named("process eh")) == 3)
            await host.unregister()

    with recording():  # both are on
        run(scenario())
    failed, again, good = traces.named("process eh")
    for span in (failed, again):
        assert (span.attributes or {})["error.type"] == "ValueError"
        assert span.status.status_code is StatusCode.ERROR
    assert good.status.is_unset
    assert links(failed) == links(again) != links(good)


class Wordless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize("method", ["on_start", "on_end"])
def test_events_are_handled_even_if_the_tracing_of_the_application_raises(
    traces: Traces, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object, **more: object) -> None:
        raise ValueError("broken")

    handled: list[bytes] = []

    async def handle(partition: PartitionClient, batch: list[Event]) -> None:
        handled.extend(event.body for event in batch)
        if handled == [b"a", b"b"]:
            raise Wordless

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            processor = FixedPartitionProcessor(
                env.connection, partitions=1, store=env.store, host="a", clock=env.clock
            )
            processor.on_batch(handle)
            async with processor:
                monkeypatch.setattr(SimpleSpanProcessor, method, fails)
                await send(env, "a", "b")
                await until(lambda: len(handled) == 4)

    run(scenario())
    assert handled == [b"a", b"b"] * 2


def test_without_sampling_no_span_is_recorded() -> None:
    handled: list[Event] = []

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            assert not trace.get_current_span().is_recording()
            handled.extend(batch)

    async def scenario() -> None:
        async with HubAndStore(1) as env:
            await send(env, "a")
            processor = Processor(env.connection, store=env.store, host="a", clock=env.clock)
            running = asyncio.create_task(processor.run(serve))
            await until(lambda: handled)
            await processor.stop()
            await running

    with tracing(is_sampled=False) as traces:
        run(scenario())
        assert len(traces) == 0
