"""What a user registers with an EventProcessorHost: a class, or two functions in place of one.

EventProcessorHost -> EventProcessor -> open, process_events, process_error, close
                      OneByOne       -> on_message, on_error
                      ^^^^^^^^ this module
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from pumphouse.errors import OwnershipLost
from pumphouse.events import Event
from pumphouse.processor.checks.factories import check_methods, takes_context
from pumphouse.processor.partition import PartitionClient
from pumphouse.processor.recording.recorder import EVENT
from pumphouse.processor.term import PartitionEnded, StopReason

MaybeAwaitable = Awaitable[None] | None


class CloseReason(StrEnum):
    """Why an event processor is closed."""

    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"


class EventProcessor(Protocol):
    """The methods of a class that can be registered. One object serves one partition."""

    def open(self, context: PartitionContext) -> MaybeAwaitable: ...

    def close(self, context: PartitionContext, reason: CloseReason) -> MaybeAwaitable: ...

    def process_events(
        self, context: PartitionContext, messages: list[Event]
    ) -> MaybeAwaitable: ...

    def process_error(self, context: PartitionContext, error: Exception) -> MaybeAwaitable: ...


Factory = Callable[..., EventProcessor]
OnMessage = Callable[["PartitionContext", Event], MaybeAwaitable]
OnError = Callable[[Exception], MaybeAwaitable]


@dataclass(slots=True)
class PartitionContext:
    """The partition that an event processor serves, and its checkpoint."""

    host_name: str
    consumer_group: str
    hub: str
    partition: PartitionClient = field(repr=False)
    at: Event | None = None  # the current event, where events are handled one by one

    @property
    def partition_id(self) -> str:
        return self.partition.id

    @property
    def epoch(self) -> int:
        return self.partition.epoch

    def checkpoint(self, event: Event | None = None) -> Coroutine[Any, Any, None]:
        """Record that everything up to `event` is handled. Await the result.

        Without an event: what was handled. In a handler that includes the current batch.
        """
        return self.partition.checkpoint(event)

    def transaction(self, event: Event | None = None) -> AbstractAsyncContextManager[Any]:
        """A transaction of the store, for rows that must be written exactly once.

        See `PartitionClient.transaction`.
        """
        return self.partition.transaction(event)


class OneByOne:
    """An event processor made of two functions, with one call per event.

    When a batch is retried, events that were handled already are left out.
    """

    def __init__(
        self,
        on_message: OnMessage,
        on_error: OnError | None,
        call: Callable[..., Awaitable[None]],
        call_on_error: Callable[[OnError, Exception], Awaitable[None]],
    ) -> None:
        self._on_message, self._on_error = on_message, on_error
        self._call, self._call_on_error = call, call_on_error

    async def open(self, context: PartitionContext) -> None:
        """Each call is recorded on its own."""
        context.partition.calls.use(EVENT)

    async def close(self, context: PartitionContext, reason: CloseReason) -> None:
        """Nothing to close."""

    async def process_events(self, context: PartitionContext, messages: list[Event]) -> None:
        if context.partition.order is not None:
            context = replace(context)  # with concurrency each call has an event of its own
        for event in messages:
            if context.partition.is_handled(event):
                continue
            if not context.partition.live:  # the lease may expire between two events
                raise OwnershipLost(context.partition_id, context.epoch)
            if context.partition.must_stop:  # a stop does not wait for the whole batch
                raise PartitionEnded
            context.at = event
            context.partition.set_in_hand([event])
            with context.partition.calls.calling(EVENT, [event]):
                await self._call(context, self._on_message, context, event)
            context.partition.mark_handled([event])

    async def process_error(self, context: PartitionContext, error: Exception) -> None:
        if self._on_error is not None:
            await self._call_on_error(self._on_error, error)


def make_processor(factory: Factory, context: PartitionContext) -> EventProcessor:
    """An object for one partition; a factory with a parameter gets the context."""
    processor = factory(context) if takes_context(factory) else factory()
    check_methods(processor, f"the object that {factory!r} returned")
    return processor


def close_reason(partition: PartitionClient) -> CloseReason:
    lost = partition.reason in (StopReason.LOST, StopReason.HAND_OFF)
    return CloseReason.LEASE_LOST if lost else CloseReason.SHUTDOWN
