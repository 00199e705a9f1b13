"""What a host records with: what can be read when it starts decides."""

from __future__ import annotations

from pumphouse.clock import Clock
from pumphouse.processor.recording.host_metrics import HostMetrics
from pumphouse.processor.recording.recorder import NO_RECORDER, Recorder
from pumphouse.telemetry.meter import is_on
from pumphouse.telemetry.tracing import is_traced


def recorder_of(host: str, clock: Clock) -> Recorder:
    """Spans if the application has a TracerProvider, metrics if they can be read."""
    metrics = HostMetrics(host, clock) if is_on() else NO_RECORDER
    if not is_traced():
        return metrics
    from pumphouse.processor.recording.host_traces import HostTraces  # imports OpenTelemetry

    return HostTraces(metrics)
