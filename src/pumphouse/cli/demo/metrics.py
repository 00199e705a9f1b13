"""Serves the metrics of the demonstration: one address for each process, and a list of them.

    page, hosts of the page, hub, Spark, lag exporter -> DemoMetrics -> /targets -> Prometheus

Each process serves its own page, so Prometheus sees which process does not respond. The list
follows the hosts that the page starts and stops. Prometheus reads it with `http_sd_configs`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pumphouse.cli.demo.stages import FACES, FLEET_HUB, LEASE_S, DemoPlan
from pumphouse.errors import PortTaken
from pumphouse.lag.exporter import LagExporter
from pumphouse.lag.options import lag_options
from pumphouse.telemetry import serve_metrics

if TYPE_CHECKING:
    from pumphouse.dashboard.server.app import Dashboard
    from pumphouse.telemetry.server import TelemetryServer

LOOPBACK = "127.0.0.1"
LAG_EVERY_S = 5.0
# The files in which hub and Spark print their ports when they are ready.
PRINTED_BY = ("hub", "spark")

Report = Callable[[str], None]


class DemoMetrics:
    """The addresses of all processes that serve metrics."""

    def __init__(self, server: TelemetryServer, folder: Path) -> None:
        self.server, self._folder = server, folder
        self.page: Dashboard | None = None
        self.lag_port: int | None = None
        server.targets = self.targets

    def targets(self) -> Iterator[tuple[str, str]]:
        """The name and the address of each process."""
        for name, port in self._ports():
            yield name, f"{LOOPBACK}:{port}"

    def _ports(self) -> Iterator[tuple[str, int]]:
        yield "page", self.server.port
        if self.lag_port is not None:
            yield "lag", self.lag_port
        for name in PRINTED_BY:
            if (port := printed_port(self._folder / f"{name}.out")) is not None:
                yield name, port
        if self.page is not None:
            yield from self.page.targets()

    def __str__(self) -> str:
        return f"{self.server.address}/metrics   of all processes: {self.server.address}/targets"


def printed_port(output: Path) -> int | None:
    """The metrics port in the first line of a process; None if it has not printed it yet."""
    with suppress(OSError, ValueError):
        line, end, _ = output.read_text().partition("\n")
        ready = json.loads(line) if end else None
        if not isinstance(ready, dict):
            return None
        port = ready.get("metrics_port", ready.get("port") if "url" in ready else None)
        return port if isinstance(port, int) else None
    return None


@contextmanager
def serving_demo_metrics(port: int, folder: Path, report: Report) -> Iterator[DemoMetrics | None]:
    """Serve the metrics of this process on the port, or on a free one if it is in use.

    None without the extra `telemetry`: the demonstration runs without metrics then.
    """
    if find_spec("prometheus_client") is None or find_spec("opentelemetry") is None:
        report("metrics    off: pip install 'pumphouse[telemetry]'")
        yield None
        return
    with listening(port, report) as server:
        yield DemoMetrics(server, folder)


def listening(port: int, report: Report) -> TelemetryServer:
    try:
        return serve_metrics(port)
    except PortTaken:
        report(f"port {port} is in use: choosing a free port for the metrics")
        return serve_metrics(0)


@asynccontextmanager
async def exporting_lag(
    metrics: DemoMetrics | None, plan: DemoPlan, connection: str
) -> AsyncIterator[None]:
    """Export the lag of the processors, as `pumphouse lag-exporter` does."""
    if metrics is None:
        yield
        return
    options = lag_options(
        connection, FLEET_HUB, plan.store, tuple(FACES.values()), LAG_EVERY_S, LEASE_S, None
    )
    exporter = LagExporter(options, lambda failure: None)  # /readyz has it
    with exporter.serve(0, LOOPBACK) as server:
        metrics.lag_port = server.port
        running = asyncio.create_task(exporter.run(), name="lag exporter")
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])
