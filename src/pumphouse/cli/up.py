"""`pumphouse up`: runs an event hub in the foreground until Ctrl-C or SIGTERM."""

from __future__ import annotations

import asyncio
import shlex
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.metrics import serving_metrics
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    SIZE_TYPE,
    metrics_option,
    output_option,
    parse_hubs,
    verbose_option,
)
from pumphouse.errors import OptionError
from pumphouse.telemetry.health import READY, checking, checking_loop

if TYPE_CHECKING:
    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.telemetry.server import TelemetryServer

PORT = 5672


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME[:PARTITIONS]]...")
@click.option(
    "--hubs",
    multiple=True,
    metavar="NAME[:PARTITIONS]",
    help="Hubs to create, with 4 partitions by default; separated by commas; the option may be "
    "given several times.",
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
    help="Key of the rule RootManageSharedAccessKey; random by default. Other users of the "
    "machine can read command lines: prefer the variable or --key-file.",
)
@click.option(
    "--key-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File that contains the key.",
)
@click.option(
    "--retention",
    type=DURATION_TYPE,
    default="1d",
    show_default=True,
    help="Retention time of events: 30s, 15m, 1h, 7d.",
)
@click.option(
    "--retention-bytes",
    type=SIZE_TYPE,
    default="256MB",
    show_default=True,
    help="Retention size of each partition: 64KB, 64MB, 1GB.",
)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for events, hubs, groups and keys; without it they are kept in memory.",
)
@click.option(
    "--sync",
    type=click.Choice(["always", "interval", "never"]),
    default="always",
    show_default=True,
    help="With --data, when a send is acknowledged. always: after fsync. interval: after the "
    "write to the operating system, with an fsync every tenth of a second. never: after the write, "
    "without an fsync.",
)
@click.option(
    "--tls-port",
    type=click.IntRange(0, 65535),
    help="Also listen for AMQP over TLS; 0 picks a free port. The official clients use 5671.",
)
@click.option(
    "--ws-port",
    type=click.IntRange(0, 65535),
    help="Also listen for AMQP over WebSocket (wss with TLS). The official clients use 443.",
)
@click.option(
    "--http-port",
    type=click.IntRange(0, 65535),
    help="Also serve HTTP on this machine: /health, /hubs. Microsoft's emulator uses 5300.",
)
@click.option(
    "--certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    nargs=2,
    metavar="CERT KEY",
    help="Certificate and key for TLS. Default: a certificate of a development authority.",
)
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Create the hubs and groups of a config.json of Microsoft's emulator.",
)
@click.option(
    "--tier",
    type=click.Choice(["basic", "standard", "premium"]),
    help="Enforce the limits of this tier of Azure Event Hubs.",
)
@click.option(
    "--throughput-units",
    type=click.IntRange(1, 40),
    help="Throttle like Azure Event Hubs with this number of throughput units.",
)
@click.option(
    "--host-name",
    multiple=True,
    metavar="NAME",
    help="Name under which clients reach the WebSocket and HTTP ports, besides localhost, --host "
    "and the name of this machine; requests for other names are refused. May be "
    "given several times.",
)
@click.option(
    "--connections-max",
    type=click.IntRange(min=1),
    default=10_000,
    show_default=True,
    help="Maximum number of connections. Beyond it, a new connection replaces the oldest one "
    "without a valid key or token; if all have one, the new connection is closed.",
)
@click.option(
    "--connections-per-address-max",
    type=click.IntRange(min=1),
    default=4_000,
    show_default=True,
    help="Connections that the hub accepts from one remote address.",
)
@click.option(
    "--login-time",
    type=DURATION_TYPE,
    default="10s",
    show_default=True,
    help="Time after connecting in which a client has to give a valid key or token.",
)
@metrics_option
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
    host_name: tuple[str, ...],
    connections_max: int,
    connections_per_address_max: int,
    login_time: float,
    metrics_port: int | None,
    metrics_host: str,
    output: str,
) -> None:
    """Start an event hub for the official Azure clients.

    Events are kept in memory, or in --data. Ctrl-C and SIGTERM stop the hub cleanly with exit code
    0. With `-o json` it prints one line when it is ready: {"port": ..., "connection_strings":
    {NAME: ...}, "namespace_connection_string": ...}.
    """
    from pumphouse.hub.embedded import EmbeddedHub
    from pumphouse.hub.options import Retention, ServerOptions

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
        host_names=host_name,
        config=config,
        tier=tier,
        throughput_units=throughput_units,
        options=ServerOptions(
            handshake_s=login_time,
            connections_max=connections_max,
            connections_per_address_max=connections_per_address_max,
        ),
    )
    listens = threading.Event()
    with checking_hub(listens), serving_metrics(metrics_port, metrics_host) as metrics:

        def ready(hub: EmbeddedHub) -> None:
            warn_of_literal(host)
            (announce_json if output == "json" else announce)(hub, metrics)

        asyncio.run(serve(hub, ready, listens))


