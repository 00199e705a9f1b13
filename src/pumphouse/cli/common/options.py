"""Options that several commands share, and parsers for durations, sizes and positions."""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from pumphouse.clock import SystemClock, now_ms
from pumphouse.errors import OptionError
from pumphouse.escapes import printable_lines
from pumphouse.events import Position, parse_position
from pumphouse.leases.store_url import store_forms
from pumphouse.leases.strategies import strategy_forms

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PARTITIONS = 4  # of a hub without an explicit count, as in `EmbeddedHub.create_hub`
CONNECTION_VARS = ["PUMPHOUSE_CONNECTION", "EVENT_HUB_CONN_STR"]

CA_FILE = "pumphouse.ca_file"  # key in the context of a command


def keep_ca_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    ctx.meta[CA_FILE] = path


def ca_file() -> str | None:
    """The --ca-file of the running command; None to trust the authorities of the machine."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(CA_FILE)


def connection_option(command: F) -> F:
    """Add --connection and --ca-file to a command."""
    add_ca_file = click.option(
        "--ca-file",
        envvar="PUMPHOUSE_CA_FILE",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=keep_ca_file,
        help="Certificate authorities to trust, for a hub with its own TLS certificate.",
    )
    add_connection = click.option(
        "--connection",
        envvar=CONNECTION_VARS,
        metavar="STRING",
        show_envvar=True,
        help="Connection string of the hub, as `pumphouse up` prints it.",
    )
    return add_connection(add_ca_file(command))


hub_option = click.option(
    "--hub",
    metavar="HUB",
    help="Name of the hub. Default: the EntityPath of the connection string.",
)
group_option = click.option(
    "--group",
    default="$Default",
    show_default=True,
    metavar="GROUP",
    help="Name of the consumer group.",
)
store_option = click.option(
    "--store",
    envvar="PUMPHOUSE_STORE",
    default="pumphouse.db",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help=f"Store of leases and checkpoints: a file, {store_forms()}.",
)
strategy_option = click.option(
    "--strategy",
    default="steady",
    show_default=True,
    help=f"How partitions are shared: {strategy_forms()}.",
)
output_option = click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="text for people; json for programs, one object per line.",
)


def listen_option(port: int, what: str, callers: str) -> Callable[[F], F]:
    """Add --port and --host to a command that serves `what`; `callers` may be on other machines."""
    add_port = click.option(
        "--port",
        type=click.IntRange(0, 65535),
        default=port,
        show_default=True,
        help=f"Port of the {what}; 0 picks a free one.",
    )
    add_host = click.option(
        "--host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help=f"Address to listen on; 0.0.0.0 accepts {callers} of other machines.",
    )
    return lambda command: add_port(add_host(command))


def metrics_option(command: F) -> F:
    """Add --metrics-port and --metrics-host to a command."""
    add_host = click.option(
        "--metrics-host",
        default="127.0.0.1",
        show_default=True,
        metavar="ADDRESS",
        help="Address for --metrics-port; 0.0.0.0 accepts Prometheus and probes of other machines.",
    )
    add_port = click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Serve /metrics for Prometheus, /livez and /readyz on this port; 0 picks a free one. "
        "Needs the extra `telemetry`.",
    )
    return add_port(add_host(command))


def health_option(command: F) -> F:
    """Add --health-port to a command with --metrics-host."""
    return click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        help="Serve only /livez and /readyz on this port of --metrics-host; 0 picks a free one. It "
        "needs no extra.",
    )(command)


def start_logging(ctx: click.Context, param: click.Parameter, count: int) -> None:
    if count:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(LogFormatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s"))
        logging.basicConfig(level=logging.INFO if count == 1 else logging.DEBUG, handlers=[handler])


class LogFormatter(logging.Formatter):
    """Escapes control characters, also in tracebacks and in the logs of other packages."""

    def format(self, record: logging.LogRecord) -> str:
        # The lines of a traceback are indented, so that none looks like another record.
        return printable_lines(super().format(record)).replace("\n", "\n  ")


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=start_logging,
    help="Log to stderr; twice for debug messages.",
)


def need_connection(connection: str | None) -> str:
    """The connection string. Raises UsageError with advice if there is none."""
    if not connection:
        raise click.UsageError(
            "no connection string: use --connection STRING or set EVENT_HUB_CONN_STR; "
            "`pumphouse up` starts a hub and prints its connection string"
        )
    return connection


class FiniteRange(click.FloatRange):
    """A range of numbers without nan and inf, which compare with no bound."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class ParsedType(click.ParamType[Any]):
    """A parameter that is parsed by a function, which raises OptionError if it is invalid."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.parse(value)
        except OptionError as error:
            self.fail(str(error), param, ctx)


SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>ms|s|m|h|d|)", re.IGNORECASE)
SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Seconds from 90, 90s, 15m, 1.5h, 7d, 250ms."""
    match = DURATION.fullmatch(text.strip())
    seconds = float(match["number"]) * SECONDS[match["unit"].lower() or "s"] if match else 0.0
    if seconds <= 0:
        raise OptionError(f"invalid duration {text!r}: use 30s, 15m, 1h or 7d")
    return seconds


def parse_size(text: str) -> int:
    """Bytes from 65536, 64KB, 64MB, 1GiB; K is 1024."""
    match = SIZE.fullmatch(text.strip())
    size = int(float(match["number"]) * BYTES[match["unit"].upper()]) if match else 0
    if size <= 0:
        raise OptionError(f"invalid size {text!r}: use 64KB, 64MB or 1GB")
    return size


def parse_hubs(texts: Iterable[str]) -> dict[str, int]:
    """Hubs with their partition counts from texts such as `sensors:16,activity orders:2`."""
    hubs: dict[str, int] = {}
    for word in (word for text in texts for word in re.split(r"[\s,]+", text) if word):
        name, colon, count = word.partition(":")
        partitions = count if colon else str(PARTITIONS)
        if not name or not (partitions.isascii() and partitions.isdigit()):
            raise OptionError(f"invalid hub {word!r}: use NAME or NAME:PARTITIONS")
        if name in hubs:
            raise OptionError(f"duplicate hub {name!r}: name each hub once")
        hubs[name] = int(partitions)
    return hubs


def parse_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OptionError(f"invalid property {text!r}: use NAME=VALUE")
    return name, value


def parse_position_now(text: str) -> Position:
    """A position; relative times such as time:-15m count from now."""
    return parse_position(text, now_ms(SystemClock()))


DURATION_TYPE = ParsedType("duration", parse_duration)
POSITION_TYPE = ParsedType("position", parse_position_now)


def lease_option(help: str) -> Callable[..., Any]:
    return click.option(
        "--lease", "lease_s", type=DURATION_TYPE, default="30s", show_default=True, help=help
    )


LEASE_OF_HOSTS = (
    "Lease duration that the hosts of the group use. An owner that has not renewed its lease for "
    "this time counts as stopped."
)
SIZE_TYPE = ParsedType("size", parse_size)
PROPERTY_TYPE = ParsedType("name=value", parse_property)
