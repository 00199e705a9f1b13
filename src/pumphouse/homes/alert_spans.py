"""The spans of traced alerts, for the TracerProvider of an application.

TracedAlert -> export_spans -> one span for each stage
               ^^^^^^^^^^^^ this module, in the driver

The stages run in many processes, which only pass the context on. When an alert is stored, the times
of all its steps are known, and the driver creates their spans: children of the reading.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator

from pumphouse.homes.record.recorded import TracedAlert, is_by_sift
from pumphouse.homes.schema import ACTIVITY_HUB, ALERTS_HUB, SENSORS_HUB
from pumphouse.homes.trace_text import read_text

API = "opentelemetry.trace"
NS_PER_MS = 1_000_000

Step = tuple[str, str, int, int]  # the hub, the stage, and when it began and ended


def is_tracing() -> bool:
    """Whether the application has imported OpenTelemetry. Its provider, if any, gets the spans."""
    return API in sys.modules


def steps_of(alert: TracedAlert, stored_ms: int) -> Iterator[Step]:
    """The stages that an alert has passed. A step with an unknown time is left out."""
    times: tuple[int | None, ...] = (alert.at, alert.sifted, alert.raised, stored_ms)
    stages: tuple[tuple[str, str], ...] = (
        (SENSORS_HUB, "sift"),
        (ACTIVITY_HUB, "watch"),
        (ALERTS_HUB, "record"),
    )
    if is_by_sift(alert.sifted, alert.raised):
        # It sends alerts before activities.
        times, stages = (alert.at, alert.raised, stored_ms), (stages[0], stages[2])
    for (hub, stage), began, ended in zip(stages, times, times[1:], strict=False):
        if began is not None and ended is not None:
            yield hub, stage, min(began, ended), ended  # clocks differ


def export_spans(alerts: Iterable[TracedAlert], stored_ms: int) -> None:
    """Create the spans of alerts that were stored at this time."""
    from opentelemetry import trace

    tracer = trace.get_tracer("pumphouse")
    for alert in alerts:
        context = read_text(alert.trace)
        if context is None:
            continue
        parent = trace.SpanContext(
            int(context.trace_id, 16),
            int(context.span_id, 16),
            is_remote=True,
            trace_flags=trace.TraceFlags(context.flags),
            trace_state=trace.TraceState.from_header([context.state]),
        )
        inside = trace.set_span_in_context(trace.NonRecordingSpan(parent))
        for hub, stage, began, ended in steps_of(alert, stored_ms):
            span = tracer.start_span(
                f"process {hub}",
                inside,
                trace.SpanKind.CONSUMER,
                attributes_of(hub, stage, alert),
                start_time=began * NS_PER_MS,
            )
            span.end(ended * NS_PER_MS)


def attributes_of(hub: str, stage: str, alert: TracedAlert) -> dict[str, str]:
    return {
        "messaging.system": "eventhubs",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": hub,
        "messaging.consumer.group.name": stage,
        "homes.alert.kind": alert.kind or "",
    }
