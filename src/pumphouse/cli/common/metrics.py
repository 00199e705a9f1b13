"""Serves the metrics and the health checks of a command."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pumphouse.telemetry import serve_health, serve_metrics
from pumphouse.telemetry.health import CHECKS, LIVE, READY, Check, LoopCheck

if TYPE_CHECKING:
    from pumphouse.processor.engine import Engine
    from pumphouse.telemetry.server import TelemetryServer

EVENT_LOOP, WATCH, HOST = "event loop", "watch", "host"


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
def not_ready_without_host() -> Iterator[None]:
    """Let /readyz fail before a host starts and after it has ended. Enter it before the servers."""
    CHECKS.add(READY, HOST, lambda: "there is no host")
    try:
        yield
    finally:
        CHECKS.remove(READY, HOST)


@contextmanager
def checking_host(engine: Engine) -> Iterator[None]:
    """Let /livez and /readyz say how a host is. It stays not ready after its end."""
    from pumphouse.processor.health.host_health import HostHealth  # other commands need no host

    health = HostHealth(engine)
    CHECKS.add(LIVE, WATCH, health.not_live)
    CHECKS.add(READY, HOST, health.not_ready)
    try:
        yield
    finally:
        CHECKS.remove(LIVE, WATCH)


@contextmanager
def checking_loop() -> Iterator[None]:
    """Let /livez fail while the running event loop is blocked."""
    check = LoopCheck()
    turning = asyncio.get_running_loop().create_task(check.run(), name="loop check")
    CHECKS.add(LIVE, EVENT_LOOP, check.failure)
    try:
        yield
    finally:
        CHECKS.remove(LIVE, EVENT_LOOP)
        turning.cancel()


@contextmanager
def checking(kind: str, name: str, check: Check) -> Iterator[None]:
    """Add a health check for the duration of a block."""
    CHECKS.add(kind, name, check)
    try:
        yield
    finally:
        CHECKS.remove(kind, name)
