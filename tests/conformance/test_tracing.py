"""Traces across clients: spans of the official clients and ours link to each other."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.settings import settings
from azure.eventhub import EventData
from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient, PartitionContext

from pumphouse.client.factory import open_client
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.leases.stores.memory import MemoryStore
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.telemetry.traces import Traces, links, tracing

JS = Path(__file__).parent / "js"
LIMIT_S = 45.0


@pytest.fixture
def traces() -> Iterator[Traces]:
    """The application has a provider, and azure-core-tracing-opentelemetry."""
    with tracing() as traces:
        settings.tracing_implementation = "opentelemetry"
        yield traces
        settings.tracing_implementation.unset_value()


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"doors": 1}) as hub:
        yield hub


async def process(hub: EmbeddedHub, count: int) -> None:
    """Handle these events with our processor."""
    handled: list[Event] = []

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            handled.extend(batch)

    processor = Processor(hub.connection_string("doors"), store=MemoryStore())
    running = asyncio.create_task(processor.run(serve))
    async with asyncio.timeout(LIMIT_S):
        while len(handled) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await processor.stop()
    await running


async def send(hub: EmbeddedHub, *bodies: bytes) -> None:
    async with open_client(hub.connection_string("doors")) as client:
        await (await client.sender("0")).send([Event(body) for body in bodies])


def all_links(traces: Traces, name: str) -> set[tuple[int, int]]:
    return {linked for span in traces.named(name) for linked in links(span)}


async def test_our_processor_links_to_an_official_producer(
    hub: EmbeddedHub, traces: Traces
) -> None:
    producer = EventHubProducerClient.from_connection_string(hub.connection_string("doors"))
    async with producer:
        await producer.send_batch([EventData(b"a"), EventData(b"b")], partition_id="0")
    await process(hub, 2)
    created = traces.ids("EventHubs.message")
    assert len(created) == 2
    assert all_links(traces, "process doors") == created


async def test_an_official_consumer_links_to_our_producer(hub: EmbeddedHub, traces: Traces) -> None:
    await send(hub, b"a", b"b")
    received: list[EventData] = []

    async def on_events(context: PartitionContext, events: list[EventData]) -> None:
        received.extend(events)

    consumer = EventHubConsumerClient.from_connection_string(
        hub.connection_string("doors"), consumer_group="$Default"
    )
    async with consumer, asyncio.timeout(LIMIT_S):
        receiving = asyncio.create_task(
            consumer.receive_batch(on_events, starting_position="-1", max_wait_time=1)
        )
        while len(received) < 2 or not all_links(traces, "EventHubs.process"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        receiving.cancel()
        await asyncio.wait([receiving])
    created = traces.ids("create doors")
    assert len(created) == 2
    assert all_links(traces, "EventHubs.process") == created


# -- JavaScript -----------------------------------------------------------------------------------


async def javascript(hub: EmbeddedHub, scenario: str) -> list[dict[str, Any]]:
    """The spans that this scenario of tracing.cjs has recorded."""
    if shutil.which("node") is None or not (JS / "node_modules").is_dir():
        pytest.skip("needs node and its packages: run scripts/npm-ci, or make test, which does")
    environment = {**os.environ, "CONNECTION": hub.connection_string("doors")}
    node = await asyncio.create_subprocess_exec(
        "node",
        JS / "tracing.cjs",
        scenario,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(LIMIT_S):
            output, errors = await node.communicate()
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
    assert node.returncode == 0, errors.decode()
    spans: list[dict[str, Any]] = json.loads(output)
    return spans


def js_id(context: dict[str, str]) -> tuple[int, int]:
    return int(context["traceId"], 16), int(context["spanId"], 16)


async def test_our_processor_links_to_a_javascript_producer(
    hub: EmbeddedHub, traces: Traces
) -> None:
    spans = await javascript(hub, "send")
    await process(hub, 2)
    created = {js_id(span["context"]) for span in spans if span["name"] == "message"}
    assert len(created) == 2, spans
    assert all_links(traces, "process doors") == created


async def test_a_javascript_consumer_links_to_our_producer(
    hub: EmbeddedHub, traces: Traces
) -> None:
    await send(hub, b"a", b"b")
    spans = await javascript(hub, "receive")
    linked = {
        js_id(each)
        for span in spans
        if span["name"] == "PartitionPump.process"
        for each in span["links"]
    }
    assert linked == traces.ids("create doors"), spans
