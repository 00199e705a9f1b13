"""Adapters that run a simulated host with each API of the real processor.

pull       Processor.run(serve)
partitions Processor.partitions(): a task of the user for each partition client
handler    Processor.run(handler=...)
push       EventProcessorHost with a class
functions  EventProcessorHost with a function
fixed      FixedPartitionProcessor

Fleet -> open_adapter -> Processor | EventProcessorHost | FixedPartitionProcessor
         ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Protocol

from pumphouse.client.base import HubClient
from pumphouse.clock import Clock
from pumphouse.errors import OptionError, OwnershipLost
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    ExceptionReceived,
    PartitionManagerOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.simulation.handler import SimulatedHandler

# The APIs, as in the table above. A scenario has one in its field `face`.
FACES = ("pull", "push", "functions", "fixed", "partitions", "handler")
PULL = ("pull", "partitions")  # without a poison policy
LATE_SHARE, LATE_S_MAX = 0.1, 5.0  # of the tasks for a partition, and how late they start
MANUAL_SHARE = 0.2  # share of the batches whose checkpoint the handler writes itself
CALLBACK_SHARE = 0.5  # share of calls of `close` and `process_error` that checkpoint


@dataclass(frozen=True, slots=True)
class HostParts:
    """What every adapter is made of."""

    name: str
    connect: Callable[[], HubClient]
    store: CheckpointStore
    strategy: str | Strategy
    options: ProcessorOptions
    clock: Clock
    rng: Random
    handler: SimulatedHandler
    report: Callable[[str | None, Exception], None]


class HostAdapter(Protocol):
    """A host that can be started and stopped; `engine` exists while it runs."""

    @property
    def engine(self) -> Engine: ...

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


async def checkpoint_some(
    parts: HostParts, partition: PartitionClient, share: float = MANUAL_SHARE
) -> None:
    """Checkpoint as user code does, for a share of the calls."""
    if parts.rng.random() >= share:
        return
    checks = parts.handler.checks
    checks.figures.by_hand += 1
    try:
        await partition.checkpoint()
    except OwnershipLost:
        raise
    except Exception as failed:
        checks.checkpoint_raised(parts.handler.process, partition.id, failed)
        raise


class PullAdapter:
    """The pull API: a function that is called for each claimed partition."""

    def __init__(self, parts: HostParts) -> None:
        self.parts = parts
        parts.handler.has_poison_policy = False
        self.processor = Processor(
            parts.connect,
            store=parts.store,
            strategy=parts.strategy,
            host=parts.name,
            options=parts.options,
            on_error=parts.report,
            clock=parts.clock,
            rng=parts.rng,
        )

    @property
    def engine(self) -> Engine:
        return self.processor.engine

    async def start(self) -> None:
        await self.processor.__aenter__()
        self._task = asyncio.create_task(self.processor.run(self._serve))

    async def _serve(self, partition: PartitionClient) -> None:
        """A loop that checkpoints at its end too, however it ends."""
        in_user_code = False
        try:
            async for batch in partition.batches():
                in_user_code = True
                await self.parts.handler.handle(partition, batch)
                await checkpoint_some(self.parts, partition)
                in_user_code = False
        except Exception as failed:
            if not in_user_code:  # the host itself has failed
                self.parts.report(None, ExceptionGroup("batches", [failed]))
            self.parts.handler.checks.loop_left(self.parts.handler.process, partition.id)
            raise
        finally:
            with suppress(OwnershipLost):
                await checkpoint_some(self.parts, partition, CALLBACK_SHARE)

    async def stop(self) -> None:
        await self.processor.stop()
        self._task.cancel()
        await asyncio.wait([self._task])


class PartitionsAdapter(PullAdapter):
    """The pull API with tasks of the user, who handles their exceptions."""

    async def start(self) -> None:
        await self.processor.__aenter__()
        self._task = asyncio.create_task(self._iterate())

    async def _iterate(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            async for partition in self.processor.partitions():
                tasks.create_task(self._serve_safely(partition))

    async def _serve_safely(self, partition: PartitionClient) -> None:
        if self.parts.rng.random() < LATE_SHARE:
            await asyncio.sleep(self.parts.rng.uniform(0, LATE_S_MAX))
        try:
            await self._serve(partition)
        except OwnershipLost:
            pass
        except Exception as failed:
            self.parts.report(partition.id, failed)


class HandlerAdapter(PullAdapter):
    """The pull API with a handler that the processor calls."""

    def __init__(self, parts: HostParts) -> None:
        super().__init__(parts)
        parts.handler.has_poison_policy = True

    async def start(self) -> None:
        await self.processor.__aenter__()
        self._task = asyncio.create_task(self.processor.run(handler=self._handle))

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        """A handler that checkpoints at its end too, however it ends."""
        try:
            await self.parts.handler.handle(partition, batch)
            await checkpoint_some(self.parts, partition)
        finally:
            with suppress(OwnershipLost):
                await checkpoint_some(self.parts, partition, CALLBACK_SHARE)


class PushAdapter:
    """The push API: a class with open, process_events and close, or functions."""

    def __init__(self, parts: HostParts, *, functions: bool = False) -> None:
        self.parts, self.functions = parts, functions
        self._reported: list[Exception] = []  # by `process_error`; `on_exception` follows
        options = parts.options
        self.host = EventProcessorHost(
            parts.name,
            parts.connect,
            store=parts.store,
            strategy=parts.strategy,
            partition_manager_options=PartitionManagerOptions(options.lease_s, options.renew_s),
            clock=parts.clock,
            rng=parts.rng,
        )
        self.options = EventProcessorOptions(
            on_exception=self._report_once,
            poison=options.poison,
            checkpoints=options.checkpoints,
            handler_timeout_s=options.handler_timeout_s,
            concurrency=options.concurrency,
        )

    @property
    def engine(self) -> Engine:
        assert self.host.engine is not None
        return self.host.engine

    async def start(self) -> None:
        if self.functions:
            await self.host.start(self.on_message, options=self.options)
        else:
            await self.host.register(lambda: self, self.options)

    async def stop(self) -> None:
        await self.host.unregister()

    async def on_message(self, context: PartitionContext, event: Event) -> None:
        await self.parts.handler.handle(context.partition, [event])
        await checkpoint_some(self.parts, context.partition)

    async def open(self, context: PartitionContext) -> None:
        """Nothing to prepare."""

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        with suppress(OwnershipLost):
            await checkpoint_some(self.parts, context.partition, CALLBACK_SHARE)

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        await self.parts.handler.handle(context.partition, messages)
        await checkpoint_some(self.parts, context.partition)

    def _report_once(self, received: ExceptionReceived) -> None:
        if received.exception in self._reported:
            self._reported.remove(received.exception)
        else:
            self.parts.report(received.partition, received.exception)

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        """Report the error here: `on_exception` waits for this method, which may checkpoint."""
        self._reported.append(error)
        self.parts.report(context.partition_id, error)
        with suppress(OwnershipLost):
            await checkpoint_some(self.parts, context.partition, CALLBACK_SHARE)


class FixedAdapter:
    """The fixed API: a constant number of partitions."""

    def __init__(self, parts: HostParts, partitions: int) -> None:
        self.parts = parts
        self.processor = FixedPartitionProcessor(
            parts.connect,
            partitions=partitions,
            store=parts.store,
            host=parts.name,
            lease_s=parts.options.lease_s,
            renew_s=parts.options.renew_s,
            poison=parts.options.poison,
            should_checkpoint=parts.options.checkpoints.on,
            checkpoint_on_stop=parts.options.checkpoint_on_stop,
            concurrency=parts.options.concurrency,
            clock=parts.clock,
            rng=parts.rng,
        )
        self.processor.on_batch(self._handle)
        self.processor.on_error(self._failed)

    @property
    def engine(self) -> Engine:
        return self.processor.engine

    async def _handle(self, partition: PartitionClient, batch: list[Event]) -> None:
        await self.parts.handler.handle(partition, batch)
        await checkpoint_some(self.parts, partition)

    async def _failed(self, partition: str | None, failed: Exception) -> None:
        self.parts.report(partition, failed)

    async def start(self) -> None:
        await self.processor.start()

    async def stop(self) -> None:
        await self.processor.stop()


def open_adapter(face: str, parts: HostParts, share: int) -> HostAdapter:
    """The adapter for one API. `share` is the number of partitions of a fixed host."""
    match face:
        case "pull":
            return PullAdapter(parts)
        case "partitions":
            return PartitionsAdapter(parts)
        case "handler":
            return HandlerAdapter(parts)
        case "push":
            return PushAdapter(parts)
        case "functions":
            return PushAdapter(parts, functions=True)
        case "fixed":
            return FixedAdapter(parts, share)
    raise OptionError(f"invalid processor API {face!r}: use one of {', '.join(FACES)}")
