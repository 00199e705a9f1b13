"""A handler that waits, and a processor that runs it for several keys at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Self

from pumphouse.clock import Clock
from pumphouse.errors import HandlerStuck
from pumphouse.events import Event
from pumphouse.processor.options import (
    CheckpointPolicy,
    PoisonPolicy,
    ProcessorOptions,
)
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.processor import Processor
from tests.processor.support.hub_and_store import HubAndStore

N = 4
EACH = CheckpointPolicy(every_events=1)
OPTIONS = ProcessorOptions(concurrency=N, checkpoints=EACH, poison=PoisonPolicy(retries=0))


class Handler:
    """Waits for a second with each event, or until its key is released."""

    def __init__(self) -> None:
        self.handled: list[tuple[str | None, int]] = []
        self.running: Counter[str | None] = Counter()
        self.most = 0
        self.held: dict[str | None, asyncio.Event] = {}
        self.bad: set[str | None] = set()
        self.empty_calls = 0

    async def __call__(self, partition: PartitionClient, events: list[Event]) -> None:
        self.empty_calls += not events
        for event in events:
            await self.handle(event)

    async def handle(self, event: Event) -> None:
        key = event.partition_key
        self.running[key] += 1
        self.most = max(self.most, self.running.total())
        assert key is None or self.running[key] == 1
        try:
            await asyncio.sleep(1)
            if key in self.held:
                await self.held[key].wait()
            if key in self.bad:
                raise ValueError("it is bad")
            self.handled.append((key, event.sequence or 0))
        finally:
            self.running[key] -= 1

    def hold(self, key: str) -> asyncio.Event:
        self.held[key] = asyncio.Event()
        return self.held[key]

    def sequences(self) -> list[int]:
        return [sequence for _, sequence in self.handled]

    def check_order(self) -> None:
        for key in {key for key, _ in self.handled if key is not None}:
            of_key = [sequence for each, sequence in self.handled if each == key]
            assert of_key == sorted(of_key)


class Env(HubAndStore):
    """One partition, events with keys, and the errors of all hosts."""

    def __init__(self) -> None:
        super().__init__(1)
        self.errors: list[Exception] = []

    async def send_keys(self, keys: str) -> None:
        """An event for each letter; one without a key for each dash."""
        sender = await self.client.sender()
        for key in keys:
            await sender.send([Event(b"", {}, None if key == "-" else key)])
        await sender.close()

    def host(
        self, handler: Any, options: ProcessorOptions = OPTIONS, *, name: str = "a", **more: Any
    ) -> RunningProcessor:
        return RunningProcessor(self, handler, options, name, **more)

    def failed(self, partition: str | None, error: Exception) -> None:
        self.errors.append(error)

    async def state(self) -> str:
        return (await self.store.list_ownership(self.group)).ownerships[0].state


class RunningProcessor:
    """A Processor that runs a handler in the background."""

    def __init__(
        self,
        env: Env,
        handler: Any,
        options: ProcessorOptions,
        name: str,
        clock: Clock | None = None,
        **more: Any,
    ) -> None:
        self.processor = Processor(
            env.connection,
            store=env.store,
            host=name,
            options=options,
            clock=clock or env.clock,
            on_error=env.failed,
        )
        self._handler, self._more = handler, more

    async def __aenter__(self) -> Self:
        await self.processor.__aenter__()
        self._running = asyncio.create_task(self.processor.run(handler=self._handler, **self._more))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.processor.stop()
        await self._running

    @property
    def client(self) -> PartitionClient:
        client = self.processor.engine._supervisors["0"].client
        assert client is not None
        return client


def stuck_at(errors: list[Exception]) -> list[int | None]:
    """The last events of the handlers that were reported as stuck."""
    return [error.sequence for error in errors if isinstance(error, HandlerStuck)]
