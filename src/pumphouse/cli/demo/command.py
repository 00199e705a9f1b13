"""`pumphouse demo`: hub, simulated homes, three Spark stages, processors and the page.

    DemoPlan -> hub -> page with its fleets -> sender and Spark -> one line of figures a second
                ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Every part runs in its own process, as in production. If the pipeline falls behind, the command
reports it and continues with fewer homes.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common.console import plural
from pumphouse.cli.common.metrics import PAGE, not_ready_without, ready_while_running
from pumphouse.cli.common.options import FiniteRange, verbose_option
from pumphouse.cli.homes.kinds import kinds_option
from pumphouse.cli.homes.send import homes_option
from pumphouse.cli.up import stop_on_signal
from pumphouse.errors import PortTaken, PumphouseError
from pumphouse.private_files import create_private_folder, replace_private
from pumphouse.telemetry.health import checking_loop

if TYPE_CHECKING:
    from pumphouse.cli.demo.gauges import Gauge
    from pumphouse.cli.demo.stages import DemoPlan
    from pumphouse.dashboard.options import DashboardOptions, WatchedGroup
    from pumphouse.dashboard.server.app import Dashboard

HOMES, PORT, HOSTS = 100_000, 8080, 2
METRICS_PORT = 9464  # that of OpenTelemetry's Prometheus exporters
READY_S, CALL_S = 60.0, 20.0
STOP_HUB_S = 2.0
PIPED_EVERY_S = 5.0
EXTRAS = "pip install 'pumphouse[azure,dashboard,spark]'"


@click.command(short_help="Run hub, homes, Spark pipeline, processors and page.")
@homes_option(HOMES, "Number of homes; five sensors each, one reading a minute.")
@click.option(
    "--minutes", type=FiniteRange(0.05), help="Stop after this time; by default on Ctrl-C."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port of the page; if it is in use, a free one is chosen.",
)
@click.option("--no-token", is_flag=True, help="Serve the page without a token in its address.")
@click.option(
    "--hosts",
    type=click.IntRange(0, 8),
    default=HOSTS,
    show_default=True,
    help="Hosts of each processor at the start; the page can add, stop and kill hosts.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    default=METRICS_PORT,
    show_default=True,
    help="Port of /metrics of the page, and of /targets, the list of the metrics of all processes; "
    "if it is in use, a free one is chosen. Needs the extra `telemetry`; without it there are no "
    "metrics.",
)
@click.option(
    "--azure",
    metavar="CONNECTION",
    envvar="PUMPHOUSE_DEMO_AZURE",
    help="Connection string of an Azure namespace to use in place of the embedded hub.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for logs and results; without it they are deleted at the end.",
)
@kinds_option
@click.option("--seed", type=int, default=1, show_default=True, help="Seed of the simulated homes.")
@verbose_option
def demo(
    homes: int,
    minutes: float | None,
    port: int,
    no_token: bool,
    hosts: int,
    metrics_port: int,
    azure: str | None,
    data: Path | None,
    kinds: Any,
    seed: int,
) -> None:
    """Run a hub, simulated homes, the Spark pipeline, processors and the page until Ctrl-C.

    Needs the extras `spark` and `dashboard` (with --azure also `azure`), and Java 17 or newer.
    """
    check_packages()
    from pumphouse.cli.demo.stages import DemoPlan

    fitting = fit(homes)
    with folder_of(data) as folder:
        file = None if kinds is None else Path(kinds.source).absolute()
        plan = DemoPlan(folder, fitting, seed, azure=azure, kinds=file)
        settings = PageSettings(port, hosts, not no_token, metrics_port)
        asyncio.run(run_demo(plan, settings, minutes))


def check_packages() -> None:
    """Raise an error if a package or Java is missing, before anything is started."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        raise click.ClickException(f"the demo needs {missing.name}: {EXTRAS}") from None
    from pumphouse.spark.session import find_java

    find_java()


def fit(homes: int) -> int:
    """Limit the homes to what the machine can handle; print a message if these are fewer."""
    from pumphouse.cli.demo.pace import fitting

    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    fits = fitting(homes, cores, memory_gib)
    if fits < homes:
        click.echo(
            f"this machine ({cores} cores, {memory_gib:.0f} GiB) is too small for {homes:,} homes: "
            f"starting with {fits:,}"
        )
    return fits


@contextmanager
def folder_of(data: Path | None) -> Iterator[Path]:
    """The folder of the run. It holds keys, so only the owner may read it."""
    if data is not None:
        create_private_folder(data)
        yield data.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="pumphouse-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- running ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PageSettings:
    """The options of the page."""

    port: int
    hosts: int  # of each processor API
    token: bool = True  # whether the page needs a token in its address
    metrics_port: int = METRICS_PORT


async def run_demo(plan: DemoPlan, settings: PageSettings, minutes: float | None) -> None:
    from pumphouse.cli.demo.metrics import exporting_lag, serving_demo_metrics
    from pumphouse.cli.demo.stage_processes import open_stage_processes

    report = ProgressLog(asyncio.get_running_loop().time)
    with (
        stop_on_signal() as stop,
        checking_loop(),
        not_ready_without(PAGE),
        serving_demo_metrics(settings.metrics_port, plan.folder, report) as metrics,
    ):
        plan = replace(plan, metrics=metrics is not None)
        try:
            async with AsyncExitStack() as stack:
                plan, connection = await open_hub(plan, stack, report)
                page = await open_page(plan, connection, settings, stack, report)
                await stack.enter_async_context(exporting_lag(metrics, plan, connection))
                if metrics is not None:
                    metrics.page = page
                    report(f"metrics    {metrics}")
                stage_processes = await stack.enter_async_context(
                    open_stage_processes(
                        plan, connection, report, report.since_s, page.alert_delays
                    )
                )
                stack.enter_context(ready_while_running(PAGE, page.not_ready))
                report(f"page       {page.url}   (Ctrl-C stops everything)")
                show = lines() if not sys.stdout.isatty() else one_line()
                until_s = None if minutes is None else report.since_s() + minutes * 60
                with show as print_gauge:
                    async for gauge in stage_processes.gauges(stop, until_s):
                        print_gauge(gauge, page.address)
                print("stopping", flush=True)
        finally:
            report("stopped")


