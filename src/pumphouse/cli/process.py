"""`pumphouse process`: run your handler on the partitions this host gets."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import re
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    ParsedType,
    ca_file,
    connection_option,
    group_option,
    hub_option,
    lease_option,
    need_connection,
    output_option,
    parse_duration,
    store_option,
    strategy_option,
    verbose_option,
)
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Position, parse_position

if TYPE_CHECKING:
    from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions

RENEWALS_PER_LEASE = 3
SHOW_EVERY_S = 5.0


def read_every(text: str) -> CheckpointPolicy:
    """`100` events, `5s`, or both: `100,5s`."""
    from pumphouse.processor.options import CheckpointPolicy

    events, seconds = None, None
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word.isdecimal():
            events = int(word)
        elif re.match(r"\d", word):
            seconds = parse_duration(word)
        else:
            raise OptionError(f"{word!r} is no rhythm; write 100 (events), 5s, or 100,5s")
    return CheckpointPolicy(events, seconds)


CHECKPOINT_INTERVAL_TYPE = ParsedType("rhythm", read_every)
POSITION_TYPE = ParsedType("position", lambda text: parse_position(text, int(time.time() * 1000)))


@click.command()
@click.argument("handler", metavar="MODULE:HANDLER")
@hub_option
@group_option
@connection_option
@store_option
@lease_option
@strategy_option
@click.option(
    "--host", "host", default="", metavar="NAME", help="This host's name; made up unless given."
)
@click.option(
    "--checkpoint-every",
    "every",
    type=CHECKPOINT_INTERVAL_TYPE,
    default="1000,5s",
    show_default=True,
    help="Events, seconds or both.",
)
@click.option(
    "--from",
    "start",
    type=POSITION_TYPE,
    default=EARLIEST,
    show_default="earliest",
    help="Where a partition without a checkpoint starts.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Events per call, at the most.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Of a batch on which the handler raises.",
)
@click.option(
    "--dead-letter",
    metavar="FILE",
    help="Where events go that cannot be handled; otherwise their partition stops.",
)
@click.option(
    "--interval", type=DURATION_TYPE, help="Between two cycles; a third of the lease unless given."
)
@output_option
@verbose_option
def process(
    handler: str,
    hub: str | None,
    group: str,
    connection: str | None,
    store: str,
    lease_s: float,
    strategy: str,
    host: str,
    every: CheckpointPolicy,
    start: Position,
    batch: int,
    retries: int,
    dead_letter: str | None,
    interval: float | None,
    output: str,
) -> None:
    """Run the function HANDLER of MODULE on every partition this host gets, until Ctrl-C.

    It is called with a partition (`partition.id`) and a list of events, one call at a time per
    partition. A coroutine function is awaited; a plain one runs in a thread. Start the same command
    on more machines, with the same --store, and they share the partitions.
    """
    from pumphouse.processor.options import DEAD_LETTER, STOP, PoisonPolicy, ProcessorOptions

    options = ProcessorOptions(
        interval_s=interval or lease_s / RENEWALS_PER_LEASE,
        lease_s=lease_s,
        renew_s=lease_s / RENEWALS_PER_LEASE,
        batch_events_max=batch,
        start=start,
        checkpoints=every,
        poison=PoisonPolicy(retries=retries, then=DEAD_LETTER if dead_letter else STOP),
    )
    settings = ProcessSettings(
        need_connection(connection), hub or "", group, store, strategy, host, options, ca_file()
    )
    asyncio.run(run(settings, find_handler(handler), dead_letter, ProcessReporter(output)))


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """Which events, kept track of where, shared how."""

    connection: str = field(repr=False)
    hub: str
    group: str
    store: str = field(repr=False)
    strategy: str
    host: str
    options: ProcessorOptions
    ca_file: str | None = None


def find_handler(name: str) -> Any:
    """The function that MODULE:HANDLER means; modules of the current folder are found too."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise OptionError(f"{name!r} names no handler; write MODULE:HANDLER, such as app:handle")
    with here_first():
        try:
            found: Any = importlib.import_module(module)
        except ModuleNotFoundError as missing:
            if missing.name != module.partition(".")[0]:
                raise
            raise OptionError(f"there is no module {module!r} here or installed") from None
    for part in function.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise OptionError(f"module {module} has no function {function!r}")
    return found


@contextlib.contextmanager
def here_first() -> Iterator[None]:
    if "" not in sys.path:
        sys.path.insert(0, "")
    yield


async def run(
    settings: ProcessSettings, handler: Any, dead_letter: str | None, reporter: ProcessReporter
) -> None:
    from pumphouse.client.factory import open_client
    from pumphouse.leases.store_url import open_store
    from pumphouse.processor.dead_letters import DeadLetterFile
    from pumphouse.processor.engine import Engine
    from pumphouse.processor.handlers import Handling

    engine = Engine(
        lambda: open_client(settings.connection, settings.hub, ca_file=settings.ca_file),
        lambda partition: handling.serve(partition),
        store=open_store(settings.store),
        group=settings.group,
        strategy=settings.strategy,
        host=settings.host,
        options=settings.options,
        on_error=reporter.error,
        on_ownership=reporter.ownership,
    )
    letters = DeadLetterFile(dead_letter) if dead_letter else None

    async def counted(partition: Any, batch: Any) -> None:
        await call(handler, partition, batch)
        reporter.handled += len(batch)

    handling = Handling(
        counted,
        settings.options,
        engine.reporter,
        dead_letters=letters,
        group=settings.group,
        host=engine.host,
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await engine.start()
    reporter.say("started", host=engine.host, group=settings.group)
    try:
        await until_told(stop, engine.run(), reporter)
    finally:
        await engine.stop()
        await handling.close()
    reporter.say("stopped", host=engine.host, events=reporter.handled)


async def call(handler: Any, partition: Any, batch: Any) -> None:
    from pumphouse.processor.handlers import is_async

    if is_async(handler):
        await handler(partition, batch)
    else:
        await asyncio.to_thread(handler, partition, batch)


async def until_told(stop: asyncio.Event, running: Any, reporter: ProcessReporter) -> None:
    """Until a signal comes, or the engine fails; with a word now and then."""
    ended = asyncio.ensure_future(running)
    told = asyncio.ensure_future(stop.wait())
    try:
        while not (ended.done() or told.done()):
            await asyncio.wait(
                [ended, told], timeout=SHOW_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            reporter.progress()
        if ended.done():
            ended.result()
    finally:
        ended.cancel()
        told.cancel()


class ProcessReporter:
    """What the command says of what happens: words for people on stderr, JSON on stdout."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.handled = 0
        self._told = 0

    def say(self, word: str, **more: object) -> None:
        if self.output == "json":
            console.print_json({"event": word, **more})
        else:
            console.message("  ".join([word, *(f"{name} {value}" for name, value in more.items())]))

    def ownership(self, word: str, partition: str) -> None:
        if word in ("claimed", "lost", "released", "asked"):
            self.say(word, partition=partition)

    def error(self, partition: str | None, failed: Exception) -> None:
        place = {} if partition is None else {"partition": partition}
        self.say("error", **place, error=f"{type(failed).__name__}: {failed}")

    def progress(self) -> None:
        if self.handled != self._told:
            self._told = self.handled
            self.say("handled", events=self.handled)
