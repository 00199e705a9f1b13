"""The trace context of a record as one text, which passes through Spark as a column. Pure.

    properties of an event -> validation.trace_column -> text -> trace_properties -> properties
                                                                 ^^^^^^^^^^^^^^^^ this module

The text is `traceparent`, or `traceparent tracestate`. It is the same in all records of a trace: a
stage passes on the context that the sensor has written, and creates no span of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

from pumphouse.telemetry.trace_context import (
    TRACEPARENT_CHARS_MAX,
    TRACESTATE_CHARS_MAX,
    TraceContext,
    parse_context,
    write_context,
)

TRACE = "trace"  # the name of the column
CHARS_MAX = TRACEPARENT_CHARS_MAX + 1 + TRACESTATE_CHARS_MAX


def read_text(text: str | None) -> TraceContext | None:
    """The context; None if there is none, or if it is invalid: any program may write events."""
    if not text:
        return None
    parent, _, state = text.partition(" ")
    return parse_context(parent, state)


def text_of(context: TraceContext) -> str:
    return f"{context.traceparent} {context.state}".rstrip()


def trace_properties(text: str | None) -> Mapping[str, str]:
    """The application properties that pass the context on; empty without a valid one."""
    context = read_text(text)
    return {} if context is None else dict(write_context({}, context))
