"""Clients of hubs that stay open in a worker process, for its next task.

Spark reuses a worker for later tasks, and opening a connection with a link to each partition costs
several round trips, and CPU time here and in the hub. An event loop in a thread keeps the
connections alive between tasks. A client that has failed is closed and not used again.

    delivery.py -> OpenHubs.run -> OpenHub -> HubClient
                   ^^^^^^^^ this module, in an executor
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

from pumphouse.client.base import BatchSender, HubClient, Sender
from pumphouse.errors import PumphouseError
from pumphouse.spark.driver.loop_thread import LoopThread
from pumphouse.spark.identity import open_hub
from pumphouse.spark.options import HubIdentity

T = TypeVar("T")
CLOSE_S = 10.0


class OpenHub:
    """A client with its senders."""

    def __init__(self, client: HubClient) -> None:
        self.client = client
        self._sender: Sender | None = None
        self._batch_senders: dict[str, BatchSender] = {}

    async def sender(self) -> Sender:
        if self._sender is None:
            self._sender = await self.client.sender()
        return self._sender

    async def batch_sender(self, partition: str) -> BatchSender:
        if partition not in self._batch_senders:
            self._batch_senders[partition] = await self.client.batch_sender(partition)
        return self._batch_senders[partition]


class OpenHubs:
    """The open clients of a process."""

    def __init__(self, connect: Callable[[HubIdentity], HubClient] = open_hub) -> None:
        self._connect = connect
        self._hubs: dict[HubIdentity, OpenHub] = {}
        self._thread: LoopThread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` in the event loop of the clients. It has its own deadlines."""
        if self._thread is None:
            self._thread = LoopThread("open hubs", CLOSE_S)
        return self._thread.run(work, None)

    @asynccontextmanager
    async def borrow(self, identity: HubIdentity) -> AsyncIterator[OpenHub]:
        """A client for one task at a time; it stays open unless the task fails."""
        hub = self._hubs.pop(identity, None) or await self._open(identity)
        try:
            yield hub
        except BaseException:
            with suppress(PumphouseError, OSError):
                await hub.client.__aexit__(None, None, None)
            raise
        if hub.client.has_batch_sender:
            self._hubs[identity] = hub
        else:  # the official SDK closes idle links
            await hub.client.__aexit__(None, None, None)

    async def _open(self, identity: HubIdentity) -> OpenHub:
        return OpenHub(await self._connect(identity).__aenter__())

    def close(self) -> None:
        """Close all clients; Spark ends a worker without calling this."""
        if self._thread is not None:
            self._thread.close(self._close_clients())
            self._thread = None

    async def _close_clients(self) -> None:
        while self._hubs:
            _, hub = self._hubs.popitem()
            await hub.client.__aexit__(None, None, None)


open_hubs = OpenHubs()
