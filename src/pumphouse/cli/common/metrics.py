"""Serves the metrics and the health checks of a command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pumphouse.telemetry import serve_health, serve_metrics
from pumphouse.telemetry.health import CHECKS, LIVE, READY, Check

if TYPE_CHECKING:
    from pumphouse.processor.engine import Engine
    from pumphouse.telemetry.server import TelemetryServer

WATCH, HOST, PAGE = "watch", "host", "page"


@contextmanager
def serving_metrics(port: int | None, host: str) -> Iterator[TelemetryServer | None]:
    """Serve metrics, unless no port is given. Enter it before hubs and clients are created."""
    if port is None:
        yield None
        return
    with serve_metrics(port, host) as server:
        yield server


@contextmanager
def serving_health(port: int | None, host: str) -> Iterator[TelemetryServer | None]:
    """Serve health checks, unless no port is given."""
    if port is None:
        yield None
        return
    with serve_health(port, host) as server:
        yield server


@contextmanager
def not_ready_without(name: str) -> Iterator[None]:
    """Let /readyz fail before a part starts and after it has ended. Enter it before the servers."""
    CHECKS.add(READY, name, lambda: f"there is no {name}")
    try:
        yield
    finally:
        CHECKS.remove(READY, name)


@contextmanager
def ready_while_running(name: str, check: Check) -> Iterator[None]:
    """Replace the check of `not_ready_without` until the part stops."""
    CHECKS.add(READY, name, check)
    try:
        yield
    finally:
        CHECKS.add(READY, name, lambda: f"the {name} stops")


@contextmanager
def checking_host(engine: Engine) -> Iterator[None]:
    """Add the checks of a host to /livez and /readyz. It stays not ready after its end."""
    from pumphouse.processor.health.host_health import HostHealth  # other commands need no host

    health = HostHealth(engine)
    CHECKS.add(LIVE, WATCH, health.not_live)
    CHECKS.add(READY, HOST, health.not_ready)
    try:
        yield
    finally:
        CHECKS.remove(LIVE, WATCH)
