"""`pumphouse process`: runs a handler on the partitions that this host owns."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pumphouse.cli.common import console
from pumphouse.cli.common.metrics import (
    HOST,
    checking_host,
    not_ready_without,
    serving_health,
    serving_metrics,
)
from pumphouse.cli.common.options import (
    DURATION_TYPE,
    POSITION_TYPE,
    ParsedType,
    ca_file,
    connection_option,
    group_option,
    health_option,
    hub_option,
    lease_option,
    metrics_option,
    need_connection,
    output_option,
    parse_duration,
    store_option,
    strategy_option,
    verbose_option,
)
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position
from pumphouse.telemetry.health import checking_loop

if TYPE_CHECKING:
    from pumphouse.leases.strategies import Strategy
    from pumphouse.processor.options import CheckpointPolicy, ProcessorOptions

RENEWALS_PER_LEASE = 3
LEASE_S_MIN = 1.0
REPORT_EVERY_S = 5.0


def parse_checkpoint_interval(text: str) -> CheckpointPolicy:
    """A number of events, seconds or both: 100, 5s or 100,5s."""
    from pumphouse.processor.options import CheckpointPolicy

    events, seconds = None, None
    for word in filter(None, (word.strip() for word in text.split(","))):
        if word.isdecimal():
            events = int(word)
        elif re.match(r"\d", word):
            seconds = parse_duration(word)
        else:
            raise OptionError(f"invalid checkpoint interval {word!r}: use 100, 5s or 100,5s")
    return CheckpointPolicy(events, seconds)


CHECKPOINT_INTERVAL_TYPE = ParsedType("interval", parse_checkpoint_interval)


@click.command(short_help="Call your function with the events of a hub.")
@click.argument("handler", metavar="MODULE:HANDLER")
@hub_option
@group_option
@connection_option
@store_option
@lease_option(
    "Lease duration of this host; use the same for all hosts of the group. Another host can claim "
    "a partition whose lease this host has not renewed for this time."
)
@strategy_option
@click.option(
    "--host", "host", default="", metavar="NAME", help="Name of this host; random by default."
)
@click.option(
    "--checkpoint-every",
    "every",
    type=CHECKPOINT_INTERVAL_TYPE,
    default="1000,5s",
    show_default=True,
    help="Checkpoint interval: events, seconds or both.",
)
@click.option(
    "--from",
    "start",
    type=POSITION_TYPE,
    default=EARLIEST,
    show_default="earliest",
    help="Start position of a partition without a checkpoint.",
)
@click.option(
    "--batch",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Maximum number of events per call.",
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Maximum number of calls at once for each partition. Above 1, a call gets events of one "
    "partition key, in order.",
)
@click.option(
    "--retries",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Retries of a batch after the handler raises.",
)
@click.option(
    "--dead-letter",
    metavar="FILE",
    help="File for events that the handler cannot process; without it their partition stops.",
)
@click.option(
    "--interval",
    type=DURATION_TYPE,
    help="Interval at which the host lists owners and claims partitions; by default a third of the "
    "lease, and about a second with fixed:N, which claims one partition per interval.",
)
@click.option(
    "--max-partitions",
    type=click.IntRange(1),
    metavar="N",
    help="Maximum number of partitions that this host owns; no limit by default.",
)
@click.option(
    "--handler-threads",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Maximum number of threads for a plain function.",
)
@click.option(
    "--handler-timeout",
    type=DURATION_TYPE,
    default="60s",
    show_default=True,
    help="Report a call of the handler that takes longer.",
)
@click.option(
    "--on-handler-timeout",
    type=click.Choice(["report", "cancel", "give-up"]),
    default="report",
    show_default=True,
    help="What happens after the report of --handler-timeout: nothing more, cancel a coroutine and "
    "retry its batch, or give the partition up to another host.",
)
@click.option(
    "--stop-timeout",
    type=DURATION_TYPE,
    default="30s",
    show_default=True,
    help="How long a stop waits for the handler. Calls that still run after it are abandoned, and "
    "the leases of their partitions expire.",
)
@metrics_option
@health_option
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
    concurrency: int,
    retries: int,
    dead_letter: str | None,
    interval: float | None,
    max_partitions: int | None,
    handler_threads: int,
    handler_timeout: float,
    on_handler_timeout: str,
    stop_timeout: float,
    metrics_port: int | None,
    metrics_host: str,
    health_port: int | None,
    output: str,
) -> None:
    """Run the function HANDLER of MODULE on every partition of this host, until Ctrl-C.

    The handler is called with a partition (`partition.id`) and a list of events, one call at a time
    per partition, or per partition key with --concurrency. A coroutine function is awaited; a plain
    function runs in a thread. Hosts that run the same command with the same --store share the
    partitions.
    """
    from pumphouse.processor.options import DEAD_LETTER, STOP, PoisonPolicy, ProcessorOptions

    if dead_letter:
        check_dead_letter_file(Path(dead_letter))
    chosen = paced_strategy(strategy)
    check_times(interval, lease_s)
    options = ProcessorOptions(
        interval_s=interval or default_interval_s(chosen, lease_s),
        max_partitions=max_partitions,
        lease_s=lease_s,
        renew_s=lease_s / RENEWALS_PER_LEASE,
        batch_events_max=batch,
        start=start,
        checkpoints=every,
        poison=PoisonPolicy(retries=retries, then=DEAD_LETTER if dead_letter else STOP),
        handler_threads=handler_threads,
        concurrency=concurrency,
        handler_timeout_s=handler_timeout,
        on_handler_timeout=on_handler_timeout,
        stop_s=stop_timeout,
    )
    settings = ProcessSettings(
        need_connection(connection), hub or "", group, store, chosen, host, options, ca_file()
    )
    reporter, function = ProcessReporter(output), find_handler(handler)
    with (
        not_ready_without(HOST),
        serving_metrics(metrics_port, metrics_host) as metrics,
        serving_health(health_port, metrics_host) as health,
    ):
        if metrics is not None:
            reporter.report("metrics", address=f"{metrics.address}/metrics")
        if health is not None:
            reporter.report("health", address=health.address)
        asyncio.run(run(settings, function, dead_letter, reporter))


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """The hub, the store and the options of the processor."""

    connection: str = field(repr=False)
    hub: str
    group: str
    store: str = field(repr=False)
    strategy: Strategy
    host: str
    options: ProcessorOptions
    ca_file: str | None = None


def check_times(interval_s: float | None, lease_s: float) -> None:
    """OptionError if leases expire faster than this host can follow."""
    if lease_s < LEASE_S_MIN:
        raise OptionError(f"--lease must be at least {LEASE_S_MIN:g}s (got {lease_s:g}s)")
    if interval_s is not None and interval_s > lease_s:
        raise OptionError(
            f"--interval must be at most --lease (got {interval_s:g}s and {lease_s:g}s): a host "
            "that looks more rarely leaves the partitions of a dead host without an owner"
        )


def paced_strategy(text: str) -> Strategy:
    """The strategy; fixed:N claims one partition per interval, as FixedPartitionProcessor does."""
    from pumphouse.leases.strategies import fixed, parse_strategy

    strategy = parse_strategy(text)
    return strategy if strategy.yields else fixed(strategy.max_partitions or 1, paced=True)


def default_interval_s(strategy: Strategy, lease_s: float) -> float:
    from pumphouse.processor.options import ASSIGN_EVERY_S

    third_s = lease_s / RENEWALS_PER_LEASE
    return third_s if strategy.yields else min(third_s, ASSIGN_EVERY_S)


def check_dead_letter_file(path: Path) -> None:
    """OptionError if the file cannot be written. It is created with the first dead letter."""
    if path.is_dir():
        raise OptionError(f"cannot write dead letters to {path}: it is a folder")
    if not path.parent.is_dir():
        raise OptionError(
            f"cannot write dead letters to {path}: the folder {path.parent} does not exist"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OptionError(f"cannot write dead letters to {path}: permission denied")


def find_handler(name: str) -> Any:
    """Import the function MODULE:HANDLER, also from the current folder."""
    from pumphouse.processor.checks.values import check_function

    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise OptionError(f"invalid handler {name!r}: use MODULE:HANDLER, such as app:handle")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        target: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise OptionError(
            f"module {module!r} not found: run the command in the folder of the module, or install "
            "it"
        ) from None
    for part in function.split("."):
        target = getattr(target, part, None)
    if not callable(target):
        raise OptionError(
            f"module {module} has no function {function!r}: use MODULE:HANDLER with the name of a "
            "function in MODULE"
        )
    check_function("HANDLER", target, "partition", "events")
    return target


async def run(
    settings: ProcessSettings, handler: Any, dead_letter: str | None, reporter: ProcessReporter
) -> None:
    from pumphouse.cli.up import stop_on_signal
    from pumphouse.client.factory import open_client
    from pumphouse.leases.store_url import open_store_of_host
    from pumphouse.processor.dead_letters import DeadLetterFile
    from pumphouse.processor.engine import Engine
    from pumphouse.processor.handlers import Handling

    engine = Engine(
        lambda: open_client(settings.connection, settings.hub, ca_file=settings.ca_file),
        lambda partition: handling.serve(partition),
        store=open_store_of_host(settings.store, settings.options.lease_s, "--lease"),
        group=settings.group,
        strategy=settings.strategy,
        host=settings.host,
        options=settings.options,
        on_error=reporter.report_error,
        on_ownership=reporter.report_ownership,
    )
    dead_letters = DeadLetterFile(dead_letter) if dead_letter else None

    handling = Handling(
        counted(handler, reporter),
        settings.options,
        engine.reporter,
        dead_letters=dead_letters,
        group=settings.group,
        host=engine.host,
    )
    engine.reporter.name_handler(handler)
    with stop_on_signal() as stop, checking_loop(), checking_host(engine):
        await engine.start()
        engine.call_on_close(handling.close)
        reporter.report("started", host=engine.host, group=settings.group)
        try:
            await run_until(stop, engine.run(), reporter)
        finally:
            await engine.stop()
        reporter.report("stopped", host=engine.host, events=reporter.handled)


def counted(handler: Any, reporter: ProcessReporter) -> Any:
    """A function that calls the handler and counts its events; plain if the handler is plain."""
    from pumphouse.processor.handling.threads import finish, is_async

    async def finish_and_count(result: object, events: int) -> None:
        await finish(result)
        reporter.count(events)

    def handle_plain(partition: Any, batch: list[Event]) -> Any:
        events = len(batch)
        result = handler(partition, batch)
        if result is not None:
            return finish_and_count(result, events)
        reporter.count(events)
        return None

    async def handle(partition: Any, batch: list[Event]) -> None:
        await finish_and_count(await handler(partition, batch), events=len(batch))

    return handle if is_async(handler) else handle_plain


async def run_until(stop: asyncio.Event, engine: Any, reporter: ProcessReporter) -> None:
    """Run the engine until it fails or `stop` is set; report progress every few seconds."""
    running = asyncio.ensure_future(engine)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        while not (running.done() or stopping.done()):
            await asyncio.wait(
                [running, stopping], timeout=REPORT_EVERY_S, return_when=asyncio.FIRST_COMPLETED
            )
            reporter.report_progress()
        if running.done():
            running.result()
    finally:
        running.cancel()
        stopping.cancel()


class ProcessReporter:
    """Reports what happens: text on stderr, or JSON on stdout."""

    def __init__(self, output: str) -> None:
        self.output = output
        self.handled = 0
        self._reported = 0
        self._counting = threading.Lock()  # plain handlers run in several threads

    def count(self, events: int) -> None:
        """Events were handled. Called in the threads of handlers too."""
        with self._counting:
            self.handled += events

    def report(self, event: str, **fields: object) -> None:
        if self.output == "json":
            console.print_json({"event": event, **fields})
        else:
            texts = (f"{name} {value}" for name, value in fields.items())
            console.message("  ".join([event, *texts]))

    def report_ownership(self, change: str, partition: str) -> None:
        if change not in ("claimed", "lost", "released", "asked"):
            return
        if change == "asked" and self.output != "json":
            change = "requested by another host"
        self.report(change, partition=partition)

    def report_error(self, partition: str | None, error: Exception) -> None:
        """Print an error for programs. The log on stderr, which people read, already has it."""
        if self.output != "json":
            return
        fields = {} if partition is None else {"partition": partition}
        self.report("error", **fields, error=f"{type(error).__name__}: {error}")

    def report_progress(self) -> None:
        if self.handled != self._reported:
            self._reported = self.handled
            self.report("handled", events=self.handled)
