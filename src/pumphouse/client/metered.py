"""A client that records metrics: how long calls take, and how many events they send and receive.

    open_client -> MeteredClient -> NativeClient or AzureClient
                   ^^^^^^^^^^^^^ this module

`open_client` returns one only if metrics are on, or can be turned on later. Readers and senders
that are opened while metrics are off are those of the driver. Names and labels follow
OpenTelemetry's messaging conventions.

The series of a reader end with it, so that a lost partition has none. Those of a sender last as
long as the process: an application may open a sender for each request. There is one for each hub,
partition and type of error.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sized

from pumphouse.client.base import BatchSender, HubClient, Reader, ReaderOptions, Sender
from pumphouse.client.wrapped import (
    ObservedBatchSender,
    ObservedReader,
    ObservedSender,
    WrappedClient,
)
from pumphouse.events import Event
from pumphouse.telemetry.definitions import (
    CONSUMED_MESSAGES,
    OPERATION_DURATION,
    SENT_MESSAGES,
    Metric,
)
from pumphouse.telemetry.meter import Series, close_series, open_series

SEND, RECEIVE = "send", "receive"


class Operation:
    """The metrics of one operation of one reader or sender."""

    def __init__(
        self,
        name: str,
        counted: Metric,
        open_operations: set[Operation],
        clock: Callable[[], float],
        *,
        lasts: bool = False,  # whether its series stay after it is closed
        **labels: str | None,
    ) -> None:
        self._counted, self._open_operations, self.clock = counted, open_operations, clock
        self._lasts = lasts
        open_operations.add(self)
        self._labels = {
            "messaging.system": "eventhubs",
            "messaging.operation.name": name,
            "messaging.operation.type": name,
        } | {f"messaging.{key.replace('_', '.')}": value for key, value in labels.items() if value}
        self._series: dict[str, tuple[Series, Series]] = {}  # by error
        self.succeeded = self._open("")

    def _open(self, error: str) -> tuple[Series, Series]:
        labels = self._labels | ({"error.type": error} if error else {})
        if error not in self._series:
            self._series[error] = (
                open_series(OPERATION_DURATION, labels, lasts=self._lasts),
                open_series(self._counted, labels, lasts=self._lasts),
            )
        return self._series[error]

    def record(self, began_s: float, events: int) -> None:
        duration, count = self.succeeded
        duration.record(self.clock() - began_s)
        count.add(events)

    def record_failure(self, began_s: float, events: int, error: BaseException) -> None:
        seconds = self.clock() - began_s
        if self._lasts or self in self._open_operations:  # else its series have ended
            duration, count = self._open(type(error).__name__)
            duration.record(seconds)
            count.add(events)

    def close(self) -> None:
        if self in self._open_operations:
            self._open_operations.remove(self)
            for series in self._series.values():
                close_series(*series)


class MeteredReading:
    """Records what `receive` returns. A call that ends without an event is not recorded."""

    def __init__(self, operation: Operation) -> None:
        self._operation = operation
        self.close = operation.close

    async def receive(self, receive: Callable[[], Awaitable[list[Event]]]) -> list[Event]:
        began_s = self._operation.clock()
        try:
            events = await receive()
        except Exception as error:
            self._operation.record_failure(began_s, 0, error)
            raise
        if events:
            self._operation.record(began_s, len(events))
        return events


class MeteredSending:
    """Records every `send`, and every batch that the caller has encoded."""

    def __init__(self, sender: Sender, operation: Operation) -> None:
        self._sender, self._operation = sender, operation
        self.close = operation.close

    async def send(
        self, events: Iterable[Event], send: Callable[[Iterable[Event]], Awaitable[int]]
    ) -> int:
        count = len(events) if isinstance(events, Sized) else None
        return await self._measure(send(events), count)

    async def deliver(self, deliver: Callable[[], Awaitable[int]]) -> int:
        return await self._measure(deliver())

    async def _measure(self, sending: Awaitable[int], events: int | None = None) -> int:
        began_s, accepted = self._operation.clock(), self._sender.accepted
        try:
            sent = await sending
        except Exception as error:
            acknowledged = self._sender.accepted - accepted
            self._operation.succeeded[1].add(acknowledged)
            failed = 1 if events is None else max(0, events - acknowledged)
            self._operation.record_failure(began_s, failed, error)
            raise
        self._operation.record(began_s, sent)
        return sent


class MeteredClient(WrappedClient):
    """A client whose readers and senders record metrics if metrics are on when they are opened."""

    def __init__(
        self,
        client: HubClient,
        clock: Callable[[], float] = time.perf_counter,
        is_on: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(client)
        self._clock, self._is_on = clock, is_on
        self._operations: set[Operation] = set()  # of the readers and senders that are open

    async def __aexit__(self, *exc: object) -> None:
        for operation in list(self._operations):
            operation.close()
        await super().__aexit__(*exc)

    async def reader(self, options: ReaderOptions) -> Reader:
        reader = await self._client.reader(options)
        if not self._is_on():
            return reader
        return ObservedReader(reader, MeteredReading(self._reading(options)))

    def _reading(self, options: ReaderOptions) -> Operation:
        return Operation(
            RECEIVE,
            CONSUMED_MESSAGES,
            self._operations,
            self._clock,
            destination_name=self.hub,
            destination_partition_id=options.partition,
            consumer_group_name=options.group,
        )

    async def sender(self, partition: str | None = None) -> Sender:
        sender = await self._client.sender(partition)
        if not self._is_on():
            return sender
        return ObservedSender(sender, MeteredSending(sender, self._sending(partition)))

    async def batch_sender(self, partition: str) -> BatchSender:
        sender = await self._client.batch_sender(partition)
        if not self._is_on():
            return sender
        return ObservedBatchSender(sender, MeteredSending(sender, self._sending(partition)))

    def _sending(self, partition: str | None) -> Operation:
        return Operation(
            SEND,
            SENT_MESSAGES,
            self._operations,
            self._clock,
            lasts=True,
            destination_name=self.hub,
            destination_partition_id=partition,
        )
