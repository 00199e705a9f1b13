"""`pumphouse homes run`: the three stages on Spark, kept running."""

from __future__ import annotations

import socket
from pathlib import Path
from zlib import crc32

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    ca_file,
    connection_option,
    need_connection,
    output_option,
    parse_property,
    verbose_option,
)


@click.command()
@click.option(
    "--stages",
    default="sift,watch,record",
    show_default=True,
    metavar="NAMES",
    help="Which of them; each may run as an application of its own.",
)
@click.option(
    "--master",
    metavar="URL",
    help="Where Spark runs: local[2], spark://HOST:7077. By default on all cores of this machine, "
    "or where spark-submit says.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("homes-data"),
    show_default=True,
    metavar="DIR",
    help="Checkpoints, the status, and what is not told to go elsewhere.",
)
@click.option(
    "--storage",
    envvar="PUMPHOUSE_STORAGE",
    metavar="PLACE",
    help="Where the Parquet files go: a folder, blob://ACCOUNT/CONTAINER, or a storage connection "
    "string with ;Container=NAME. DIR/records by default.",
)
@click.option(
    "--database",
    envvar="PUMPHOUSE_DATABASE",
    metavar="URL",
    help="sqlite:///PATH or postgresql://USER@HOST/NAME. DIR/homes.db by default.",
)
@click.option(
    "--checkpoints",
    metavar="PLACE",
    help="On a cluster: a place that all its machines reach. DIR/checkpoints by default.",
)
@click.option(
    "--conf",
    "conf",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of Spark; may be repeated.",
)
@click.option(
    "--accelerated",
    is_flag=True,
    help="The readings' time runs faster than the clock (homes send --rate 60x or max), or is of "
    "another day: do not take that for a broken clock.",
)
@click.option(
    "--assignment",
    metavar="fixed:N",
    help="Share the partitions of the stage watch with other applications: these N are ours, and "
    "stay ours.",
)
@click.option(
    "--store",
    envvar="PUMPHOUSE_STORE",
    metavar="URL",
    help="With --assignment: where all of them keep their leases, sqlite:///PATH or "
    "blob://ACCOUNT/CONTAINER.",
)
@click.option(
    "--host",
    metavar="NAME",
    help="With --assignment: the name of this application. Made of the machine and --data unless "
    "given.",
)
@connection_option
@output_option
@verbose_option
def run(
    stages: str,
    master: str | None,
    data: Path,
    storage: str | None,
    database: str | None,
    checkpoints: str | None,
    conf: tuple[str, ...],
    accelerated: bool,
    assignment: str | None,
    store: str | None,
    host: str | None,
    connection: str | None,
    output: str,
) -> None:
    """Sift, watch and record what the homes send, until Ctrl-C.

    The hubs sensors, activity, alerts and deadletter must be there, with the consumer groups sift,
    watch and record. It goes on where it was when it is started again, and starts a stage that
    fails again too. DIR/status.json tells every second how the stages are.
    """
    from pumphouse.homes.namespace import HomesNamespace
    from pumphouse.homes.pipeline import Pipeline, PipelineOptions
    from pumphouse.homes.watch.sharing import parse_sharing

    trust = ca_file()
    place = HomesNamespace(need_connection(connection), {"caFile": trust} if trust else {})
    options = PipelineOptions(
        data=data.absolute(),
        stages=tuple(name.strip() for name in stages.split(",") if name.strip()),
        master=master,
        storage=storage,
        database=database,
        checkpoints=checkpoints,
        settings=dict(map(parse_property, conf)),
        accelerated=accelerated,
        sharing=parse_sharing(assignment, store, host or (assignment and own_name(data))),
    )
    say = console.message if output == "text" else lambda text: console.print_json({"event": text})
    pipeline = Pipeline(place, options, say)
    pipeline.run()
    say("stopped")


def own_name(data: Path) -> str:
    """The same at every start, and another one for another folder or machine."""
    return f"watch-{socket.gethostname()}-{crc32(bytes(data.absolute())):08x}"
