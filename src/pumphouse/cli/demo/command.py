"""`pumphouse demo`: the whole of it. A hub, homes, three Spark stages, processors, and the page.

    Cast -> hub -> page with its fleets -> senders and Spark -> a line of numbers a second -> end
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

Every part is a process of its own, as it would be in earnest. Whoever falls behind is not hidden:
if the machine is too small, it is said, and there are fewer homes.
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
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common.console import plural
from pumphouse.cli.common.options import verbose_option
from pumphouse.cli.homes.send import homes_option
from pumphouse.cli.up import stop_on_signal
from pumphouse.errors import PortTaken, PumphouseError

if TYPE_CHECKING:
    from pumphouse.cli.demo.gauges import Gauge
    from pumphouse.cli.demo.stages import Cast
    from pumphouse.dashboard.options import DashboardOptions, WatchedGroup
    from pumphouse.dashboard.server.app import Dashboard

HOMES, PORT, HOSTS = 100_000, 8080, 2
READY_S, CALL_S = 60.0, 20.0
STOP_HUB_S = 2.0
PIPED_EVERY_S = 5.0
EXTRAS = "pip install 'pumphouse[azure,dashboard,spark]'"


@click.command()
@homes_option(HOMES, "How many homes; five sensors each, once a minute.")
@click.option("--minutes", type=click.FloatRange(0.05), help="Stop after so long; else Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port of the page; another is taken if it is not free.",
)
@click.option(
    "--hosts",
    type=click.IntRange(0, 8),
    default=HOSTS,
    show_default=True,
    help="Hosts of each processor to begin with; the page adds and kills more.",
)
@click.option(
    "--azure",
    metavar="CONNECTION",
    envvar="PUMPHOUSE_DEMO_AZURE",
    help="Connection string of a namespace in Azure to play on, in place of an embedded hub.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder that keeps logs and results; without it they go when the demonstration ends.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Another seed, other days.")
@verbose_option
def demo(
    homes: int,
    minutes: float | None,
    port: int,
    hosts: int,
    azure: str | None,
    data: Path | None,
    seed: int,
) -> None:
    """Run homes, hub, Spark pipeline, processors and the page, until Ctrl-C.

    Needs the extras `spark` and `dashboard`, and Java 17 or newer.
    """
    check_parts()
    from pumphouse.cli.demo.stages import Cast

    fitting = fit(homes)
    with folder_of(data) as folder:
        cast = Cast(folder, fitting, seed, azure=azure)
        asyncio.run(play(cast, port, hosts, minutes))


def check_parts() -> None:
    """What the demonstration is made of must be there before anything of it starts."""
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
    """As many homes as the machine has room for, said if these are fewer."""
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
    """Where everything goes. It holds keys, so it is nobody else's."""
    if data is not None:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield data.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="pumphouse-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


# -- the play -------------------------------------------------------------------------------------


async def play(cast: Cast, port: int, hosts: int, minutes: float | None) -> None:
    from pumphouse.cli.demo.stage_processes import troupe_of

    with stop_on_signal() as stop:
        said = Said(asyncio.get_running_loop().time)
        try:
            async with AsyncExitStack() as ending:
                cast, connection = await open_hub(cast, ending, said)
                page = await open_page(cast, connection, port, hosts, ending, said)
                troupe = await ending.enter_async_context(
                    troupe_of(cast, connection, said, said.since_s)
                )
                said(f"page       {page.url}   (Ctrl-C stops everything)")
                show = lines() if not sys.stdout.isatty() else one_line()
                until_s = None if minutes is None else said.since_s() + minutes * 60
                with show as put:
                    async for gauge in troupe.gauges(stop, until_s):
                        put(gauge, page.url)
                print("stopping", flush=True)
        finally:
            said("stopped")


