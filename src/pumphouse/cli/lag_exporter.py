"""`pumphouse lag-exporter`: the lag of consumer groups as metrics for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.lag_observation import observes_lag, serves_lag

if TYPE_CHECKING:
    from pumphouse.lag.options import LagOptions
    from pumphouse.telemetry.server import TelemetryServer

PORT = 9465  # 9464 is that of `serve_metrics`


@click.command("lag-exporter", short_help="Export the lag of consumer groups for Prometheus.")
@observes_lag("15s", "Interval of the reads of hub and store.")
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Consumer group to export; may be given several times. Default: all groups of the hub "
    "that are in the store, or $Default if there is none.",
)
@serves_lag(PORT, "metrics", "scrapes")
def lag_exporter(options: LagOptions, port: int, host: str, output: str) -> None:
    """Export the lag of the consumer groups of a hub for Prometheus.

    It asks the hub for the sequence number and time of the newest event of each partition, and
    reads the checkpoints in the store. It receives no events. Consumers need no change: they may be
    processors of Pumphouse, official SDKs or Event Processor Hosts. The metrics are at
    /metrics; /readyz reports whether hub and store could be read. It needs the extra `telemetry`.
    Ctrl-C stops it. With `-o json` it prints one line when it is ready: {"url": ..., "port": ...}.
    """

    def announce(server: TelemetryServer) -> None:
        if output == "json":
            console.print_json({"url": f"{server.address}/metrics", "port": server.port})
        else:
            print(f"metrics    {server.address}/metrics\nCtrl-C stops it.", flush=True)

    asyncio.run(serve(options, port, host, announce))


async def serve(
    options: LagOptions, port: int, host: str, announce: Callable[[TelemetryServer], None]
) -> None:
    """Run the exporter until SIGINT or SIGTERM."""
    from pumphouse.cli.up import stop_on_signal
    from pumphouse.lag.exporter import LagExporter

    exporter = LagExporter(options, console.message)
    with stop_on_signal() as stop, exporter.serve(port, host) as server:
        announce(server)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(exporter.run())
            await stop.wait()
            running.cancel()
