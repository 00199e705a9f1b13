"""User code for every API: a host whose handler, and whose checkpoints, a test defines once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    PartitionManagerOptions,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore

APIS = ("pull", "class", "functions", "fixed")
# `checkpoint(event or None)` of the current partition, and its events.
Handle = Callable[[Callable[..., Awaitable[None]], list[Event]], Awaitable[None]]
Errors = list[tuple[str | None, Exception]]
LEASE_S, RENEW_S = 30.0, 10.0


class HostOptions:
    """The settings that the tests vary, for every API."""

    def __init__(
        self,
        *,
        checkpoint_on_stop: bool = True,
        batch: int = 10,
        poison: PoisonPolicy | None = None,
        on_close: Handle | None = None,
        strategy: str = "steady",
        handler_timeout_s: float = 60.0,
        on_handler_timeout: str = "report",
        concurrency: int = 1,
    ) -> None:
        self.concurrency = concurrency  # of the push and fixed APIs
        self.handler_timeout_s, self.on_handler_timeout = handler_timeout_s, on_handler_timeout
        self.checkpoint_on_stop, self.batch = checkpoint_on_stop, batch
        self.poison = poison or PoisonPolicy()
        self.on_close, self.strategy = on_close, strategy


@asynccontextmanager
async def host_of(
    api: str,
    env: HubAndStore,
    store: CheckpointStore,
    handle: Handle,
    errors: Errors,
    name: str = "host-a",
    options: HostOptions | None = None,
) -> AsyncIterator[Any]:
    """A running host of one API; it is stopped at the end."""
    start = {"pull": pull, "class": push, "functions": functions, "fixed": fixed}[api]
    host = await start(env, store, handle, errors, name, options or HostOptions())
    try:
        yield host
    finally:
        await host.stop()


async def pull(
    env: HubAndStore,
    store: CheckpointStore,
    handle: Handle,
    errors: Errors,
    name: str,
    options: HostOptions,
) -> Any:
    async def serve(partition: PartitionClient) -> None:
        async for batch in partition.batches():
            await handle(partition.checkpoint, batch)

    processor = Processor(
        env.connection,
        store=store,
        host=name,
        strategy=options.strategy,
        options=ProcessorOptions(
            lease_s=LEASE_S,
            renew_s=RENEW_S,
            batch_events_max=options.batch,
            checkpoint_on_stop=options.checkpoint_on_stop,
        ),
        on_error=lambda partition, error: errors.append((partition, error)),
        clock=env.clock,
    )
    await processor.__aenter__()
    processor_task = asyncio.create_task(processor.run(serve))
    processor_task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return processor


def push_options(options: HostOptions, errors: Errors) -> EventProcessorOptions:
    return EventProcessorOptions(
        max_batch_size=options.batch,
        on_exception=lambda got: errors.append((got.partition, got.exception)),
        poison=options.poison,
        checkpoint_on_stop=options.checkpoint_on_stop,
        handler_timeout_s=options.handler_timeout_s,
        on_handler_timeout=options.on_handler_timeout,
        concurrency=options.concurrency,
    )


def new_host(
    env: HubAndStore, store: CheckpointStore, name: str, options: HostOptions
) -> EventProcessorHost:
    return EventProcessorHost(
        name,
        env.connection,
        store=store,
        strategy=options.strategy,
        partition_manager_options=PartitionManagerOptions(LEASE_S, RENEW_S),
        clock=env.clock,
    )


async def push(
    env: HubAndStore,
    store: CheckpointStore,
    handle: Handle,
    errors: Errors,
    name: str,
    options: HostOptions,
) -> Any:
    class Served:
        async def open(self, context: PartitionContext) -> None: ...

        async def close(self, context: PartitionContext, reason: CloseReason) -> None:
            if options.on_close is not None:
                await options.on_close(context.checkpoint, [])

        async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
            await handle(context.checkpoint, messages)

        async def process_error(self, context: PartitionContext, error: Exception) -> None: ...

    host = new_host(env, store, name, options)
    await host.register(Served, push_options(options, errors))
    return host


async def functions(
    env: HubAndStore,
    store: CheckpointStore,
    handle: Handle,
    errors: Errors,
    name: str,
    options: HostOptions,
) -> Any:
    async def on_message(context: PartitionContext, event: Event) -> None:
        await handle(context.checkpoint, [event])

    host = new_host(env, store, name, options)
    await host.start(on_message, None, push_options(options, errors))
    return host


async def fixed(
    env: HubAndStore,
    store: CheckpointStore,
    handle: Handle,
    errors: Errors,
    name: str,
    options: HostOptions,
) -> Any:
    processor = FixedPartitionProcessor(
        env.connection,
        partitions=len(env.partitions),
        store=store,
        host=name,
        should_checkpoint=False,
        checkpoint_on_stop=options.checkpoint_on_stop,
        lease_s=LEASE_S,
        renew_s=RENEW_S,
        max_batch_size=options.batch,
        poison=options.poison,
        handler_timeout_s=options.handler_timeout_s,
        on_handler_timeout=options.on_handler_timeout,
        concurrency=options.concurrency,
        clock=env.clock,
    )

    @processor.on_batch
    async def on_batch(partition: PartitionClient, batch: list[Event]) -> None:
        await handle(partition.checkpoint, batch)

    @processor.on_error
    async def on_error(partition: str | None, error: Exception) -> None:
        errors.append((partition, error))

    await processor.start()
    return processor
