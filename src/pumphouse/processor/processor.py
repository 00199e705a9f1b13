"""Processor, the pull API: your code reads the batches of each partition that is claimed.

    async def serve(partition):
        async for batch in partition.batches():
            ...
            await partition.checkpoint()

    processor = Processor(connection, group="$Default", store=store)
    await processor.run(serve)                  # until cancelled or stopped

    Engine -> Processor.run(serve)       -> serve(PartitionClient), one task per partition
           -> Processor.run(handler=...) -> Handling -> handler(PartitionClient, events)
           -> Processor.partitions       -> PartitionClient -> your own tasks
              ^^^^^^^^^ this module

Checkpoint inside the loop: after its end, the partition may have another owner. If `serve`
raises, or returns early, only its partition is affected: the error is reported, and the partition
is served again after a back-off. With `partitions()` your own tasks have to take care of that.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import AsyncExitStack
from random import Random
from typing import Any, Self

from pumphouse.client.base import DEFAULT_GROUP
from pumphouse.clock import Clock
from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.strategies import Strategy
from pumphouse.option_names import named_options
from pumphouse.processor.checks.parts import check_connect, check_dead_letters, check_store
from pumphouse.processor.checks.values import check_function, check_name, check_options
from pumphouse.processor.dead_letters import DeadLetters
from pumphouse.processor.engine import Connect, Engine
from pumphouse.processor.handlers import Handler, Handling
from pumphouse.processor.handling.threads import CallbackThreads
from pumphouse.processor.hosting.environment import read_environment
from pumphouse.processor.options import ProcessorOptions
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.pump import Serve
from pumphouse.processor.reporting import OnError

__all__ = ["Engine", "PartitionClient", "Processor"]

ON_ERROR = "on_error"
OFFERED_MAX = 2000  # no hub has more partitions, so `put` never waits


@named_options()
class Processor:
    """A host that shares the partitions of a hub with others. Your code iterates over them."""

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
        check_connect("connect", connect, has_hub=True)
        check_store(store)
        check_name("group", group)
        check_name("host", host or "host")
        check_options("options", options, ProcessorOptions, "lease_s=60")
        if on_error is not None:
            check_function("on_error", on_error, "partition", "error")
        self._serve: Serve | None = None  # what `run` was called with
        self._consumed = asyncio.Event()  # `run(serve)` or `partitions` was called
        self._entered = False
        self._handling: Handling | None = None  # of run(handler=...)
        self._group = group
        self._on_error = on_error
        self._offered: asyncio.Queue[PartitionClient] = asyncio.Queue(OFFERED_MAX)
        self.engine = Engine(
            connect,
            self._offer,
            store=store,
            group=group,
            strategy=strategy,
            host=host,
            options=options,
            on_error=None if on_error is None else self._failed,
            clock=clock,
            rng=rng,
        )
        self._callbacks = CallbackThreads(self.engine.reporter, ON_ERROR)

    @classmethod
    def from_env(cls, *, environ: Mapping[str, str] | None = None, **more: Any) -> Self:
        """A processor of the hub, group and store that environment variables name.

        They are PUMPHOUSE_CONNECTION or EVENT_HUB_CONN_STR (or EVENT_HUB_HOSTNAME, with the
        identity of the machine), EVENT_HUB_NAME, PUMPHOUSE_GROUP, PUMPHOUSE_STORE, PUMPHOUSE_HOST
        and PUMPHOUSE_CA_FILE. `more` are arguments of the processor; they take precedence.
        """
        settings = read_environment(environ)
        settings.need_hub()
        if "store" not in more:
            options = more.get("options") or ProcessorOptions()
            more["store"] = settings.open_store(options.lease_s, "lease_s")
        return cls(settings.connect, **{"group": settings.group, "host": settings.host} | more)

    def __repr__(self) -> str:
        return repr(self.engine).replace("Engine", "Processor", 1)

    async def __aenter__(self) -> Self:
        await self.engine.start()
        self.engine.call_on_close(self._close)
        self._entered = True
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.engine.stop()

    @property
    def host(self) -> str:
        return self.engine.host

    @property
    def owned(self) -> tuple[str, ...]:
        """The partitions that this host owns now."""
        return self.engine.owned

    @property
    def settled(self) -> bool:
        return self.engine.settled

    async def run(
        self,
        serve: Serve | None = None,
        *,
        handler: Handler | None = None,
        dead_letters: DeadLetters | None = None,
    ) -> None:
        """Serve every partition that is ours with a call of `serve(partition)`.

        Runs until stopped; raises if the processor itself failed. If it is cancelled, it stops the
        processor first. It starts the processor, unless it is called inside `async with processor`.
        If `serve` raises, `on_error` is called and the partition is served again after a back-off,
        from its checkpoint; other partitions continue. OwnershipLost only ends its partition.

        With `handler` instead of `serve`, the processor reads the batches, and awaits
        `handler(partition, events)` with the events of each: a coroutine function, or a plain one,
        which runs in a thread. It applies the options `poison` and `concurrency`.

        Without both it waits: something else has to iterate over `partitions()`.
        """
        if serve is not None and handler is not None:
            raise OptionError("run() got serve and handler: give one of them")
        if (serve or handler) is not None and self.engine.ended:
            raise OptionError(f"{self.host} has stopped; make a new one to start again")
        if handler is not None:
            self._serve_with_handler(handler, dead_letters)
        if serve is not None:
            self._serve_with(serve)
        async with AsyncExitStack() as stack:
            if (serve or handler) is not None and not self._entered:
                await stack.enter_async_context(self)
            await self.engine.run()

    def _serve_with(self, serve: Serve) -> None:
        check_function("serve", serve, "partition")
        self._refuse_concurrency("run(serve)")
        self._consume(serve, serve)

    def _serve_with_handler(self, handler: Handler, dead_letters: DeadLetters | None) -> None:
        check_function("handler", handler, "partition", "events")
        check_dead_letters(dead_letters)
        handling = Handling(
            handler,
            self.engine.options,
            self.engine.reporter,
            dead_letters=dead_letters,
            group=self._group,
            host=self.host,
            rng=self.engine.rng,
        )
        self._consume(handling.serve, handler)
        self._handling = handling

    def _consume(self, serve: Serve, named: object) -> None:
        if self._consumed.is_set():
            raise OptionError(
                f"the partitions of {self.host} are served already: call run(serve) or "
                "partitions(), and only one of them"
            )
        self._serve = serve
        self.engine.reporter.name_handler(named)
        self._consumed.set()

    def _refuse_concurrency(self, api: str) -> None:
        if self.engine.options.key_order is not None:
            raise OptionError(
                f"{api} handles one batch at a time (got "
                f"concurrency={self.engine.options.concurrency!r}): use run(handler=...) with a "
                "function handler(partition, events)"
            )

    async def stop(self) -> None:
        """Finish the current batches, write checkpoints and release all partitions.

        It waits for handlers for at most `options.stop_s`.
        """
        await self.engine.stop()

    def pause(self, partition: str | None = None) -> None:
        """Deliver no more batches of one partition, or of all. The host keeps its leases."""
        self.engine.pause(partition)

    def resume(self, partition: str | None = None) -> None:
        """Deliver batches again. A partition that poison has stopped is started again."""
        self.engine.resume(partition)

    async def _close(self) -> None:
        self._callbacks.close()
        if self._handling is not None:
            await self._handling.close()

    async def _failed(self, partition: str | None, error: Exception) -> None:
        """Call `on_error`: a plain function runs in a thread and cannot block the event loop."""
        assert self._on_error is not None
        await self._callbacks.call(ON_ERROR, self._on_error, partition, error)

    async def _offer(self, partition: PartitionClient) -> None:
        if not await partition.wait_for(self._consumed):
            return
        if self._serve is not None:
            await coroutine_of(self._serve(partition))
        else:
            await self._offered.put(partition)
            await partition.wait_until_left()

    async def partitions(self) -> AsyncIterator[PartitionClient]:
        """Yield each partition when this host claims it, until the processor stops."""
        if self._serve is not None:
            raise OptionError(f"the partitions of {self.host} are served by run(serve) already")
        self._refuse_concurrency("partitions()")
        self._consumed.set()
        stopped = asyncio.ensure_future(self.engine.wait())
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


def coroutine_of(served: object) -> Awaitable[None]:
    """What `serve` has returned; OptionError if it is a plain function."""
    if not inspect.isawaitable(served):
        raise OptionError(
            f"serve(partition) returned {served!r}, which cannot be awaited: define it with "
            "`async def`"
        )
    return served
