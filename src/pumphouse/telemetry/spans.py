"""The spans of clients and hosts, as OpenTelemetry's conventions for messaging name them.

    client, host -> Spans -> the TracerProvider of the application
                    ^^^^^ this module

Imported only if the application has a TracerProvider. A span that is not sampled gets no links, and
nothing is written into events: it costs as much as its sampling decision. If a part of the
application's OpenTelemetry raises, the span is missing, and events are sent and handled as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from pumphouse.events import Event
from pumphouse.logs import text_of
from pumphouse.telemetry.trace_context import TraceContext, read_context, write_context

SCOPE = "pumphouse"
# Each links to another span. The default limit of the SDK is the same.
LINKS_MAX = 128

CREATE, SEND, RECEIVE, PROCESS, CHECKPOINT = "create", "send", "receive", "process", "checkpoint"
TYPES = {CHECKPOINT: "settle"}  # the types of operations are their names, except for these


class Spans:
    """Starts the spans of one hub, one partition or one consumer group of a partition."""

    def __init__(
        self, hub: str, server: str, partition: str | None = None, group: str = ""
    ) -> None:
        self._tracer = trace.get_tracer(SCOPE)
        labels = {
            "messaging.system": "eventhubs",
            "messaging.destination.name": hub,
            "messaging.destination.partition.id": partition,
            "messaging.consumer.group.name": group,
        }
        attributes: dict[str, str | int] = {
            **{key: value for key, value in labels.items() if value},
            **server_attributes(server),
        }
        # By operation: the span's name and attributes. The SDK copies those of a sampled span.
        self._operations = {
            operation: (f"{operation} {hub}", {**attributes, **operation_attributes(operation)})
            for operation in (CREATE, SEND, RECEIVE, PROCESS, CHECKPOINT)
        }

    def start(
        self,
        operation: str,
        kind: SpanKind,
        *,
        parent: Context | None = None,
        began_ns: int | None = None,
    ) -> Span:
        """Start a span, by default as a child of the current one."""
        name, attributes = self._operations[operation]
        try:
            return self._tracer.start_span(name, parent, kind, attributes, start_time=began_ns)
        except Exception:  # of a sampler or processor of the application
            return trace.INVALID_SPAN


def server_attributes(namespace: str) -> dict[str, str | int]:
    """Host and port of a namespace. That of Azure has no port."""
    host, _, port = namespace.rpartition(":")
    if host and port.isdecimal():
        return {"server.address": host.strip("[]"), "server.port": int(port)}
    return {"server.address": namespace.strip("[]")}


def operation_attributes(operation: str) -> dict[str, str]:
    return {
        "messaging.operation.name": operation,
        "messaging.operation.type": TYPES.get(operation, operation),
    }


def end(span: Span, error: BaseException | str | None = None) -> None:
    """End a span. A str is the type of an error that is not known better."""
    with suppress(Exception):  # of the application: its exception has no text, for example
        if span.is_recording() and error:
            describe_error(span, error)
    with suppress(Exception):
        span.end()


def describe_error(span: Span, error: BaseException | str) -> None:
    kind = error if isinstance(error, str) else type(error).__name__
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))
    if isinstance(error, Exception):
        span.set_status(Status(StatusCode.ERROR, text_of(error)))
        span.record_exception(error)


@contextmanager
def ending(span: Span) -> Iterator[Span]:
    """Make a span the current one, and end it."""
    with trace.use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except BaseException as error:
            end(span, error)
            raise
    end(span)


def describe_batch(span: Span, events: Sequence[Event]) -> None:
    """Add the number of events, and links to the spans that have created them."""
    if not span.is_recording():
        return
    span.set_attribute("messaging.batch.message_count", len(events))
    for linked in creation_contexts(events):
        span.add_link(linked)


def creation_contexts(events: Sequence[Event]) -> Iterable[SpanContext]:
    """Those that the first events carry, each once."""
    read = (read_context(event.properties) for event in events[:LINKS_MAX])
    return map(span_context, dict.fromkeys(each for each in read if each is not None))


def span_context(read: TraceContext) -> SpanContext:
    return SpanContext(
        int(read.trace_id, 16),
        int(read.span_id, 16),
        is_remote=True,
        trace_flags=TraceFlags(read.flags),
        trace_state=TraceState.from_header([read.state]) if read.state else None,
    )


def trace_context(span: Span) -> TraceContext:
    own = span.get_span_context()
    state = own.trace_state.to_header()
    return TraceContext(f"{own.trace_id:032x}", f"{own.span_id:016x}", int(own.trace_flags), state)


def with_context(event: Event, span: Span) -> Event:
    """The event with the context of this span, unless it carries one."""
    properties = write_context(event.properties, trace_context(span))
    if properties is event.properties:
        return event
    return Event(event.body, properties, event.partition_key)


class Calling:
    """Makes a span the current one, and ends it: as `ending`, but cheaper. `inner` is inside."""

    __slots__ = ("_inner", "_outer", "_span")

    def __init__(self, span: Span, inner: AbstractContextManager[None]) -> None:
        self._span, self._inner = span, inner

    def __enter__(self) -> None:
        self._outer = context.attach(trace.set_span_in_context(self._span))
        self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, traceback)
        context.detach(self._outer)
        end(self._span, error)


class CurrentSpan:
    """Makes a span the current one between two calls, which may be in different contexts."""

    def __init__(self, span: Span) -> None:
        self.span, self._outer = span, context.get_current()
        context.attach(trace.set_span_in_context(span, self._outer))

    def leave(self) -> None:
        if trace.get_current_span() is self.span:  # else this is another task: nothing to undo
            context.attach(self._outer)
