"""`pumphouse tail`: the last events of a hub, those from a position on, and those that come."""

from __future__ import annotations

import json
import re
import sys
from base64 import b64encode
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    ParsedType,
    connection_option,
    output_option,
    verbose_option,
)
from pumphouse.clock import SystemClock, now_ms
from pumphouse.errors import OptionError
from pumphouse.events import FORMS, Event, Position, parse_position

if TYPE_CHECKING:
    from pumphouse.cli.common.event_streams import Span
    from pumphouse.client.base import HubClient

LAST = 10
BLOCK = 200  # events written at once: a write for each would be most of the work


def read_position(text: str) -> Position:
    return parse_position(text, now_ms(SystemClock()))


def read_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as wrong:
        raise OptionError(f"{text!r} is no regular expression: {wrong}") from None


@dataclass(frozen=True, slots=True)
class TailQuery:
    """Which events to show."""

    partition: str | None  # None is all of them
    group: str
    position: Position | None  # None is the last ones
    number: int | None  # at the most; of the last ones LAST unless given
    grep: re.Pattern[str] | None
    follow: bool

    def matches(self, event: Event) -> bool:
        grep = self.grep
        return grep is None or any(map(grep.search, (plain(event.body), event.partition_key or "")))


@click.command()
@click.argument("hub", required=False)
@click.option("-p", "--partition", metavar="N", help="Only this partition.")
@click.option("--group", default="$Default", show_default=True, help="Consumer group to read in.")
@click.option(
    "--from",
    "position",
    type=ParsedType("position", read_position),
    help=f"Where to start: {FORMS}.",
)
@click.option(
    "-n",
    "number",
    type=click.IntRange(min=1),
    help="How many events at the most; without --from it is the last 10.",
)
@click.option("--follow", is_flag=True, help="Go on with the events that come.")
@click.option(
    "--grep",
    type=ParsedType("regex", read_pattern),
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
    """Show events of HUB: the last ones, or those from a position on.

    Without --from the last 10 events are shown (-n says how many), and with --follow whatever
    comes after them. With --from all events from there to the end are shown, or as many as -n
    says; with --follow it goes on until that many were shown. Partitions are merged by time.

    A line has partition, sequence number, time, key and body. HUB may be left out if the
    connection string has an EntityPath.
    """
    from pumphouse.cli.common.hub_connection import with_client

    query = TailQuery(partition, group, position, number, grep, follow)
    show = EventPrinter(as_json if output == "json" else as_text, query).show
    if position is not None and position.kind == "latest" and not follow:
        console.message("Nothing comes after the latest event unless you --follow.")
    unwrapped(lambda: with_client(connection, hub, lambda client: run(client, query, show)))


def unwrapped(call: Callable[[], None]) -> None:
    """A task group wraps what went wrong in a group; people want the one thing."""
    try:
        call()
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


class EventPrinter:
    """Where events are shown, and how many still may be."""

    def __init__(self, line: Callable[[Event], str], query: TailQuery) -> None:
        self.line = line
        self.wanted = query
        # The last ones are a beginning; a number from a position on is a limit.
        self.left = sys.maxsize if query.position is None else query.number or sys.maxsize

    def show(self, events: list[Event]) -> bool:
        """Show those that are query; False if that is enough."""
        chosen = [event for event in events if self.wanted.matches(event)][: self.left]
        self.left -= len(chosen)
        if chosen:
            print("\n".join(map(self.line, chosen)), flush=True)
        return self.left > 0


async def run(client: HubClient, query: TailQuery, show: Callable[[list[Event]], bool]) -> None:
    from pumphouse.cli.common.event_streams import follow, merge, open_streams

    spans = [span for span in await find_spans(client, query) if query.follow or not span.empty]
    streams = await open_streams(client, query.group, spans)
    async with aclosing(merge(streams)) as past:
        if query.position is None:
            more = show(await last_of(past, query))
        else:
            more = await show_all(past, show)
    if more and query.follow:
        await follow(streams, show)


async def find_spans(client: HubClient, query: TailQuery) -> list[Span]:
    from pumphouse.cli.common.event_streams import span_for

    every = (await client.properties()).partitions
    # To find the last that match, all have to be looked at.
    last = sys.maxsize if query.grep is not None else query.number or LAST
    return [
        span_for(await client.partition_properties(partition), query.position, last)
        for partition in ([query.partition] if query.partition is not None else every)
    ]


async def last_of(past: AsyncIterator[Event], query: TailQuery) -> list[Event]:
    kept: deque[Event] = deque(maxlen=query.number or LAST)
    async for event in past:
        if query.matches(event):
            kept.append(event)
    return list(kept)


async def show_all(past: AsyncIterator[Event], show: Callable[[list[Event]], bool]) -> bool:
    block: list[Event] = []
    async for event in past:
        block.append(event)
        if len(block) == BLOCK:
            if not show(block):
                return False
            block.clear()
    return show(block)


# -- an event as a line ---------------------------------------------------------------------------


def as_text(event: Event) -> str:
    place = f"{event.partition}:{event.sequence}"
    if console.use_colour():
        place = click.style(place, fg="cyan")
    return f"{place}  {moment(event)}  {event.partition_key or '-'}  {escaped(plain(event.body))}"


def as_json(event: Event) -> str:
    shown = {
        "partition": event.partition,
        "sequence": event.sequence,
        "offset": event.offset,
        "time": moment(event),
        "key": event.partition_key,
        **body(event.body),
        "properties": {str(name): value for name, value in event.properties.items()},
    }
    return json.dumps(shown, ensure_ascii=False, default=other)


def body(data: bytes) -> dict[str, str]:
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body_base64": b64encode(data).decode()}


def plain(data: bytes) -> str:
    """A body as text; bytes that are none appear as \\xNN."""
    return data.decode("utf-8", "backslashreplace")


def escaped(text: str) -> str:
    """Text that stays on its line and cannot play with the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def moment(event: Event) -> str | None:
    at = event.enqueued_at
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def other(value: Any) -> Any:
    """An AMQP value that JSON does not know."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, UUID | datetime):
        return str(value)
    return getattr(value, "items", str(value))
