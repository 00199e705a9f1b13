"""`pumphouse up`: an event hub in the foreground, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    SIZE_TYPE,
    output_option,
    parse_hubs,
    verbose_option,
)
from pumphouse.errors import OptionError

if TYPE_CHECKING:
    from pumphouse.hub.embedded import EmbeddedHub

PORT = 5672


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME[:PARTITIONS]]...")
@click.option(
    "--hubs",
    multiple=True,
    metavar="NAME[:PARTITIONS]",
    help="Hubs to create, 4 partitions unless said; several with commas, or the option again.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 picks a free one.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--key",
    envvar="PUMPHOUSE_KEY",
    show_envvar=True,
    help="Key of the rule RootManageSharedAccessKey; random unless given. Other users of the "
    "machine can read command lines: prefer the variable or --key-file.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that holds the key.",
)
@click.option(
    "--retention",
    type=DURATION_TYPE,
    default="1d",
    show_default=True,
    help="How long events are kept: 30s, 15m, 1h, 7d.",
)
@click.option(
    "--retention-bytes",
    type=SIZE_TYPE,
    default="256MB",
    show_default=True,
    help="How much of each partition is kept: 64KB, 64MB, 1GB.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that keeps events, hubs, groups and keys; without it they live in memory.",
)
@click.option(
    "--sync",
    type=click.Choice(["always", "interval", "never"]),
    default="always",
    show_default=True,
    help="With --data, when an event counts as safe: on the disk itself, on its way there within a "
    "tenth of a second, or with the operating system.",
)
@click.option(
    "--tls-port",
    type=click.IntRange(0, 65535),
    help="Also listen for AMQP over TLS; 0 picks a free port, the official clients expect 5671.",
)
@click.option(
    "--ws-port",
    type=click.IntRange(0, 65535),
    help="Also listen for AMQP over WebSocket (and wss, with TLS); the clients expect 443.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Also answer HTTP on this machine: /health, /hubs; Microsoft's emulator has it on 5300.",
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    nargs=2,
    metavar="CERT KEY",
    help="Your certificate and key for TLS; otherwise one is made under a development authority.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A config.json of Microsoft's emulator: its hubs and groups are created.",
)
@click.option(
    "--tier",
    type=click.Choice(["basic", "standard", "premium"]),
    help="Enforce the limits of this tier of the service.",
)
@click.option(
    "--throughput-units",
    type=click.IntRange(1, 40),
    help="Throttle as the service does with so many throughput units.",
)
@output_option
@verbose_option
def up(
    names: tuple[str, ...],
    hubs: tuple[str, ...],
    port: int,
    host: str,
    key: str | None,
    key_file: Path | None,
    retention: float,
    retention_bytes: int,
    data: Path | None,
    sync: str,
    tls_port: int | None,
    ws_port: int | None,
    http_port: int | None,
    certificate: tuple[Path, Path] | None,
    config: Path | None,
    tier: str | None,
    throughput_units: int | None,
    output: str,
) -> None:
    """Start an event hub for the official Azure clients.

    It keeps events in memory, or in --data, and runs until Ctrl-C or SIGTERM, both of which end
    it cleanly with exit code 0. With `-o json` one line says when it is ready: {"port": ...,
    "connection_strings": {NAME: ...}, "namespace_connection_string": ...}.
    """
    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.hub.options import Retention

    hub = EmbeddedHub(
        parse_hubs([*hubs, *names]),
        host=host,
        port=port,
        root_key=choose_key(key, key_file),
        retention=Retention(retention, retention_bytes),
        data=data,
        sync=sync,
        tls_port=tls_port,
        ws_port=ws_port,
        http_port=http_port,
        certificate=certificate,
        config=config,
        tier=tier,
        throughput_units=throughput_units,
    )
    asyncio.run(serve(hub, announce_json if output == "json" else announce))


def choose_key(key: str | None, key_file: Path | None) -> str | None:
    """The key as given, or None for a random one; never one that would not open anything."""
    chosen = key_file.read_text().strip() if key_file is not None else key
    if chosen is not None and (not chosen or ";" in chosen or chosen != chosen.strip()):
        raise OptionError("the key must not be empty, hold a semicolon or have spaces around it")
    return chosen


async def serve(hub: EmbeddedHub, announce: Callable[[EmbeddedHub], None]) -> None:
    """Run the hub until a signal comes."""
    with stop_on_signal() as stop:
        async with hub:
            announce(hub)
            await stop.wait()


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """An event that Ctrl-C and SIGTERM set."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def announce(hub: EmbeddedHub) -> None:
    show_address(hub)
    if hub.data is None:
        print("Ctrl-C stops it. Data is lost on stop; use --data DIR to keep it.", flush=True)
    else:
        print("Ctrl-C stops it.", flush=True)


def show_address(hub: EmbeddedHub) -> None:
    partitions = console.plural(sum(hub.hubs.values()), "partition")
    what = f"{console.plural(len(hub.hubs), 'hub')}, {partitions}"
    where = "memory" if hub.data is None else str(hub.data)
    print(f"hub        sb://{hub.authority}   {where}   {what}")
    for door, port in doors(hub).items():
        print(f"{door:<10} {hub.address(port)}")
    if hub.ca_file is not None:
        print(f"trust      {hub.ca_file}")
    for name in hub.hubs or [None]:
        print(f"connect    export EVENT_HUB_CONN_STR={shlex.quote(hub.connection_string(name))}")


def doors(hub: EmbeddedHub) -> dict[str, int]:
    """The further doors that are open, and their ports."""
    ports = {"tls": hub.tls_port, "websocket": hub.ws_port, "http": hub.http_port}
    return {door: port for door, port in ports.items() if port is not None}


def announce_json(hub: EmbeddedHub) -> None:
    console.print_json(
        {
            "port": hub.port,
            "connection_strings": {name: hub.connection_string(name) for name in hub.hubs},
            "namespace_connection_string": hub.connection_string(),
            "tls_port": hub.tls_port,
            "ws_port": hub.ws_port,
            "http_port": hub.http_port,
            "ca_file": None if hub.ca_file is None else str(hub.ca_file),
        }
    )
