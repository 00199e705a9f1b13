"""Metrics and health checks.

`serve_metrics()` serves Prometheus' text format. An application that has a MeterProvider of
OpenTelemetry needs nothing from here: its provider gets the metrics of every reader and sender that
is opened, and of every hub and processor that is started, after the provider was set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.errors import OptionError
from pumphouse.telemetry.meter import METER

if TYPE_CHECKING:
    from pumphouse.telemetry.server import TelemetryServer

__all__ = ["serve_health", "serve_metrics"]

DEFAULT_PORT = 9464  # that of OpenTelemetry's Prometheus exporters


def serve_metrics(port: int = DEFAULT_PORT, host: str = "127.0.0.1") -> TelemetryServer:
    """Serve /metrics for Prometheus, and /livez and /readyz, until the result is closed.

    Call it before you create clients, hubs and processors: they ask then whether to record.
    """
    # Imported here: clients import this package, and most processes serve nothing.
    from pumphouse.telemetry.server import TelemetryServer

    try:
        from pumphouse.telemetry.prometheus import page
    except ImportError as missing:
        raise OptionError(
            f"metrics need the extra `telemetry`: pip install 'pumphouse[telemetry]' ({missing})"
        ) from None
    METER.is_served = True
    return TelemetryServer(port, host, page)


def serve_health(port: int, host: str = "127.0.0.1") -> TelemetryServer:
    """Serve /livez and /readyz only. It needs no extra."""
    from pumphouse.telemetry.server import TelemetryServer

    return TelemetryServer(port, host)