class ProgressLog:
    """Prints each step with the seconds since the start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.begun_s = now, now()

    def since_s(self) -> float:
        return self.now() - self.begun_s

    def __call__(self, text: str) -> None:
        print(f"{self.since_s():>6.0f} s   {text}", flush=True)


async def open_hub(
    plan: DemoPlan, stack: AsyncExitStack, report: ProgressLog
) -> tuple[DemoPlan, str]:
    """Start the embedded hub, or check that the Azure namespace has every hub.

    Returns the plan with the number of partitions, and the connection string.
    """
    from pumphouse.cli.demo import processes, stages

    if plan.azure is not None:
        partitions = await check_hubs(plan.azure)
        report("hub        Azure namespace with sensors, activity, alerts, deadletter")
        return replace(plan, partitions=partitions[stages.FLEET_HUB]), plan.azure
    replace_private(plan.config, json.dumps(stages.hubs_config(plan.partitions)).encode())
    process = await processes.start(stages.hub_process(plan), plan.folder)
    stack.push_async_callback(processes.stop, [process], STOP_HUB_S)
    ready = json.loads(await process.first_line(READY_S))
    report(f"hub        sb://127.0.0.1:{ready['port']}   4 hubs of {plan.partitions} partitions")
    return plan, str(ready["namespace_connection_string"])


async def check_hubs(connection: str) -> dict[str, int]:
    """The number of partitions of every hub. Raises PumphouseError if a hub is missing."""
    from pumphouse.client.factory import open_client
    from pumphouse.homes.schema import HUBS

    partitions = {}
    for hub in HUBS:
        try:
            async with asyncio.timeout(CALL_S), open_client(connection, hub) as client:
                partitions[hub] = len((await client.properties()).partitions)
        except (PumphouseError, TimeoutError) as failed:
            raise PumphouseError(
                f"hub {hub} of the Azure namespace cannot be read ({failed or 'timed out'}); "
                f"create {', '.join(HUBS)} with the consumer groups that docs/homes.md lists"
            ) from failed
    return partitions


async def open_page(
    plan: DemoPlan,
    connection: str,
    settings: PageSettings,
    stack: AsyncExitStack,
    report: ProgressLog,
) -> Dashboard:
    """Start the page on the given port, or on a free one if that is in use."""
    from pumphouse.dashboard.server.app import Dashboard

    hosts, options = settings.hosts, page_options(plan, connection, settings)
    try:
        page = await stack.enter_async_context(Dashboard(options))
    except PortTaken:
        report(f"port {settings.port} is in use: choosing a free port for the page")
        page = await stack.enter_async_context(Dashboard(replace(options, port=0)))
    for group in page.options.groups:
        assert group.fleet is not None
        for _ in range(hosts):
            await group.fleet.add()
    report(f"processors {hosts_text(hosts)}")
    return page


def hosts_text(hosts: int) -> str:
    if not hosts:
        return "none run (--hosts 0); the page can add hosts"
    return f"{plural(hosts, 'host')} of each processor API, one consumer group per API"


def page_options(plan: DemoPlan, connection: str, settings: PageSettings) -> DashboardOptions:
    from pumphouse.cli.demo.stages import FACES, FLEET_HUB, LEASE_S
    from pumphouse.dashboard.monitors.host_processes import ProcessFleet
    from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
    from pumphouse.homes.kinds.file import load_kinds
    from pumphouse.homes.schema import HUBS

    # Hosts with fixed partitions share them equally; a host that is added later is a stand-by.
    partitions_per_host = -(-plan.partitions // max(settings.hosts, 1))

    def watched_group(face: str, group: str) -> WatchedGroup:
        fleet = ProcessFleet(
            connection,
            FLEET_HUB,
            group,
            plan.store,
            face=face,
            lease_s=LEASE_S,
            prefix=face,
            partitions=partitions_per_host,
            metrics=plan.metrics,
        )
        return WatchedGroup(connection, FLEET_HUB, group, plan.store, LEASE_S, face, fleet)

    return DashboardOptions(
        port=settings.port,
        token=None if settings.token else "",
        connection=connection,
        hubs=HUBS,
        groups=tuple(watched_group(face, group) for face, group in FACES.items()),
        homes=HomesFeed(
            connection, homes=plan.homes, database=plan.database, kinds=load_kinds(plan.kinds)
        ),
        status=plan.status,
        events_group="page",
        write=True,
    )


# -- output ----------------------------------------------------------------------------------------


@contextmanager
def one_line() -> Iterator[Callable[[Gauge, str], None]]:
    """Print gauges to a terminal: one line that is overwritten."""
    width = max(40, shutil.get_terminal_size().columns - 1)
    yield lambda gauge, url: print(f"\r\x1b[2K{f'{gauge}   {url}'[:width]}", end="", flush=True)
    print()


@contextmanager
def lines() -> Iterator[Callable[[Gauge, str], None]]:
    """Print gauges to a file or pipe: one line every few seconds."""
    printed_s = -PIPED_EVERY_S

    def print_gauge(gauge: Gauge, url: str) -> None:
        nonlocal printed_s
        if gauge.at_s - printed_s >= PIPED_EVERY_S:
            printed_s = gauge.at_s
            print(f"{gauge}   {url}", flush=True)

    yield print_gauge
