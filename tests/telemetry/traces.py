"""An application with a TracerProvider, whose spans a test reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON


class Traces:
    """The spans that have ended, oldest first."""

    def __init__(self, exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
        self._exporter, self.tracer = exporter, provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def ids(self, name: str) -> set[tuple[int, int]]:
        return {id_of(span.get_span_context()) for span in self.named(name)}

    def __len__(self) -> int:
        return len(self._exporter.get_finished_spans())


def id_of(context: trace.SpanContext | None) -> tuple[int, int]:
    assert context is not None
    return context.trace_id, context.span_id


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [id_of(link.context) for link in span.links]


@contextmanager
def tracing(*, is_sampled: bool = True) -> Iterator[Traces]:
    """The provider can be set only once per process, so that it is exchanged."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(ALWAYS_ON if is_sampled else ALWAYS_OFF)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        yield Traces(exporter, provider)
    provider.shutdown()
