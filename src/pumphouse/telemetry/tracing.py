"""Whether spans can be recorded. This module imports OpenTelemetry only if the application has."""

from __future__ import annotations

import sys

API = "opentelemetry.trace"


def is_traced() -> bool:
    """Whether the application has set a TracerProvider. Clients and hosts ask when created."""
    if API not in sys.modules:
        return False
    from opentelemetry import trace

    none = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)
    return not isinstance(trace.get_tracer_provider(), none)
