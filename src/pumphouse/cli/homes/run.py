"""`pumphouse homes run`: runs the three Spark stages and restarts a failed one."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.metrics import serving_metrics
from pumphouse.cli.common.options import (
    ca_file,
    connection_option,
    metrics_option,
    need_connection,
    output_option,
    parse_property,
    verbose_option,
)
from pumphouse.cli.homes.kinds import kinds_option
from pumphouse.leases.store_url import shared_forms
from pumphouse.telemetry.health import LIVE, READY, checking

if TYPE_CHECKING:
    from pumphouse.telemetry.server import TelemetryServer


@click.command(short_help="Run the Spark stages sift, watch and record.")
@click.option(
    "--stages",
    default="sift,watch,record",
    show_default=True,
    metavar="NAMES",
    help="Stages to run; each can also run as a separate application.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Spark master: local[2], spark://HOST:7077. Default: all cores of this machine, or the "
    "master of spark-submit.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("homes-data"),
    show_default=True,
    metavar="DIR",
    help="Folder for checkpoints, the status file, and results that have no option of their own.",
)
@click.option(
    "--storage",
    envvar="PUMPHOUSE_STORAGE",
    metavar="LOCATION",
    help="Target of the Parquet files: a folder, blob://ACCOUNT/CONTAINER, or a storage connection "
    "string with ;Container=NAME. Default: DIR/records.",
)
@click.option(
    "--storage-format",
    type=click.Choice(["parquet", "delta"]),
    default="parquet",
    show_default=True,
    help="Format of these files: parquet with a manifest, or Delta tables (extra `delta`), which "
    "need a folder of this machine.",
)
@click.option(
    "--database",
    envvar="PUMPHOUSE_DATABASE",
    metavar="URL",
    help="Database: sqlite:///PATH or postgresql://USER@HOST/NAME. Default: DIR/homes.db.",
)
@click.option(
    "--checkpoints",
    metavar="LOCATION",
    help="Folder of the Spark checkpoints. On a cluster all machines must reach it. Default: "
    "DIR/checkpoints.",
)
@click.option(
    "--conf",
    "conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="Spark setting; may be given several times.",
)
@click.option(
    "--accelerated",
    is_flag=True,
    help="Accept readings that are more than an hour ahead of the clock. `homes send` sends such "
    "readings with --rate 60x or max. Without this option they are invalid.",
)
@click.option(
    "--assignment",
    metavar="fixed:N",
    help="Share the partitions of the stage watch with other applications: this one owns N of them "
    "while it runs.",
)
@click.option(
    "--store",
    envvar="PUMPHOUSE_STORE",
    metavar="URL",
    help=f"With --assignment: store of the leases of all applications, {shared_forms()}.",
)
@click.option(
    "--host",
    metavar="NAME",
    help="With --assignment: name of this application. Default: derived from the machine name and "
    "--data.",
)
@kinds_option
@connection_option
@metrics_option
@output_option
@verbose_option
def run(
    stages: str,
    master: str | None,
    data: Path,
    storage: str | None,
    storage_format: str,
    database: str | None,
    checkpoints: str | None,
    conf: tuple[str, ...],
    accelerated: bool,
    assignment: str | None,
    store: str | None,
    host: str | None,
    kinds: Any,
    connection: str | None,
    metrics_port: int | None,
    metrics_host: str,
    output: str,
) -> None:
    """Run the stages sift, watch and record on the readings of homes, until Ctrl-C.

    The hubs sensors, activity, alerts and deadletter must exist, with the consumer groups sift,
    watch and record. After a restart sift and record continue at their checkpoints, and watch reads
    the last day again. A failed stage is restarted. DIR/status.json contains the state of the
    stages, updated every second.
    """
    from pumphouse.homes.kinds.defaults import DEFAULT
    from pumphouse.homes.namespace import HomesNamespace
    from pumphouse.homes.pipeline import Pipeline, PipelineOptions
    from pumphouse.homes.watch.sharing import parse_sharing

    ca_path = ca_file()
    namespace = HomesNamespace(need_connection(connection), {"caFile": ca_path} if ca_path else {})
    options = PipelineOptions(
        data=data.absolute(),
        stages=tuple(name.strip() for name in stages.split(",") if name.strip()),
        master=master,
        storage=storage,
        storage_format=storage_format,
        database=database,
        checkpoints=checkpoints,
        settings=dict(map(parse_property, conf)),
        accelerated=accelerated,
        kinds=kinds or DEFAULT,
        sharing=parse_sharing(assignment, store, host or (assignment and own_name(data))),
    )
    report = (
        console.message if output == "text" else lambda text: console.print_json({"event": text})
    )
    pipeline = Pipeline(namespace, options, report)
    health = pipeline.health
    with (
        checking(LIVE, "pipeline", health.not_live),
        checking(READY, "stages", health.not_ready),
        serving_metrics(metrics_port, metrics_host) as server,
    ):
        if server is not None:
            announce(server, output)
        pipeline.run()
    report("stopped")


def announce(server: TelemetryServer, output: str) -> None:
    address = f"{server.address}/metrics"
    if output == "json":
        console.print_json({"event": "metrics", "url": address, "port": server.port})
    else:
        console.message(f"metrics    {address}")


def own_name(data: Path) -> str:
    """A name that is the same at every start, and unique per machine and folder."""
    return f"watch-{socket.gethostname()}-{crc32(bytes(data.absolute())):08x}"
