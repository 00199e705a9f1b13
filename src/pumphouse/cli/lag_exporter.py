"""`pumphouse lag-exporter`: the lag of consumer groups as metrics for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    LEASE_OF_HOSTS,
    ca_file,
    connection_option,
    hub_option,
    lease_option,
    listen_option,
    need_connection,
    output_option,
    store_option,
    verbose_option,
)

if TYPE_CHECKING:
    from pumphouse.lag.options import LagOptions
    from pumphouse.telemetry.server import TelemetryServer

PORT = 9465  # 9464 is that of `serve_metrics`


@click.command("lag-exporter")
@hub_option
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Consumer group to export; may be given several times. Default: all groups of the hub "
    "that are in the store, or $Default if there is none.",
)
@connection_option
@store_option
@lease_option(LEASE_OF_HOSTS)
@click.option(
    "--interval",
    "interval_s",
    type=DURATION_TYPE,
    default="15s",
    show_default=True,
    help="Interval of the reads of hub and store.",
)
@listen_option(PORT, "metrics", "scrapes")
@output_option
@verbose_option
def lag_exporter(
    hub: str | None,
    groups: tuple[str, ...],
    connection: str | None,
    store: str,
    lease_s: float,
    interval_s: float,
    port: int,
    host: str,
    output: str,
) -> None:
    """Export the lag of the consumer groups of a hub for Prometheus.

    It asks the hub for the number and time of the newest event of each partition, and reads the
    checkpoints in the store; it receives no events. Consumers need no change: they may be
    processors of Pumphouse, official SDKs or Event Processor Hosts. The metrics are at
    /metrics; /readyz reports whether hub and store could be read. It needs the extra `telemetry`.
    Ctrl-C stops it. With `-o json` it prints one line when it is ready: {"url": ..., "port": ...}.
    """
    from pumphouse.lag.options import lag_options

    options = lag_options(
        need_connection(connection), hub or "", store, groups, interval_s, lease_s, ca_file()
    )

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
