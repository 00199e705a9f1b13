"""Adapters that run a simulated host with each API of the real processor.

pull       Processor: partition clients, a task for each
push       EventProcessorHost: a class; functions: the same host with two functions
fixed      FixedPartitionProcessor

Fleet -> open_adapter -> Processor | EventProcessorHost | FixedPartitionProcessor
         ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from pumphouse.client.base import HubClient
from pumphouse.clock import Clock
from pumphouse.errors import OptionError, OwnershipLost, PumphouseError
from pumphouse.events import Event
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.engine import Engine
from pumphouse.processor.fixed import FixedPartitionProcessor
from pumphouse.processor.host import CloseReason, EventProcessorHost, PartitionContext
from pumphouse.processor.options import (
    EventProcessorOptions,
    PartitionManagerOptions,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from pumphouse.simulation.handler import SimulatedHandler

FACES = ("pull", "push", "functions", "fixed")
BY_HAND = 0.2  # the share of batches that the handler checkpoints itself


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


async def checkpoint(parts: HostParts, by_hand: Any) -> None:
    """Checkpoint in the handler, for a share of the batches. A failure is only reported."""
    if parts.rng.random() < BY_HAND:
        parts.handler.checks.figures.by_hand += 1
        try:
            await by_hand()
        except OwnershipLost:
            raise
        except PumphouseError as failed:
            parts.report(None, failed)


class PullAdapter:
    """The pull API: a task for each claimed partition."""

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
        await self.engine.start()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                async for partition in self.processor.partitions():
                    tasks.create_task(self._serve(partition))
        except ExceptionGroup as failed:  # not raised by a handler: the host itself has failed
            self.parts.report(None, failed)

    async def _serve(self, partition: PartitionClient) -> None:
        """Report what the handler raises and end the loop: the partition is offered again."""
        with suppress(OwnershipLost):
            async with aclosing(partition.batches()) as batches:
                async for batch in batches:
                    try:
                        await self.parts.handler.handle(partition, batch)
                    except OwnershipLost:
                        return
                    except Exception as raised:
                        self.parts.handler.checks.figures.left_early += 1
                        return self.parts.report(partition.id, raised)
                    await checkpoint(self.parts, partition.checkpoint)

    async def stop(self) -> None:
        await self.processor.stop()
        self._task.cancel()
        await asyncio.wait([self._task])


class PushAdapter:
    """The push API: a class with open, process_events and close, or functions."""

    def __init__(self, parts: HostParts, *, functions: bool = False) -> None:
        self.parts, self.functions = parts, functions
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
            on_exception=lambda error: parts.report(error.partition, error.exception),
            poison=options.poison,
            checkpoints=options.checkpoints,
            handler_timeout_s=options.handler_timeout_s,
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
        await checkpoint(self.parts, context.checkpoint)

    async def open(self, context: PartitionContext) -> None:
        """Nothing to prepare."""

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """Nothing to clean up."""

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        await self.parts.handler.handle(context.partition, messages)
        await checkpoint(self.parts, context.checkpoint)

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        """Nothing to do: `on_exception` reports the error."""


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
        case "push":
            return PushAdapter(parts)
        case "functions":
            return PushAdapter(parts, functions=True)
        case "fixed":
            return FixedAdapter(parts, share)
    raise OptionError(f"unknown face {face!r}: use one of {', '.join(FACES)}")
