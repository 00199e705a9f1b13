"""The program of one host of a `ProcessFleet`: a processor that reads events and drops them.

    python -m pumphouse.dashboard.monitors.host \\
        --name host-1 --hub sensors --group counters --face pull

It supports all three processor APIs. Connection string and store come from the environment. It ends
on SIGTERM, on Ctrl-C, or when its standard input closes because the parent process has ended.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from pumphouse.client.base import read_connection_string
from pumphouse.clock import SystemClock
from pumphouse.dashboard.monitors.host_processes import CONNECTION_VAR, FACES, STORE_VAR
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.health.host_checks import Host, health_checks
from pumphouse.processor.host import EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    CheckpointPolicy,
    EventProcessorOptions,
    PartitionManagerOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.telemetry import serve_metrics
from pumphouse.telemetry.health import CHECKS, READY, checking

BATCH = 500
CHECKPOINT = CheckpointPolicy(every_s=2.0)
STARTING = "start"

Handle = Callable[[Any, list[Event]], Awaitable[None]]


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--hub", default="")
    parser.add_argument("--group", default="$Default")
    parser.add_argument("--face", choices=FACES, default="pull")
    parser.add_argument("--lease", type=float, default=10.0)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--work-ms", type=float, default=0.0)
    parser.add_argument("--metrics", action="store_true")
    return parser.parse_args(arguments)


def make_handler(work_ms: float) -> Handle:
    """A handler that only waits: it simulates the work on a batch."""
    clock = SystemClock()

    async def handle(partition: Any, batch: list[Event]) -> None:
        if batch and work_ms:
            await clock.sleep(work_ms / 1000)

    return handle


async def run_pull(arguments: argparse.Namespace, handle: Handle, stop: asyncio.Event) -> None:
    options = ProcessorOptions(
        interval_s=arguments.lease / 3,
        lease_s=arguments.lease,
        renew_s=arguments.lease / 3,
        stop_s=arguments.lease / 2,
        batch_events_max=BATCH,
        checkpoints=CHECKPOINT,
    )
    processor = Processor(
        connection_of(arguments),
        arguments.group,
        store=open_shared_store(),
        host=arguments.name,
        options=options,
    )

    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            await handle(partition, batch)

    async with checked(processor), processor:
        await run_until(stop, processor.run(serve))


async def run_push(arguments: argparse.Namespace, handle: Handle, stop: asyncio.Event) -> None:
    class BatchHandler:
        async def open(self, context: PartitionContext) -> None: ...

        async def close(self, context: PartitionContext, reason: object) -> None: ...

        async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            await handle(context, messages)

        async def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    host = EventProcessorHost(
        arguments.name,
        connection_of(arguments),
        arguments.group,
        store=open_shared_store(),
        partition_manager_options=PartitionManagerOptions(arguments.lease, arguments.lease / 3),
    )
    options = EventProcessorOptions(
        max_batch_size=BATCH,
        prefetch_count=BATCH,
        checkpoints=CHECKPOINT,
    )
    async with checked(host):
        await host.register(BatchHandler, options)
        try:
            await run_until(stop, host.run())
        finally:
            await host.unregister()


async def run_fixed(arguments: argparse.Namespace, handle: Handle, stop: asyncio.Event) -> None:
    processor = FixedPartitionProcessor(
        connection_of(arguments),
        arguments.group,
        partitions=arguments.partitions,
        store=open_shared_store(),
        host=arguments.name,
        lease_s=arguments.lease,
        renew_s=arguments.lease / 3,
        max_batch_size=BATCH,
    )
    processor.on_batch(handle)
    async with checked(processor):
        await processor.start()
        try:
            await stop.wait()
        finally:
            await processor.stop()


@asynccontextmanager
async def checked(host: Host) -> AsyncIterator[None]:
    """Add the checks of the host to /livez and /readyz."""
    async with health_checks(host):
        CHECKS.remove(READY, STARTING)
        yield


RUNNERS = {"pull": run_pull, "push": run_push, "fixed": run_fixed}


async def run_until(stop: asyncio.Event, running: Awaitable[None]) -> None:
    """Wait until `stop` is set, or until `running` ends or fails."""
    tasks = [asyncio.ensure_future(running), asyncio.ensure_future(stop.wait())]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()


def connection_of(arguments: argparse.Namespace) -> Any:
    return read_connection_string(os.environ[CONNECTION_VAR], arguments.hub)


def open_shared_store() -> CheckpointStore:
    return open_store(os.environ[STORE_VAR])


async def run(arguments: argparse.Namespace) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, stop.set)
    # The parent never writes to stdin: it becomes readable only when the parent closes it.
    loop.add_reader(sys.stdin.fileno(), stop.set)
    try:
        await RUNNERS[arguments.face](arguments, make_handler(arguments.work_ms), stop)
    finally:
        loop.remove_reader(sys.stdin.fileno())


def main(arguments: argparse.Namespace) -> None:
    if not arguments.metrics:
        asyncio.run(run(arguments))
        return
    with (
        checking(READY, STARTING, lambda: "the host is starting"),
        serve_metrics(port=0) as server,
    ):
        sys.stdout.write(f"{server.port}\n")  # the parent reads it
        sys.stdout.flush()
        asyncio.run(run(arguments))


if __name__ == "__main__":
    main(read_arguments(sys.argv[1:]))
