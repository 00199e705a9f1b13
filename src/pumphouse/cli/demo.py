"""`pumphouse demo`: a hub, the official Azure client sending and reading, and what it comes to.

Until the pipeline of homes is there, this is the demonstration: real events through the real
client, at a rate that leaves a laptop cool.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.options import DURATION_FORM, verbose_option
from pumphouse.cli.up import show_address, stop_on_signal
from pumphouse.clock import SystemClock

if TYPE_CHECKING:
    from pumphouse.cli.traffic import Meter

HUB = "sensors"
SETTLE_S = 5.0  # after the last event was sent: time for it to be read
LOOK_S = 0.05
STOP_S = 2.0


@dataclass(frozen=True, slots=True)
class Sample:
    """One second of traffic."""

    at_s: float
    sent: int
    received: int
    total: int
    lag: int

    def __str__(self) -> str:
        rates = f"in {self.sent:>7,}/s   out {self.received:>7,}/s"
        return f"{self.at_s:>6.0f} s   {rates}   total {self.total:>11,}   lag {self.lag:>7,}"


@click.command()
@click.option(
    "--rate",
    type=click.FloatRange(min=1, max=20_000),
    default=2000,
    show_default=True,
    help="Events a second to send. One Python process sends and reads about ten thousand.",
)
@click.option("--duration", type=DURATION_FORM, help="Stop after so long (20s, 5m); else Ctrl-C.")
@click.option("--partitions", type=click.IntRange(1, 32), default=16, show_default=True)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default=True,
    help="Port of the hub; 0 picks a free one.",
)
@verbose_option
def demo(rate: float, duration: float | None, partitions: int, port: int) -> None:
    """Send and read events with the official Azure client, and show the rates.

    Needs the extra `azure`. Ctrl-C stops it.
    """
    try:
        from pumphouse.cli import traffic
    except ImportError as missing:
        raise click.ClickException(
            f"the demo needs the official Azure client ({missing.name} is missing): "
            "pip install 'pumphouse[azure]'"
        ) from None
    from pumphouse.hub.embedded import EmbeddedHub

    traffic.quieten()
    meter = traffic.Meter()

    async def run() -> None:
        with stop_on_signal() as stop:
            async with EmbeddedHub({HUB: partitions}, port=port) as hub:
                show_address(hub)
                print("Ctrl-C stops it.", flush=True)
                connection = hub.connection_string(HUB)
                sending = traffic.produce(connection, rate, meter, SystemClock(), Random())
                reading = traffic.consume(connection, meter)
                await watch(sending, reading, meter, stop, duration)

    asyncio.run(run())
    print(f"sent {meter.sent:,} events, read {meter.received:,}")


async def watch(
    sending: Coroutine[Any, Any, None],
    reading: Coroutine[Any, Any, None],
    meter: Meter,
    stop: asyncio.Event,
    duration_s: float | None,
) -> None:
    """Run both sides until it is time, or somebody says so, or one of them fails."""
    tasks = [asyncio.create_task(side) for side in (sending, reading)]
    try:
        await report(meter, stop, duration_s, tasks)
        # What is under way is counted before the end, or more would have come out than went in.
        meter.open = False
        await asyncio.wait(tasks[:1], timeout=STOP_S / 2)
        await settle(meter, 0.0 if stop.is_set() else SETTLE_S)
    finally:
        for task in tasks:
            task.cancel()
        # Not a task group: the official client may take its time, and Ctrl-C is to be quick.
        await asyncio.wait(tasks, timeout=STOP_S)
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


async def report(
    meter: Meter, stop: asyncio.Event, duration_s: float | None, tasks: list[asyncio.Task[None]]
) -> None:
    """Show a sample a second."""
    loop = asyncio.get_running_loop()
    start, sent, received = loop.time(), 0, 0
    with samples() as show:
        while not stop.is_set() and not any(task.done() for task in tasks):
            if duration_s is not None and loop.time() - start >= duration_s:
                return
            await wait_a_second(stop)
            new = Sample(
                loop.time() - start,
                meter.sent - sent,
                meter.received - received,
                meter.received,
                meter.lag,
            )
            show(new)
            sent, received = meter.sent, meter.received


async def wait_a_second(stop: asyncio.Event) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            await stop.wait()


@contextmanager
def samples() -> Iterator[Callable[[Sample], None]]:
    """Lines that stay when piped; on a terminal one line that is written over."""
    if not sys.stdout.isatty():
        yield lambda sample: print(sample, flush=True)
        return
    yield lambda sample: print(f"\r\x1b[2K{sample}", end="", flush=True)
    print()


async def settle(meter: Meter, seconds: float) -> None:
    """Let the readers catch up, for a while."""
    for _ in range(int(seconds / LOOK_S)):
        if not meter.lag:
            return
        await asyncio.sleep(LOOK_S)
