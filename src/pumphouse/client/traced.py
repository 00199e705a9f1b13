"""A client that records spans, and writes their context into the events that it sends.

    open_client -> TracedClient -> MeteredClient or driver
                   ^^^^^^^^^^^^ this module

`open_client` returns one only if the application has a TracerProvider.

A call of `send` is one span. The first events of the call have a span `create` each, the others
carry the context of `send`. One sampling decision is made per call: if `send` is not sampled, the
events are sent as they are.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence, Sized

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from pumphouse.client.base import BatchSender, Reader, ReaderOptions, Sender
from pumphouse.client.wrapped import (
    ObservedBatchSender,
    ObservedReader,
    ObservedSender,
    WrappedClient,
)
from pumphouse.events import Event
from pumphouse.telemetry.spans import (
    CREATE,
    LINKS_MAX,
    RECEIVE,
    SEND,
    Spans,
    describe_batch,
    end,
    ending,
    with_context,
)
from pumphouse.telemetry.trace_context import carries_context


class TracedReading:
    """Records what `receive` returns. A call that ends without an event is not recorded."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def receive(self, receive: Callable[[], Awaitable[list[Event]]]) -> list[Event]:
        began_ns = time.time_ns()
        try:
            events = await receive()
        except Exception as error:
            end(self._spans.start(RECEIVE, SpanKind.CLIENT, began_ns=began_ns), error)
            raise
        if events:
            span = self._spans.start(RECEIVE, SpanKind.CLIENT, began_ns=began_ns)
            describe_batch(span, events)
            end(span)
        return events

    def close(self) -> None:
        """Nothing: a span ends with its call."""


class TracedSending:
    """Records every `send`, and every batch that the caller has encoded; such events stay as is."""

    def __init__(self, spans: Spans) -> None:
        self._spans = spans

    async def send(
        self, events: Iterable[Event], send: Callable[[Iterable[Event]], Awaitable[int]]
    ) -> int:
        is_single = isinstance(events, Sized) and len(events) == 1
        kind = SpanKind.PRODUCER if is_single else SpanKind.CLIENT
        with ending(self._spans.start(SEND, kind)) as span:
            if span.is_recording():
                events = self._with_contexts(events, span, is_single)
            sent = await send(events)
            if not is_single:
                span.set_attribute("messaging.batch.message_count", sent)
            return sent

    async def deliver(self, deliver: Callable[[], Awaitable[int]]) -> int:
        with ending(self._spans.start(SEND, SpanKind.CLIENT)) as span:
            sent = await deliver()
            span.set_attribute("messaging.batch.message_count", sent)
            return sent

    def _with_contexts(
        self, events: Iterable[Event], span: Span, is_single: bool
    ) -> Iterable[Event]:
        """The events with a context. An iterator remains one: it may be long."""
        carrying = (
            (with_context(event, span) for event in events)
            if is_single
            else self._created(events, span)
        )
        return list(carrying) if isinstance(events, Sequence) else carrying

    def _created(self, events: Iterable[Event], send: Span) -> Iterator[Event]:
        parent = trace.set_span_in_context(send)
        for number, event in enumerate(events):
            if number >= LINKS_MAX or carries_context(event.properties):
                yield with_context(event, send)
                continue
            created = self._spans.start(CREATE, SpanKind.PRODUCER, parent=parent)
            end(created)
            yield with_context(event, created)

    def close(self) -> None:
        """Nothing: a span ends with its call."""


class TracedClient(WrappedClient):
    """A client whose readers and senders record spans."""

    def _spans(self, partition: str | None, group: str = "") -> Spans:
        return Spans(self.hub, self.namespace, partition, group)

    async def reader(self, options: ReaderOptions) -> Reader:
        reader = await self._client.reader(options)
        return ObservedReader(reader, TracedReading(self._spans(options.partition, options.group)))

    async def sender(self, partition: str | None = None) -> Sender:
        sender = await self._client.sender(partition)
        return ObservedSender(sender, TracedSending(self._spans(partition)))

    async def batch_sender(self, partition: str) -> BatchSender:
        sender = await self._client.batch_sender(partition)
        return ObservedBatchSender(sender, TracedSending(self._spans(partition)))
