"""A client, reader or sender around another one, which passes every call on.

    MeteredClient, TracedClient -> WrappedClient -> driver
    an observer of each reader and sender -> ObservedReader, ObservedSender -> those of the driver
                                             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

A client that observes its calls gives each reader and sender an observer. The observer makes the
call, so that it sees the arguments, the result, the error and the duration.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Protocol, Self

from pumphouse.client.base import (
    BATCH_EVENTS_MAX,
    BatchSender,
    HubClient,
    HubProperties,
    ManagementClient,
    MessageReader,
    PartitionEnd,
    PartitionProperties,
    Payload,
    Reader,
    ReaderOptions,
    Sender,
)
from pumphouse.client.batches import as_given
from pumphouse.events import Event


class WrappedClient(HubClient):
    """Passes every call on to another client."""

    def __init__(self, client: HubClient) -> None:
        self._client = client

    def __repr__(self) -> str:
        return repr(self._client)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)  # what a driver has beyond the protocol

    @property
    def hub(self) -> str:
        return self._client.hub

    @property
    def namespace(self) -> str:
        return self._client.namespace

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._client.__aexit__(*exc)

    async def reader(self, options: ReaderOptions) -> Reader:
        return await self._client.reader(options)

    async def sender(self, partition: str | None = None) -> Sender:
        return await self._client.sender(partition)

    async def batch_sender(self, partition: str) -> BatchSender:
        return await self._client.batch_sender(partition)

    async def properties(self) -> HubProperties:
        return await self._client.properties()

    async def partition_properties(self, partition: str) -> PartitionProperties:
        return await self._client.partition_properties(partition)

    @property
    def has_batch_sender(self) -> bool:
        return self._client.has_batch_sender

    async def message_reader(self, options: ReaderOptions) -> MessageReader:
        return await self._client.message_reader(options)

    async def management(self) -> ManagementClient:
        return await self._client.management()


# -- readers and senders --------------------------------------------------------------------------


class ReadObserver(Protocol):
    """Observes the calls of one reader."""

    async def receive(self, receive: Callable[[], Awaitable[list[Event]]]) -> list[Event]: ...

    def close(self) -> None: ...


class SendObserver(Protocol):
    """Observes the calls of one sender. It may send other events than those it was given."""

    def send(
        self, events: Iterable[Event], send: Callable[[Iterable[Event]], Awaitable[int]]
    ) -> Coroutine[Any, Any, int]: ...

    async def deliver(self, deliver: Callable[[], Awaitable[int]]) -> int: ...

    def close(self) -> None: ...


class ObservedReader:
    """A reader whose calls are observed."""

    def __init__(self, reader: Reader, observer: ReadObserver) -> None:
        self._reader, self._observer = reader, observer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)  # what a reader has beyond the protocol

    @property
    def end(self) -> PartitionEnd | None:
        return self._reader.end

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        return await self._observer.receive(partial(self._reader.receive, max_events, deadline_s))

    async def close(self) -> None:
        self._observer.close()
        await self._reader.close()


class ObservedSender:
    """A sender whose calls are observed."""

    def __init__(self, sender: Sender, observer: SendObserver) -> None:
        self._sender, self._observer = sender, observer

    @property
    def accepted(self) -> int:
        return self._sender.accepted

    def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> Coroutine[Any, Any, int]:
        send = partial(
            self._sender.send,
            batch_events_max=batch_events_max,
            batch_bytes_max=batch_bytes_max,
            under_way_max=under_way_max,
        )
        return self._observer.send(as_given(events), send)

    async def close(self) -> None:
        self._observer.close()
        await self._sender.close()


class ObservedBatchSender(ObservedSender):
    """A sender that also sends batches that the caller has encoded; they are observed too."""

    def __init__(self, sender: BatchSender, observer: SendObserver) -> None:
        super().__init__(sender, observer)
        self._batches = sender

    @property
    def size_max(self) -> int:
        return self._batches.size_max

    async def deliver(self, payload: Payload) -> int:
        return await self._observer.deliver(partial(self._batches.deliver, payload))
