"""Options that several commands share, and the forms in which people write numbers."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from pumphouse.errors import OptionError
from pumphouse.leases.strategies import strategy_forms

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PARTITIONS = 4  # of a hub for which nobody said how many; as `EmbeddedHub.create_hub`
CONNECTION_VARS = ["PUMPHOUSE_CONNECTION", "EVENT_HUB_CONN_STR"]

CA_FILE = "pumphouse.ca_file"  # where the context of a command keeps it


def keep_ca_file(ctx: click.Context, param: click.Parameter, path: str | None) -> None:
    ctx.meta[CA_FILE] = path


def ca_file() -> str | None:
    """What the command that runs was told to trust; None for what the machine trusts."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(CA_FILE)


def connection_option(command: F) -> F:
    """Which hub: the connection string, and for TLS what to trust."""
    trust = click.option(
        "--ca-file",
        envvar="PUMPHOUSE_CA_FILE",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        expose_value=False,
        callback=keep_ca_file,
        help="Trust the authorities in this file, if the hub speaks TLS with a certificate of its "
        "own.",
    )
    connect = click.option(
        "--connection",
        envvar=CONNECTION_VARS,
        metavar="STRING",
        show_envvar=True,
        help="Connection string of the hub, as `pumphouse up` prints it.",
    )
    return connect(trust(command))


hub_option = click.option(
    "--hub", metavar="HUB", help="The hub; by default the EntityPath of the connection string."
)
group_option = click.option(
    "--group", default="$Default", show_default=True, metavar="GROUP", help="The consumer group."
)
store_option = click.option(
    "--store",
    envvar="PUMPHOUSE_STORE",
    default="pumphouse.db",
    show_default=True,
    show_envvar=True,
    metavar="URL",
    help="Where leases and checkpoints are kept: a file, blob://ACCOUNT/CONTAINER and so on.",
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
    help="text for people, json for programs: one object per line.",
)


def start_logging(ctx: click.Context, param: click.Parameter, count: int) -> None:
    if count:
        logging.basicConfig(
            stream=sys.stderr,
            level=logging.INFO if count == 1 else logging.DEBUG,
            format="%(asctime)s %(levelname)-7s %(name)s  %(message)s",
        )


verbose_option = click.option(
    "-v",
    "--verbose",
    count=True,
    expose_value=False,
    callback=start_logging,
    help="Log to stderr; twice for details.",
)


def need_connection(connection: str | None) -> str:
    """The connection string, or the sentence that says where to get one."""
    if not connection:
        raise click.UsageError(
            "no hub to talk to: give --connection STRING or set EVENT_HUB_CONN_STR; "
            "`pumphouse up` starts a hub and prints its string"
        )
    return connection


class ParsedType(click.ParamType[Any]):
    """A parameter read by a function that raises OptionError."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self.read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except OptionError as wrong:
            self.fail(str(wrong), param, ctx)


SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"": 1, "B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DURATION = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>ms|s|m|h|d|)", re.IGNORECASE)
SIZE = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[KMG]?)(?:i?B)?", re.IGNORECASE)


def parse_duration(text: str) -> float:
    """Seconds out of 90, 90s, 15m, 1.5h, 7d, 250ms."""
    found = DURATION.fullmatch(text.strip())
    seconds = float(found["number"]) * SECONDS[found["unit"].lower() or "s"] if found else 0.0
    if seconds <= 0:
        raise OptionError(f"{text!r} is no length of time; write 30s, 15m, 1h or 7d")
    return seconds


def parse_size(text: str) -> int:
    """Bytes out of 65536, 64KB, 64MB, 1GiB: a K is 1024."""
    found = SIZE.fullmatch(text.strip())
    size = int(float(found["number"]) * BYTES[found["unit"].upper()]) if found else 0
    if size <= 0:
        raise OptionError(f"{text!r} is no size; write 64KB, 64MB or 1GB")
    return size


def parse_hubs(words: Iterable[str]) -> dict[str, int]:
    """Hubs and their partition counts out of words such as `sensors:16,activity orders:2`."""
    hubs: dict[str, int] = {}
    for word in (word for text in words for word in re.split(r"[\s,]+", text) if word):
        name, colon, count = word.partition(":")
        partitions = count if colon else str(PARTITIONS)
        if not name or not (partitions.isascii() and partitions.isdigit()):
            raise OptionError(f"{word!r} names no hub; write NAME or NAME:PARTITIONS")
        if name in hubs:
            raise OptionError(f"hub {name!r} is named twice")
        hubs[name] = int(partitions)
    return hubs


def parse_property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise OptionError(f"{text!r} is no property; write NAME=VALUE")
    return name, value


DURATION_TYPE = ParsedType("duration", parse_duration)
lease_option = click.option(
    "--lease",
    "lease_s",
    type=DURATION_TYPE,
    default="30s",
    show_default=True,
    help="How long a lease lasts, as the hosts were told: an older row has no live owner.",
)
SIZE_TYPE = ParsedType("size", parse_size)
PROPERTY_TYPE = ParsedType("name=value", parse_property)
