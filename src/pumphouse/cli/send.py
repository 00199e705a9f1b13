"""`pumphouse send`: words, lines of a file, or sample_bodies-up events into a hub.

TEXT, FILE, stdin or --count -> bodies -> limiter -> Sender
                                ^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import count, cycle, islice
from typing import IO, TYPE_CHECKING

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    PROPERTY_TYPE,
    connection_option,
    output_option,
    verbose_option,
)
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import EventTooLarge, PumphouseError
from pumphouse.events import Event

if TYPE_CHECKING:
    from pumphouse.client.base import HubClient, Sender

PIECE = 1000  # events handed to the sender at once, without --rate
PIECES_PER_S = 20  # with it: often enough to look steady, seldom enough to be cheap
SPREAD = 100  # events of a batch that goes to "the next partition": small, so that all get some


@dataclass(frozen=True, slots=True)
class SendPlan:
    """What to send. Without texts and file, `count` events are sample_bodies up."""

    texts: Sequence[str]
    file: IO[bytes] | None
    count: int | None
    rate: float | None
    key: str | None
    partition: str | None
    properties: dict[str, str]

    def event(self, body: bytes) -> Event:
        return Event(body, self.properties, self.key)

    @property
    def piece(self) -> int:
        return PIECE if self.rate is None else max(1, int(self.rate / PIECES_PER_S))

    @property
    def batch_events_max(self) -> int:
        return SPREAD if self.key is None and self.partition is None else PIECE

    @property
    def total(self) -> int | None:
        """How many there will be, if that can be known."""
        return self.count if self.count is not None else len(self.texts) or None

    @property
    def long(self) -> bool:
        """Whether progress is worth showing: not for a few words, and not while somebody types."""
        if self.file is not None:
            return not self.file.isatty()
        return self.rate is not None or (self.total or 0) > PIECE


@click.command()
@click.argument("hub", required=False)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--key", help="Partition key: events of one key go to one partition.")
@click.option("--partition", "-p", metavar="N", help="Send to this partition.")
@click.option(
    "-f", "--file", type=click.File("rb"), help="File with an event on each line; - is stdin."
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="How many events: TEXT over and over, the first lines of FILE, or sample_bodies-up ones.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Events a second, at the most."
)
@click.option(
    "--property",
    "properties",
    type=PROPERTY_TYPE,
    multiple=True,
    metavar="NAME=VALUE",
    help="Application property of every event; may be given again.",
)
@connection_option
@output_option
@verbose_option
def send(
    hub: str | None,
    texts: tuple[str, ...],
    key: str | None,
    partition: str | None,
    file: IO[bytes] | None,
    count: int | None,
    rate: float | None,
    properties: tuple[tuple[str, str], ...],
    connection: str | None,
    output: str,
) -> None:
    """Send events to HUB: each TEXT is one, or each line of FILE or stdin.

    HUB may be left out, if there is no TEXT either: then it is the EntityPath of the connection
    string. Empty lines are left out. Without --key and --partition the partitions take turns.
    """
    from pumphouse.cli.common.hub_connection import with_client

    if key is not None and partition is not None:
        raise click.UsageError("give --key or --partition, not both")
    if texts and file is not None:
        raise click.UsageError("give TEXT or --file, not both")
    if not texts and file is None and count is None:
        file = stdin()
    plan = SendPlan(texts, file, count, rate, key, partition, dict(properties))
    with console.progress("sending", plan.total, shown=plan.long) as advance:
        sent = with_client(connection, hub, lambda client: send_all(client, plan, advance))
    if output == "json":
        console.print_json({"sent": sent})
    else:
        print(f"sent {console.plural(sent, 'event')}")


def stdin() -> IO[bytes]:
    if sys.stdin.isatty():
        console.message("Each line you type is an event; Ctrl-D ends.")
    return sys.stdin.buffer


async def send_all(client: HubClient, plan: SendPlan, advance: Callable[[int], None]) -> int:
    """Send a whole plan; how many events the hub has taken."""
    sender = await client.sender(plan.partition)
    try:
        await send_pieces(sender, plan, RateLimiter(plan.rate, SystemClock()), advance)
    except PumphouseError as failed:
        if isinstance(failed, EventTooLarge) and not sender.accepted:
            # As the hub would have said it: the command itself was understood.
            raise click.ClickException(str(failed)) from None
        if not sender.accepted:
            raise
        before = console.plural(sender.accepted, "event")
        raise click.ClickException(f"{failed}; {before} had been sent before") from None
    return sender.accepted


async def send_pieces(
    sender: Sender, plan: SendPlan, limiter: RateLimiter, advance: Callable[[int], None]
) -> None:
    async with aclosing(bodies(plan)) as blocks:
        async for block in blocks:
            for piece in pieces(block, plan.piece):
                await limiter.wait(sender.accepted)
                events = map(plan.event, piece)
                advance(await sender.send(events, batch_events_max=plan.batch_events_max))


class RateLimiter:
    """Limits the average rate since the start: a delay is caught up."""

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self.rate = rate
        self.clock = clock
        self.since = clock.monotonic()

    async def wait(self, done: int) -> None:
        """Until the next event after `done` is due."""
        if self.rate is None:
            return
        early_s = done / self.rate - (self.clock.monotonic() - self.since)
        if early_s > 0:
            await self.clock.sleep(early_s)


async def bodies(plan: SendPlan) -> AsyncGenerator[list[bytes], None]:
    """What the events hold, in blocks."""
    if plan.file is None:
        for block in pieces(sample_bodies(plan.texts, plan.count), plan.piece):
            yield block
        return
    from pumphouse.cli.common.lines import read_lines

    left = sys.maxsize if plan.count is None else plan.count
    async with aclosing(read_lines(plan.file)) as blocks:
        async for block in blocks:
            yield block[:left]
            left -= len(block)
            if left <= 0:
                return


def sample_bodies(texts: Sequence[str], number: int | None) -> Iterator[bytes]:
    """The texts once, or over and over up to a number; without texts "event 1", "event 2" ..."""
    if not texts:
        return islice((b"event %d" % n for n in count(1)), number)
    encoded = [text.encode() for text in texts]
    return iter(encoded) if number is None else islice(cycle(encoded), number)


def pieces(bodies: Iterator[bytes] | list[bytes], size: int) -> Iterator[list[bytes]]:
    source = iter(bodies)
    while piece := list(islice(source, size)):
        yield piece