def checking_hub(listens: threading.Event) -> AbstractContextManager[None]:
    """Let /readyz fail before the hub listens, and from SIGTERM on. Enter it before the server."""
    return checking(READY, "hub", lambda: None if listens.is_set() else "the hub does not listen")


def choose_key(key: str | None, key_file: Path | None) -> str | None:
    """The given key, or None for a random one. Raises OptionError if the key is unusable."""
    chosen = key_file.read_text().strip() if key_file is not None else key
    if chosen is not None and (not chosen or ";" in chosen or chosen != chosen.strip()):
        raise OptionError(
            "invalid key: it must not be empty, contain a semicolon or start or end with spaces"
        )
    return chosen


async def serve(
    hub: EmbeddedHub, announce: Callable[[EmbeddedHub], None], listens: threading.Event
) -> None:
    """Run the hub until SIGINT or SIGTERM."""
    with stop_on_signal() as stop, checking_loop():
        async with hub:
            listens.set()
            announce(hub)
            import_later()
            await stop.wait()
            listens.clear()


def import_later() -> threading.Thread:
    """Import what the first events need, so that they do not wait for it."""
    module = "pumphouse.hub.frames.uniform_events"  # and numpy, which takes most of the time
    thread = threading.Thread(target=import_module, args=(module,))
    thread.start()
    return thread


@contextmanager
def stop_on_signal() -> Iterator[asyncio.Event]:
    """Yield an event that is set by SIGINT or SIGTERM."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def warn_of_literal(host: str) -> None:
    """Warn of an IPv6 address: the official clients cannot parse it in a connection string."""
    from pumphouse.hub.listeners.tls import ANY_ADDRESS

    if ":" not in host or host in ANY_ADDRESS:
        return
    name = "localhost" if is_localhost(host) else "a host name that resolves to it"
    console.message(
        f"WARNING: official clients cannot connect to an IPv6 address such as [{host}]: "
        f"replace [{host}] in the connection string by {name}"
    )


def is_localhost(host: str) -> bool:
    """Whether the name localhost resolves to this IPv6 address."""
    try:
        addresses = socket.getaddrinfo("localhost", None, socket.AF_INET6, socket.SOCK_STREAM)
        return any(ip_address(info[4][0]) == ip_address(host) for info in addresses)
    except (OSError, ValueError):
        return False


def announce(hub: EmbeddedHub, metrics: TelemetryServer | None) -> None:
    show_address(hub)
    if metrics is not None:
        print(f"metrics    {metrics.address}/metrics")
    if hub.data is None:
        print("Ctrl-C stops it. The data is then lost; use --data DIR to keep it.", flush=True)
    else:
        print("Ctrl-C stops it.", flush=True)


def show_address(hub: EmbeddedHub) -> None:
    partitions = console.plural(sum(hub.hubs.values()), "partition")
    contents = f"{console.plural(len(hub.hubs), 'hub')}, {partitions}"
    storage = "memory" if hub.data is None else str(hub.data)
    print(f"hub        sb://{hub.authority}   {storage}   {contents}")
    for protocol, port in further_ports(hub).items():
        print(f"{protocol:<10} {hub.address(port)}")
    if hub.ca_file is not None:
        print(f"trust      {hub.ca_file}")
    for name in hub.hubs or [None]:
        print(f"connect    export EVENT_HUB_CONN_STR={shlex.quote(hub.connection_string(name))}")


def further_ports(hub: EmbeddedHub) -> dict[str, int]:
    """The ports besides AMQP, by protocol."""
    ports = {"tls": hub.tls_port, "websocket": hub.ws_port, "http": hub.http_port}
    return {protocol: port for protocol, port in ports.items() if port is not None}


def announce_json(hub: EmbeddedHub, metrics: TelemetryServer | None) -> None:
    console.print_json(
        {
            "port": hub.port,
            "connection_strings": {name: hub.connection_string(name) for name in hub.hubs},
            "namespace_connection_string": hub.connection_string(),
            "tls_port": hub.tls_port,
            "ws_port": hub.ws_port,
            "http_port": hub.http_port,
            "ca_file": None if hub.ca_file is None else str(hub.ca_file),
            "metrics_port": None if metrics is None else metrics.port,
        }
    )
