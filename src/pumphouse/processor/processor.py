"""Processor, the pull API: it yields partition clients as they are claimed.

    async with Processor(connection, group="$Default", store=store) as processor:
        async for partition in processor.partitions():
            tasks.create_task(serve(partition))

    async def serve(partition):
        async for batch in partition.batches():
            ...
            await partition.checkpoint()

    Engine -> Processor.partitions -> PartitionClient -> your tasks
              ^^^^^^^^^ this module

Checkpoint inside the loop: once it has ended, the partition may have another owner. If a loop is
left early, or ends with an error, its partition is offered again after a back-off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random
from typing import Any, Self

from pumphouse.client.base import DEFAULT_GROUP
from pumphouse.clock import Clock
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.reporting import OnError

__all__ = ["Engine", "PartitionClient", "Processor"]

OFFERED_MAX = 2000  # no hub has more partitions, so `put` never waits


class Processor:
    """A host that shares the partitions of a hub with others, and hands you what it owns."""

    def __init__(
        self,
        connect: Connect,
        group: str = DEFAULT_GROUP,
        *,
        store: CheckpointStore,
        strategy: str | Strategy = "steady",
        host: str = "",
        options: ProcessorOptions | None = None,
        on_error: OnError | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._offered: asyncio.Queue[PartitionClient] = asyncio.Queue(OFFERED_MAX)
        self.engine = Engine(
            connect,
            self._offer,
            store=store,
            group=group,
            strategy=strategy,
            host=host,
            options=options,
            on_error=on_error,
            clock=clock,
            rng=rng,
        )

    def __repr__(self) -> str:
        return repr(self.engine).replace("Engine", "Processor", 1)

    async def __aenter__(self) -> Self:
        await self.engine.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.engine.stop()

    @property
    def host(self) -> str:
        return self.engine.host

    @property
    def owned(self) -> tuple[str, ...]:
        """The partitions that are ours now."""
        return self.engine.owned

    @property
    def settled(self) -> bool:
        return self.engine.settled

    async def run(self) -> None:
        """Until cancelled; raises if the processor itself failed."""
        await self.engine.run()

    async def stop(self) -> None:
        """Finish the batches in hand, checkpoint, release, leave. Bounded by `options.stop_s`."""
        await self.engine.stop()

    def pause(self, partition: str | None = None) -> None:
        """Hand out no more batches, of one partition or of all; what we own stays ours."""
        self.engine.pause(partition)

    def resume(self, partition: str | None = None) -> None:
        self.engine.resume(partition)

    async def _offer(self, partition: PartitionClient) -> None:
        await self._offered.put(partition)
        await partition.wait_until_left()

    async def partitions(self) -> AsyncIterator[PartitionClient]:
        """Partitions as they become ours; ends when the processor stops."""
        stopped = asyncio.ensure_future(self.engine.run())
        try:
            while (partition := await self._next(stopped)) is not None:
                if partition.reason is None:  # it may have ended while it was queued
                    yield partition
        finally:
            stopped.cancel()

    async def _next(self, stopped: asyncio.Future[None]) -> PartitionClient | None:
        offered = asyncio.ensure_future(self._offered.get())
        try:
            waits: list[asyncio.Future[Any]] = [offered, stopped]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if offered.done():
                return offered.result()
            stopped.result()
            return None
        finally:
            offered.cancel()
