"""`pumphouse dash`: the web page of a hub and its consumer groups, on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.metrics import (
    PAGE,
    not_ready_without,
    ready_while_running,
    serving_metrics,
)
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    LEASE_OF_HOSTS,
    ca_file,
    connection_option,
    hub_option,
    lease_option,
    metrics_option,
    need_connection,
    output_option,
    store_option,
    verbose_option,
)
from pumphouse.cli.homes.kinds import kinds_option
from pumphouse.errors import OptionError
from pumphouse.telemetry.health import checking_loop

if TYPE_CHECKING:
    from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
    from pumphouse.dashboard.server.app import Dashboard
    from pumphouse.telemetry.server import TelemetryServer

PORT = 8080
FLEET_SYNTAX = "[HUB/]GROUP:API[:HOSTS]"


@click.command(short_help="Show a hub in the browser.")
@hub_option
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="[HUB/]GROUP",
    help="Consumer group whose ownership table is shown; may be given several times. The text "
    "after the last slash is the group. Default: $Default, unless there are homes or fleets to "
    "show.",
)
@connection_option
@store_option
@lease_option(f"{LEASE_OF_HOSTS} The hosts of --fleet are started with it.")
@click.option(
    "--fleet",
    "fleets",
    multiple=True,
    metavar=FLEET_SYNTAX,
    help="Run hosts of this group that the page can add, stop and kill. API is the processor API: "
    "pull, push or fixed. HOSTS is 2 by default. May be given several times.",
)
@click.option(
    "--homes", "homes", is_flag=True, help="Show homes, from the hubs sensors, activity and alerts."
)
@kinds_option
@click.option(
    "--homes-count",
    type=click.IntRange(1, 1_000_000),
    default=100_000,
    show_default=True,
    help="Number of homes.",
)
@click.option(
    "--database",
    envvar="PUMPHOUSE_DATABASE",
    show_envvar=True,
    metavar="URL",
    help="Database of `homes run`: sqlite:///PATH or postgresql://USER@HOST/NAME. With it the page "
    "also shows earlier activities and alerts, and alerts can be acknowledged and closed. Other "
    "users of the machine can read command lines: put a password into the variable.",
)
@click.option(
    "--status",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Status file of the Spark stages: DIR/status.json of `homes run --data DIR`.",
)
@click.option(
    "--events",
    "hubs",
    multiple=True,
    metavar="HUB",
    help="Hub to offer on the Events page; may be given several times. Default: all hubs shown.",
)
@click.option(
    "--events-group",
    default="$Default",
    show_default=True,
    metavar="GROUP",
    help="Consumer group that the Events page reads with.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Let the page send sample events, inject faults, and acknowledge and close alerts.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port of the page; 0 picks a free one.",
)
@click.option(
    "--token",
    envvar="PUMPHOUSE_DASH_TOKEN",
    show_envvar=True,
    help="Token in the address of the page, 16 characters or more; random by default. Other users "
    "of the machine can read command lines: prefer the variable.",
)
@click.option(
    "--no-token",
    is_flag=True,
    help="Serve the page without a token, to every user of this machine.",
)
@click.option(
    "--every", type=DURATION_TYPE, default="1s", show_default=True, help="Interval of updates."
)
@metrics_option
@output_option
@verbose_option
def dash(
    hub: str | None,
    groups: tuple[str, ...],
    connection: str | None,
    store: str,
    lease_s: float,
    fleets: tuple[str, ...],
    homes: bool,
    kinds: Any,
    homes_count: int,
    database: str | None,
    status: Path | None,
    hubs: tuple[str, ...],
    events_group: str,
    write: bool,
    port: int,
    token: str | None,
    no_token: bool,
    every: float,
    metrics_port: int | None,
    metrics_host: str,
    output: str,
) -> None:
    """Show a hub in the browser: owner, lag and health of every partition, and its events.

    The page listens on this machine only. The command prints its address, which contains a token.
    It is read-only without --write and --fleet, except that it adds missing tables to the
    --database. It works with hubs of `pumphouse up` and of Azure. It needs the extra `dashboard`.
    Ctrl-C stops it. With `-o json` it prints one line when it is ready: {"url": ..., "port": ...,
    "metrics_port": ...}.

    With --metrics-port each host of --fleet also serves its metrics, on a free port. /targets on
    the metrics port of the page lists the addresses of all of them, for Prometheus.
    """
    try:
        from pumphouse.dashboard.options import DashboardOptions
    except ImportError as error:
        raise missing_package(error) from None

    string = need_connection(connection)
    defaults = GroupDefaults(string, hub or "", store, lease_s, metrics_port is not None)
    watched = [*map(defaults.watch, groups), *map(defaults.fleet, fleets)]
    if not watched and not homes:
        watched = [defaults.watch("$Default")]
    options = DashboardOptions(
        port=port,
        connection=string,
        hubs=hubs or tuple(dict.fromkeys(hubs_of(watched, homes))),
        groups=tuple(watched),
        homes=homes_feed(string, homes_count, database, kinds) if homes else None,
        status=status,
        events_group=events_group,
        write=write,
        ca_file=ca_file(),
        update_s=every,
        token="" if no_token else token or None,
    )
    with not_ready_without(PAGE), serving_metrics(metrics_port, metrics_host) as metrics:
        asyncio.run(serve(options, output, metrics))


def missing_package(error: ImportError) -> click.ClickException:
    return click.ClickException(
        f"the page needs the package {error.name}: pip install 'pumphouse[dashboard]'"
    )


class GroupDefaults:
    """The connection, hub, store and lease duration that all groups of the command share."""

    def __init__(
        self, connection: str, hub: str, store: str, lease_s: float, metrics: bool = False
    ) -> None:
        from pumphouse.client.base import read_connection_string

        self.connection, self.store, self.lease_s = connection, store, lease_s
        self.metrics = metrics  # whether hosts serve theirs
        self.hub = read_connection_string(connection, hub).hub

    def split(self, name: str) -> tuple[str, str]:
        """Hub and group from HUB/GROUP or GROUP. The name of a hub may contain slashes."""
        from pumphouse.hub.routing import check_group_name, check_hub_name

        hub, slash, group = name.rpartition("/")
        hub = hub if slash else self.hub
        if not hub:
            raise OptionError(f"no hub for group {group}: use --hub HUB, or HUB/{group}")
        check_hub_name(hub)
        check_group_name(group)
        return hub, group

    def watch(self, name: str) -> WatchedGroup:
        from pumphouse.dashboard.options import WatchedGroup

        hub, group = self.split(name)
        return WatchedGroup(self.connection, hub, group, self.store, self.lease_s)

    def fleet(self, text: str) -> WatchedGroup:
        from dataclasses import replace

        from pumphouse.dashboard.monitors.host_processes import ProcessFleet

        name, _, rest = text.partition(":")
        face, _, count = rest.partition(":")
        if not name or not face or (count and not count.isdecimal()):
            raise OptionError(
                f"invalid fleet {text!r}: use {FLEET_SYNTAX}, such as counters:pull:2"
            )
        watched = self.watch(name)
        fleet = ProcessFleet(
            self.connection,
            watched.hub,
            watched.group,
            self.store,
            face=face,
            hosts=int(count or 2),
            lease_s=self.lease_s,
            prefix=face,
            metrics=self.metrics,
        )
        return replace(watched, title=face, fleet=fleet)


def homes_feed(connection: str, count: int, database: str | None, kinds: Any) -> HomesFeed:
    from pumphouse.dashboard.options import HomesFeed
    from pumphouse.homes.kinds.defaults import DEFAULT

    return HomesFeed(connection, count, database=database or "", kinds=kinds or DEFAULT)


def hubs_of(watched: list[WatchedGroup], homes: bool) -> list[str]:
    from pumphouse.homes.schema import HUBS

    return [*(HUBS if homes else ()), *(group.hub for group in watched)]


async def serve(options: DashboardOptions, output: str, metrics: TelemetryServer | None) -> None:
    """Run the page until SIGINT or SIGTERM."""
    from pumphouse.cli.up import stop_on_signal

    try:
        from pumphouse.dashboard.server.app import Dashboard
    except ImportError as missing:
        raise missing_package(missing) from None

    with stop_on_signal() as stop, checking_loop():
        async with Dashboard(options) as page:
            with ready_while_running(PAGE, page.not_ready):
                if metrics is not None:
                    metrics.targets = lambda: targets_of(page, metrics)
                announce(page, metrics, output)
                await stop.wait()


def targets_of(page: Dashboard, metrics: TelemetryServer) -> Iterator[tuple[str, str]]:
    """The page and its hosts, which listen on this machine only."""
    yield "page", metrics.address.removeprefix("http://")
    for name, port in page.targets():
        yield name, f"127.0.0.1:{port}"


def announce(page: Dashboard, metrics: TelemetryServer | None, output: str) -> None:
    if output == "json":
        port = None if metrics is None else metrics.port
        console.print_json({"url": page.url, "port": page.port, "metrics_port": port})
        return
    print(f"page       {page.url}")
    if metrics is not None:
        print(f"metrics    {metrics.address}/metrics")
    print("Ctrl-C stops it.", flush=True)
