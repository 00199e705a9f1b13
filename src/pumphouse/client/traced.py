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
from collections.abc import Iterable, Iterator, Sequence, Sized

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind

from pumphouse.client.base import (
    BATCH_EVENTS_MAX,
    BatchSender,
    PartitionEnd,
    Payload,
    Reader,
    ReaderOptions,
    Sender,
)
from pumphouse.client.wrapped import WrappedClient
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


class TracedReader:
    """Records what `receive` returns. A call that ends without an event is not recorded."""

    def __init__(self, reader: Reader, spans: Spans) -> None:
        self._reader, self._spans = reader, spans

    def __getattr__(self, name: str) -> object:
        return getattr(self._reader, name)  # what a reader has beyond the protocol

    @property
    def end(self) -> PartitionEnd | None:
        return self._reader.end

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        began_ns = time.time_ns()
        try:
            events = await self._reader.receive(max_events, deadline_s)
        except Exception as error:
            end(self._spans.start(RECEIVE, SpanKind.CLIENT, began_ns=began_ns), error)
            raise
        if events:
            span = self._spans.start(RECEIVE, SpanKind.CLIENT, began_ns=began_ns)
            describe_batch(span, events)
            end(span)
        return events

    async def close(self) -> None:
        await self._reader.close()


class TracedSender:
    """Records every `send`."""

    def __init__(self, sender: Sender, spans: Spans) -> None:
        self._sender, self._spans = sender, spans

    @property
    def accepted(self) -> int:
        return self._sender.accepted

    async def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> int:
        is_single = isinstance(events, Sized) and len(events) == 1
        kind = SpanKind.PRODUCER if is_single else SpanKind.CLIENT
        with ending(self._spans.start(SEND, kind)) as span:
            if span.is_recording():
                events = self._with_contexts(events, span, is_single)
            sent = await self._sender.send(
                events,
                batch_events_max=batch_events_max,
                batch_bytes_max=batch_bytes_max,
                under_way_max=under_way_max,
            )
            if not is_single:
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

    async def close(self) -> None:
        await self._sender.close()


class TracedBatchSender(TracedSender):
    """Records every batch that the caller has encoded, too. Such events are not changed."""

    def __init__(self, sender: BatchSender, spans: Spans) -> None:
        super().__init__(sender, spans)
        self._batches = sender

    @property
    def size_max(self) -> int:
        return self._batches.size_max

    async def deliver(self, payload: Payload) -> int:
        with ending(self._spans.start(SEND, SpanKind.CLIENT)) as span:
            sent = await self._batches.deliver(payload)
            span.set_attribute("messaging.batch.message_count", sent)
            return sent


class TracedClient(WrappedClient):
    """A client whose readers and senders record spans."""

    def _spans(self, partition: str | None, group: str = "") -> Spans:
        return Spans(self.hub, self.namespace, partition, group)

    async def reader(self, options: ReaderOptions) -> Reader:
        reader = await self._client.reader(options)
        return TracedReader(reader, self._spans(options.partition, options.group))

    async def sender(self, partition: str | None = None) -> Sender:
        return TracedSender(await self._client.sender(partition), self._spans(partition))

    async def batch_sender(self, partition: str) -> BatchSender:
        sender = await self._client.batch_sender(partition)
        return TracedBatchSender(sender, self._spans(partition))
