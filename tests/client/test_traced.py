"""Spans of clients, and the context in the events that they send."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator

import pytest
from opentelemetry.trace import SpanKind, StatusCode

from pumphouse.client.base import HubClient, ReaderOptions
from pumphouse.client.factory import open_client
from pumphouse.client.native.client import NativeClient
from pumphouse.errors import EventTooLarge
from pumphouse.events import Event
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.telemetry.spans import server_attributes
from pumphouse.telemetry.trace_context import read_context
from tests.telemetry.traces import Traces, id_of, links, tracing

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def traces() -> Iterator[Traces]:
    with tracing() as traces:
        yield traces


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"doors": 1}) as hub:
        yield hub


@pytest.fixture
async def client(hub: EmbeddedHub, traces: Traces) -> AsyncIterator[HubClient]:
    async with open_client(hub.connection_string("doors")) as client:
        yield client


async def send(client: HubClient, *events: Event) -> None:
    sender = await client.sender("0")
    await sender.send(events)
    await sender.close()


async def receive(client: HubClient, count: int) -> list[Event]:
    reader = await client.reader(ReaderOptions("0"))
    received: list[Event] = []
    while len(received) < count:
        received += await reader.receive(deadline_s=30)
    await reader.close()
    return received


def contexts(events: list[Event]) -> list[tuple[int, int]]:
    read = [read_context(event.properties) for event in events]
    return [(int(each.trace_id, 16), int(each.span_id, 16)) for each in read if each]


async def test_an_event_carries_the_context_of_its_send(client: HubClient, traces: Traces) -> None:
    with traces.tracer.start_as_current_span("mine") as mine:
        await send(client, Event(b"a", {"unit": "C"}, "key"))
    (event,) = await receive(client, 1)
    (span,) = traces.named("send doors")
    assert span.kind == SpanKind.PRODUCER
    assert id_of(span.parent) == id_of(mine.get_span_context())
    assert contexts([event]) == [id_of(span.get_span_context())]
    assert (event.body, event.properties["unit"], event.partition_key) == (b"a", "C", "key")
    assert event.properties["Diagnostic-Id"] == event.properties["traceparent"]
    assert span.attributes == {
        "messaging.system": "eventhubs",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "doors",
        "messaging.destination.partition.id": "0",
        "server.address": "127.0.0.1",
        "server.port": int(client.namespace.partition(":")[2]),
    }
    (span,) = traces.named("receive doors")
    assert (span.kind, links(span)) == (SpanKind.CLIENT, contexts([event]))
    assert (span.attributes or {})["messaging.batch.message_count"] == 1


async def test_each_event_of_a_batch_has_a_span_of_its_own(
    client: HubClient, traces: Traces
) -> None:
    await send(client, *[Event(b"%d" % number) for number in range(200)])
    events = await receive(client, 200)
    (span,) = traces.named("send doors")
    sent = id_of(span.get_span_context())
    assert span.kind == SpanKind.CLIENT
    assert (span.attributes or {})["messaging.batch.message_count"] == 200
    created = traces.named("create doors")
    assert [id_of(each.get_span_context()) for each in created] == contexts(events)[:128]
    assert {id_of(each.parent) for each in created} == {sent}
    assert {each.kind for each in created} == {SpanKind.PRODUCER}
    assert contexts(events)[128:] == [sent] * 72
    assert len(links(traces.named("receive doors")[0])) <= 128


async def test_an_event_keeps_the_context_that_it_carries(
    client: HubClient, traces: Traces
) -> None:
    await send(client, Event(b"a", {"traceparent": PARENT, "tracestate": "a=1"}), Event(b"b"))
    first, second = await receive(client, 2)
    assert first.properties == {"traceparent": PARENT, "tracestate": "a=1"}
    assert contexts([second]) == [id_of(traces.named("create doors")[0].get_span_context())]


async def test_an_iterator_is_not_read_in_advance(client: HubClient, traces: Traces) -> None:
    sender = await client.sender("0")
    sent = await sender.send((Event(b"%d" % number) for number in range(3)), batch_events_max=1)
    assert sent == 3
    assert len(contexts(await receive(client, 3))) == 3


async def test_a_failed_send_has_an_error(client: HubClient, traces: Traces) -> None:
    with pytest.raises(EventTooLarge):
        await send(client, Event(bytes(2_000_000)))
    (span,) = traces.named("send doors")
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "EventTooLarge"


async def test_what_is_not_sampled_is_sent_as_it_is(hub: EmbeddedHub) -> None:
    with tracing(is_sampled=False) as traces:
        async with open_client(hub.connection_string("doors")) as client:
            await send(client, Event(b"a"), Event(b"b"))
            assert [event.properties for event in await receive(client, 2)] == [{}, {}]
        assert len(traces) == 0


def test_without_a_provider_nothing_is_in_between() -> None:
    client = open_client("Endpoint=sb://127.0.0.1;SharedAccessKeyName=a;SharedAccessKey=b", "doors")
    while not isinstance(client, NativeClient):
        assert "Traced" not in type(client).__name__
        client = client._client  # type: ignore[attr-defined]


def test_without_opentelemetry_nothing_is_imported() -> None:
    code = (
        "import sys, pumphouse.client.factory, pumphouse.processor.engine, pumphouse.telemetry\n"
        "from pumphouse.telemetry.tracing import is_traced\n"
        "assert not is_traced()\n"
        "assert not any(name.startswith('opentelemetry') for name in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("namespace", "expected"),
    [
        ("house.servicebus.windows.net", {"server.address": "house.servicebus.windows.net"}),
        ("hub:5672", {"server.address": "hub", "server.port": 5672}),
        ("[::1]:5672", {"server.address": "::1", "server.port": 5672}),
        ("[::1]", {"server.address": "::1"}),
    ],
)
def test_the_port_of_a_namespace_is_an_attribute_of_its_own(
    namespace: str, expected: dict[str, str | int]
) -> None:
    assert server_attributes(namespace) == expected
