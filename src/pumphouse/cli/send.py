"""`pumphouse send`: sends texts, the lines of a file, or generated events to a hub.

TEXT, FILE, stdin or --count -> bodies -> RateLimiter -> Sender
                                ^^^^^^^^^^^^^^^^^^^^^ this module
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
    FiniteRange,
    connection_option,
    output_option,
    verbose_option,
)
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AuthError, EventTooLarge, PumphouseError
from pumphouse.events import Event

if TYPE_CHECKING:
    from pumphouse.client.base import HubClient, Sender

CHUNK = 1000  # events passed to the sender at once, without --rate
CHUNKS_PER_S = 20  # with --rate: a steady flow at low cost
SINGLE = 100  # up to this number, events without key and partition are sent one by one
BATCH_MIN = 10  # events of a batch otherwise: with more than 100 partitions, a chunk skips some


@dataclass(frozen=True, slots=True)
class SendPlan:
    """The events to send. Without texts and file, `count` events are generated."""

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
    def chunk_size(self) -> int:
        return CHUNK if self.rate is None else max(1, int(self.rate / CHUNKS_PER_S))

    @property
    def is_spread(self) -> bool:
        """Whether the hub chooses the partitions: a batch goes to the next one in turn."""
        return self.key is None and self.partition is None

    def batch_events_max(self, events: int, partitions: int) -> int:
        """The size of a batch of a chunk, so that every partition gets the same share."""
        if not self.is_spread:
            return CHUNK
        return 1 if events <= SINGLE else max(BATCH_MIN, events // partitions)

    @property
    def total(self) -> int | None:
        """The number of events, if it is known."""
        return self.count if self.count is not None else len(self.texts) or None

    @property
    def is_long(self) -> bool:
        """Whether progress is shown: not for a few texts, and not for input from a terminal."""
        if self.file is not None:
            return not self.file.isatty()
        return self.rate is not None or (self.total or 0) > CHUNK


@click.command(short_help="Send events from the command line, a file or stdin.")
@click.argument("hub", required=False)
@click.argument("texts", nargs=-1, metavar="[TEXT]...")
@click.option("--key", help="Partition key: events with the same key go to the same partition.")
@click.option("--partition", "-p", metavar="N", help="Send to this partition.")
@click.option(
    "-f", "--file", type=click.File("rb"), help="File with one event per line; - is stdin."
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="Number of events: TEXT repeated, the first lines of FILE, or generated events.",
)
@click.option(
    "--rate",
    type=FiniteRange(min=0, min_open=True),
    help="Maximum number of events per second.",
)
@click.option(
    "--property",
    "properties",
    type=PROPERTY_TYPE,
    multiple=True,
    metavar="NAME=VALUE",
    help="Application property of every event; may be given several times.",
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
    """Send events to HUB: one per TEXT, or one per line of FILE or stdin.

    HUB can be omitted if there is no TEXT; it is then the EntityPath of the connection string.
    Empty lines are skipped. Without --key and --partition the partitions take turns.
    """
    from pumphouse.cli.common.hub_connection import advice_if_not_found, with_client

    if key is not None and partition is not None:
        raise click.UsageError("use --key or --partition, not both")
    if texts and file is not None:
        raise click.UsageError("use TEXT or --file, not both")
    if not texts and file is None and count is None:
        file = stdin()
    plan = SendPlan(texts, file, count, rate, key, partition, dict(properties))
    with (
        advice_if_not_found("check the name, or create the hub with `pumphouse hubs create`"),
        console.progress("sending", plan.total, shown=plan.is_long) as advance,
    ):
        sent = with_client(connection, hub, lambda client: send_all(client, plan, advance))
    if output == "json":
        console.print_json({"sent": sent})
    else:
        print(f"sent {console.plural(sent, 'event')}")


def stdin() -> IO[bytes]:
    if sys.stdin.isatty():
        console.message("Type one event per line; Ctrl-D ends the input.")
    return sys.stdin.buffer


async def send_all(client: HubClient, plan: SendPlan, advance: Callable[[int], None]) -> int:
    """Send all events of a plan; returns the number of accepted events."""
    sender = await client.sender(plan.partition)
    try:
        partitions = await count_partitions(client) if plan.is_spread else 1
        limiter = RateLimiter(plan.rate, SystemClock())
        await send_chunks(sender, plan, partitions, limiter, advance)
    except PumphouseError as error:
        if isinstance(error, EventTooLarge) and not sender.accepted:
            # Exit status 1, not 2: the command line is valid.
            raise click.ClickException(str(error)) from None
        if not sender.accepted:
            raise
        sent = console.plural(sender.accepted, "event")
        raise click.ClickException(f"{error}; {sent} sent before this error") from None
    return sender.accepted


async def count_partitions(client: HubClient) -> int:
    """The number of partitions; 1 if the key gives no right to ask for it."""
    try:
        return len((await client.properties()).partitions)
    except AuthError:
        return 1


async def send_chunks(
    sender: Sender,
    plan: SendPlan,
    partitions: int,
    limiter: RateLimiter,
    advance: Callable[[int], None],
) -> None:
    async with aclosing(bodies(plan)) as blocks:
        async for block in blocks:
            for chunk in chunks(block, plan.chunk_size):
                await limiter.wait(sender.accepted)
                events = map(plan.event, chunk)
                size = plan.batch_events_max(len(chunk), partitions)
                advance(await sender.send(events, batch_events_max=size))


class RateLimiter:
    """Limits the average rate since the start, so that a delay is caught up."""

    def __init__(self, rate: float | None, clock: Clock) -> None:
        self.rate = rate
        self.clock = clock
        self.since = clock.monotonic()

    async def wait(self, done: int) -> None:
        """Wait until the event after the first `done` events is due."""
        if self.rate is None:
            return
        early_s = done / self.rate - (self.clock.monotonic() - self.since)
        if early_s > 0:
            await self.clock.sleep(early_s)


async def bodies(plan: SendPlan) -> AsyncGenerator[list[bytes], None]:
    """The bodies of the events, in chunks."""
    if plan.file is None:
        for block in chunks(sample_bodies(plan.texts, plan.count), plan.chunk_size):
            yield block
        return
    from pumphouse.cli.common.lines import read_lines

    remaining = sys.maxsize if plan.count is None else plan.count
    async with aclosing(read_lines(plan.file)) as blocks:
        async for block in blocks:
            yield block[:remaining]
            remaining -= len(block)
            if remaining <= 0:
                return


def sample_bodies(texts: Sequence[str], number: int | None) -> Iterator[bytes]:
    """The texts, repeated up to a number; without texts "event 1", "event 2" and so on."""
    if not texts:
        return islice((b"event %d" % n for n in count(1)), number)
    encoded = [text.encode() for text in texts]
    return iter(encoded) if number is None else islice(cycle(encoded), number)


def chunks(bodies: Iterator[bytes] | list[bytes], size: int) -> Iterator[list[bytes]]:
    source = iter(bodies)
    while chunk := list(islice(source, size)):
        yield chunk
