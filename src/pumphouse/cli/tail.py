"""`pumphouse tail`: shows the last events of a hub, events from a position, and new events."""

from __future__ import annotations

import re
import sys
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    POSITION_TYPE,
    ParsedType,
    connection_option,
    output_option,
    verbose_option,
)
from pumphouse.errors import OptionError
from pumphouse.escapes import json_text, printable
from pumphouse.events import FORMS, Event, Position

if TYPE_CHECKING:
    from pumphouse.cli.common.event_streams import Span
    from pumphouse.client.base import HubClient

LAST = 10
BLOCK = 200  # events per write: one write per event would be slow
DEPTH_MAX = 50  # of a property; deeper values are left out


def parse_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"invalid regular expression {text!r}: {error}") from None


@dataclass(frozen=True, slots=True)
class TailQuery:
    """The events to show."""

    partition: str | None  # None: all partitions
    group: str
    position: Position | None  # None: the last events
    # Maximum. None: no limit if `position` is set, otherwise LAST.
    number: int | None
    grep: re.Pattern[str] | None
    follow: bool

    def matches(self, event: Event) -> bool:
        grep = self.grep
        return grep is None or any(
            map(grep.search, (body_text(event.body), event.partition_key or ""))
        )


@click.command()
@click.argument("hub", required=False)
@click.option("-p", "--partition", metavar="N", help="Only this partition.")
@click.option("--group", default="$Default", show_default=True, help="Consumer group to read in.")
@click.option(
    "--from",
    "position",
    type=POSITION_TYPE,
    help=f"Start position: {FORMS}.",
)
@click.option(
    "-n",
    "number",
    type=click.IntRange(min=1),
    help="Maximum number of events. Without --from the default is the last 10.",
)
@click.option("--follow", is_flag=True, help="Continue with new events.")
@click.option(
    "--grep",
    type=ParsedType("regex", parse_pattern),
    help="Only events whose body or key matches this regular expression.",
)
@connection_option
@output_option
@verbose_option
def tail(
    hub: str | None,
    partition: str | None,
    group: str,
    position: Position | None,
    number: int | None,
    follow: bool,
    grep: re.Pattern[str] | None,
    connection: str | None,
    output: str,
) -> None:
    """Show the last events of HUB, or the events from a position.

    Without --from it shows the last 10 events (or -n), and with --follow all new events. With
    --from it shows all events from that position to the end, but at most -n; with --follow it
    continues until -n events were shown. Partitions are merged by time.

    A line has partition, sequence number, time, key and body. HUB can be omitted if the connection
    string has an EntityPath.
    """
    from pumphouse.cli.common.hub_connection import with_client

    query = TailQuery(partition, group, position, number, grep, follow)
    show = EventPrinter(as_json if output == "json" else as_text, query).show
    if position is not None and position.kind == "latest" and not follow:
        console.message("There are no events after latest; add --follow to wait for new ones.")
    unwrap_errors(lambda: with_client(connection, hub, lambda client: run(client, query, show)))


def unwrap_errors(call: Callable[[], None]) -> None:
    """Raise the first error of a task group instead of the group."""
    try:
        call()
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class EventPrinter:
    """Prints matching events up to a limit."""

    def __init__(self, line: Callable[[Event], str], query: TailQuery) -> None:
        self.line = line
        self.query = query
        # Without --from, -n selects how many past events are shown, and new events are unlimited.
        self.remaining = sys.maxsize if query.position is None else query.number or sys.maxsize

    def show(self, events: list[Event]) -> bool:
        """Print the matching events; False after the limit is reached."""
        matching = [event for event in events if self.query.matches(event)][: self.remaining]
        self.remaining -= len(matching)
        if matching:
            print("\n".join(map(self.line, matching)), flush=True)
        return self.remaining > 0


async def run(client: HubClient, query: TailQuery, show: Callable[[list[Event]], bool]) -> None:
    from pumphouse.cli.common.event_streams import follow, merge, open_streams
    from pumphouse.cli.common.hub_connection import advice_if_not_found

    all_spans = await find_spans(client, query)
    spans = [span for span in all_spans if query.follow or not span.empty]
    advice = f"check the name, or create the group with `pumphouse groups create {query.group}`"
    with advice_if_not_found(advice):
        # Without events one reader is opened nevertheless: the hub then checks the group.
        streams = await open_streams(client, query.group, spans or all_spans[:1])
    async with aclosing(merge(streams)) as past_events:
        if query.position is None:
            below_limit = show(await last_of(past_events, query))
        else:
            below_limit = await show_all(past_events, show)
    if below_limit and query.follow:
        await follow(streams, show)


async def find_spans(client: HubClient, query: TailQuery) -> list[Span]:
    from pumphouse.cli.common.event_streams import span_for

    all_partitions = (await client.properties()).partitions
    # With --grep the last matching events can be anywhere in the partition: read it whole.
    last = sys.maxsize if query.grep is not None else query.number or LAST
    return [
        span_for(await client.partition_properties(partition), query.position, last)
        for partition in ([query.partition] if query.partition is not None else all_partitions)
    ]


async def last_of(past_events: AsyncIterator[Event], query: TailQuery) -> list[Event]:
    last_events: deque[Event] = deque(maxlen=query.number or LAST)
    async for event in past_events:
        if query.matches(event):
            last_events.append(event)
    return list(last_events)


async def show_all(past_events: AsyncIterator[Event], show: Callable[[list[Event]], bool]) -> bool:
    block: list[Event] = []
    async for event in past_events:
        block.append(event)
        if len(block) == BLOCK:
            if not show(block):
                return False
            block.clear()
    return show(block)


# -- output ---------------------------------------------------------------------------------------


def as_text(event: Event) -> str:
    position = printable(f"{event.partition}:{event.sequence}")
    if console.use_colour():
        position = click.style(position, fg="cyan")
    key, text = printable(event.partition_key or "-"), printable(body_text(event.body))
    return f"{position}  {timestamp(event)}  {key}  {text}"


def as_json(event: Event) -> str:
    fields = {
        "partition": event.partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "time": timestamp(event),
        "key": event.partition_key,
        **body_fields(event.body),
        "properties": json_value(event.properties),
    }
    return json_text(fields)


def body_fields(data: bytes) -> dict[str, str]:
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(data).decode()}


def body_text(data: bytes) -> str:
    """A body as text; invalid bytes appear as \\xNN."""
    return data.decode("utf-8", "backslashreplace")


def timestamp(event: Event) -> str | None:
    """The enqueued time. One that has no date, as a faulty hub may send, is shown as it is."""
    try:
        enqueued_at = event.enqueued_at
    except OverflowError:
        return f"{event.enqueued_ms} ms"
    if enqueued_at is None:
        return None
    return enqueued_at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def json_value(value: Any, depth: int = DEPTH_MAX) -> Any:
    """A JSON value for an AMQP value; an array becomes a list, and keys become texts."""
    if value is None or isinstance(value, str | int | float):
        return value
    if depth == 0:
        return "..."
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Mapping):
        return {str(key): json_value(item, depth - 1) for key, item in value.items()}
    items = getattr(value, "items", value)  # of an AMQP array
    if isinstance(items, list | tuple):
        return [json_value(item, depth - 1) for item in items]
    return str(value)