class Said:
    """What was done, with the seconds it was done at."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.begun_s = now, now()

    def since_s(self) -> float:
        return self.now() - self.begun_s

    def __call__(self, text: str) -> None:
        print(f"{self.since_s():>6.0f} s   {text}", flush=True)


async def open_hub(cast: Cast, ending: AsyncExitStack, said: Said) -> tuple[Cast, str]:
    """The namespace to play on: one of ours, or the one in Azure if it has all that is needed."""
    from pumphouse.cli.demo import processes as players
    from pumphouse.cli.demo import stages as parts

    if cast.azure is not None:
        partitions = await check_hubs(cast.azure)
        said("hub        in Azure: sensors, activity, alerts, deadletter are there")
        return replace(cast, partitions=partitions[parts.FLEET_HUB]), cast.azure
    cast.config.write_text(json.dumps(parts.hubs_config(cast.partitions)))
    player = await players.start(parts.hub(cast), cast.folder)
    ending.push_async_callback(players.stop, [player], STOP_HUB_S)
    ready = json.loads(await player.first_line(READY_S))
    said(f"hub        sb://127.0.0.1:{ready['port']}   4 hubs of {cast.partitions} partitions")
    return cast, str(ready["namespace_connection_string"])


async def check_hubs(connection: str) -> dict[str, int]:
    """How many partitions each of the hubs has; they must all be there."""
    from pumphouse.client.factory import open_client
    from pumphouse.homes.schema import HUBS

    found = {}
    for hub in HUBS:
        try:
            async with asyncio.timeout(CALL_S), open_client(connection, hub) as client:
                found[hub] = len((await client.properties()).partitions)
        except (PumphouseError, TimeoutError) as failed:
            raise PumphouseError(
                f"the hub {hub} of that namespace does not answer ({failed or 'no answer'}); "
                f"create {', '.join(HUBS)}, with the consumer groups that docs/homes.md lists"
            ) from failed
    return found


async def open_page(
    cast: Cast, connection: str, port: int, hosts: int, ending: AsyncExitStack, said: Said
) -> Dashboard:
    """The page, on the port that was asked for or another."""
    from pumphouse.dashboard.server.app import Dashboard

    options = page_options(cast, connection, port, hosts)
    try:
        page = await ending.enter_async_context(Dashboard(options))
    except PortTaken:
        said(f"port {port} is taken: the page takes another")
        page = await ending.enter_async_context(Dashboard(replace(options, port=0)))
    for group in page.options.groups:
        assert group.fleet is not None
        for _ in range(hosts):
            await group.fleet.add()
    said(f"processors {plural(hosts, 'host')} of each face, on a consumer group of its own")
    return page


def page_options(cast: Cast, connection: str, port: int, hosts: int) -> DashboardOptions:
    from pumphouse.cli.demo.stages import FACES, FLEET_HUB, LEASE_S
    from pumphouse.dashboard.monitors.host_processes import ProcessFleet
    from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
    from pumphouse.homes.schema import HUBS

    # Those with fixed partitions share them out exactly; whoever comes later stands by.
    each = -(-cast.partitions // max(hosts, 1))

    def watched(face: str, group: str) -> WatchedGroup:
        place = (connection, FLEET_HUB, group, cast.store)
        fleet = ProcessFleet(*place, face=face, lease_s=LEASE_S, prefix=face, partitions=each)
        return WatchedGroup(connection, FLEET_HUB, group, cast.store, LEASE_S, face, fleet)

    return DashboardOptions(
        port=port,
        connection=connection,
        hubs=HUBS,
        groups=tuple(watched(face, group) for face, group in FACES.items()),
        homes=HomesFeed(connection, homes=cast.homes),
        status=cast.status,
        events_group="page",
        write=True,
    )


# -- what is shown ---------------------------------------------------------------------------------


@contextmanager
def one_line() -> Iterator[Callable[[Gauge, str], None]]:
    """On a terminal: one line that is written over."""
    width = max(40, shutil.get_terminal_size().columns - 1)
    yield lambda gauge, url: print(f"\r\x1b[2K{f'{gauge}   {url}'[:width]}", end="", flush=True)
    print()


@contextmanager
def lines() -> Iterator[Callable[[Gauge, str], None]]:
    """In a file or pipe: a line every few seconds."""
    shown_s = -PIPED_EVERY_S

    def put(gauge: Gauge, url: str) -> None:
        nonlocal shown_s
        if gauge.at_s - shown_s >= PIPED_EVERY_S:
            shown_s = gauge.at_s
            print(f"{gauge}   {url}", flush=True)

    yield put
