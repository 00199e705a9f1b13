"""The public protocols of the client: what it offers, whichever driver implements it.

Two drivers implement them: `native` (our AMQP, the default for the embedded hub) and `azure` (the
official SDK, the default for the real service). Code outside this package imports only this module,
`factory` and `bulk`.

    open_client -> HubClient -> Reader, Sender, ManagementClient, properties
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

One test suite checks this contract for both drivers (tests/client/contract):

* A reader delivers the events of one partition in order, each once. After a broken connection it
  resumes after the last event that it returned. Its start position is resolved before `reader()`
  returns, so events that arrive later are never missed, even with `latest`.
* Transient failures (a lost connection, a detach, throttling) are retried within `RetryOptions`
  without the caller noticing. Permanent failures are raised: ReaderEvicted, AuthError, HubNotFound,
  OptionError, and ConnectionFailed after the last attempt.
* `Sender.send` returns after the hub has acknowledged every event. If a connection breaks while a
  batch is pending, its outcome is unknown. It is re-sent, so its events may be stored twice.
* Every call has a deadline.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from pumphouse.client.batches import (
    Payload,
    PlainEvents,
    batch_section,
    encode_event,
    prepared_batch,
)
from pumphouse.client.connection_string import (
    ConnectionString,
    parse_connection_string,
    read_connection_string,
)
from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position

__all__ = [
    "BATCH_EVENTS_MAX",
    "DEFAULT_GROUP",
    "PREFETCH",
    "PREFETCH_BYTES_MAX",
    "AccessToken",
    "BatchSender",
    "ConnectionString",
    "HubClient",
    "HubProperties",
    "ManagementClient",
    "MessageReader",
    "PartitionEnd",
    "PartitionProperties",
    "Payload",
    "PlainEvents",
    "Reader",
    "ReaderOptions",
    "RetryOptions",
    "Sender",
    "TokenCredential",
    "batch_section",
    "encode_event",
    "parse_connection_string",
    "prepared_batch",
    "read_connection_string",
]

DEFAULT_GROUP = "$Default"
PREFETCH = 300  # the default of the official clients
PREFETCH_BYTES_MAX = 16 * 1024 * 1024
BATCH_EVENTS_MAX = 1000  # bounds the number of events that one refused batch affects


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """The partition to read, the start position, and the identity of the reader."""

    partition: str
    group: str = DEFAULT_GROUP
    position: Position = EARLIEST
    epoch: int | None = None  # None shares the partition; a number evicts readers of lower epochs
    prefetch: int = PREFETCH
    prefetch_bytes_max: int = PREFETCH_BYTES_MAX  # of buffered events; one event may exceed it
    name: str = ""  # shown by the hub to the readers that this one evicts
    track_end: bool = False  # keep `Reader.end` up to date: costs some bytes per event
    # A further limit in bytes, which may change while the reader is open.
    bytes_limit: Callable[[], int] | None = field(default=None, compare=False, repr=False)
    # When a link is replaced, the native reader reads its last event again. If another event has
    # its number, the hub was re-created: `receive` raises, as for a position that does not exist.
    detect_recreated: bool = False

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise OptionError(f"prefetch must be at least 1 (got {self.prefetch})")
        if self.prefetch_bytes_max < 1:
            raise OptionError(
                f"prefetch_bytes_max must be at least 1 (got {self.prefetch_bytes_max})"
            )

    @property
    def buffer_bytes(self) -> int:
        """The most bytes that the reader buffers now."""
        if self.bytes_limit is None:
            return self.prefetch_bytes_max
        return max(1, min(self.prefetch_bytes_max, self.bytes_limit()))


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """Retries of transient failures: delays double from `first_s` to `most_s`, with jitter."""

    attempts: int = 8  # retries in a row; a success resets the count. 0: no retry
    first_s: float = 0.2
    most_s: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts < 0 or self.first_s <= 0 or self.most_s < self.first_s:
            raise OptionError(
                "a retry needs attempts >= 0 and 0 < first_s <= most_s "
                f"(got attempts={self.attempts}, first_s={self.first_s:g}, most_s={self.most_s:g})"
            )


@dataclass(frozen=True, slots=True)
class HubProperties:
    """A hub and its partitions."""

    name: str
    created_ms: int
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionProperties:
    """The first and the last event of a partition."""

    hub: str
    partition: str
    first_sequence: int  # the oldest stored event; above `last_sequence` if there is none
    last_sequence: int  # -1 if the partition never had an event
    last_offset: str  # "-1" if the partition never had an event
    last_enqueued_ms: int
    empty: bool

    def ends_before(self, position: Position) -> bool:
        """Whether all stored events lie before a position.

        Also False if the properties cannot decide it: offsets need not be numbers.
        """
        if self.empty:
            return True
        exclusive = not position.inclusive
        if position.kind == "time":
            return self.last_enqueued_ms < int(position.value) + exclusive
        if position.kind == "sequence":
            return self.last_sequence < int(position.value) + exclusive
        numeric = position.value.isdecimal() and self.last_offset.isdecimal()
        if position.kind == "offset" and numeric:
            return int(self.last_offset) < int(position.value) + exclusive
        return False


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The newest event of a partition at the time when the hub sent the last received event."""

    sequence: int
    offset: str
    enqueued_ms: int
    retrieved_ms: int


class AccessToken(Protocol):
    """A token of azure-identity, reduced to the two attributes in use."""

    @property
    def token(self) -> str: ...

    @property
    def expires_on(self) -> int: ...


class TokenCredential(Protocol):
    """A credential of azure-identity, blocking or asyncio: `get_token` may return an awaitable."""

    def get_token(self, *scopes: str) -> Any: ...


class Reader(Protocol):
    """Reads one partition, in order."""

    @property
    def end(self) -> PartitionEnd | None:
        """The newest known event; None without `track_end` and before the first event."""

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; an empty list at the deadline.

        A reader that is evicted or permanently disconnected returns its buffered events first and
        then raises the reason.
        """

    async def close(self) -> None:
        """Detach from the partition and drop the prefetched events."""


class MessageReader(Protocol):
    """Reads one partition as encoded AMQP messages."""

    async def receive_messages(self, max_events: int = 100, deadline_s: float = 1.0) -> list[bytes]:
        """The next messages, as soon as there is one; after a reconnect one may come twice."""

    async def close(self) -> None:
        """Detach from the partition and drop the prefetched messages."""


class Sender(Protocol):
    """Sends to one partition, or to a hub that chooses the partition by key or in turn."""

    @property
    def accepted(self) -> int:
        """The number of events that the hub has acknowledged."""

    async def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> int:
        """Send events in as few batches as possible; returns their number, all acknowledged.

        `batch_bytes_max` lowers the size of a batch below the limit of the hub. `under_way_max`
        lowers the number of batches that wait for their acknowledgement at the same time.

        Events with the same partition key keep their order. An event that is too large for the hub
        raises EventTooLarge before any event of its batch is sent. A list is copied at the call,
        so that it may change then; an iterator is read while its events are sent.
        """

    async def close(self) -> None: ...


class BatchSender(Sender, Protocol):
    """A sender to one partition that also takes batches that the caller has encoded."""

    @property
    def size_max(self) -> int:
        """The largest batch that the hub accepts, in bytes."""

    async def deliver(self, payload: Payload) -> int:
        """Send one encoded batch; returns its number of events, all acknowledged."""


class ManagementClient(Protocol):
    """Creates, lists and deletes hubs, consumer groups and faults of an embedded hub."""

    async def hub(self, name: str) -> HubProperties: ...

    async def partition(self, hub: str, partition: str) -> PartitionProperties: ...

    async def hubs(self) -> list[HubProperties]: ...

    async def create_hub(self, name: str, partitions: int) -> HubProperties: ...

    async def grow_hub(self, name: str, partitions: int) -> HubProperties:
        """Raise the number of partitions of a hub."""

    async def delete_hub(self, name: str) -> None: ...

    async def groups(self, hub: str) -> list[str]: ...

    async def create_group(self, hub: str, group: str) -> None: ...

    async def delete_group(self, hub: str, group: str) -> None: ...

    async def faults(self) -> list[dict[str, Any]]: ...

    async def plan_fault(self, **fault: Any) -> int:
        """Plan a fault; returns the number that `cancel_fault` takes."""

    async def cancel_fault(self, number: int | None = None) -> None:
        """Cancel one fault, or all of them."""


class HubClient(Protocol):
    """A client of one hub: `async with open_client(...) as client`.

    `batch_sender`, `message_reader` and `management` raise OptionError if the driver does not
    support them.
    """

    @property
    def hub(self) -> str: ...

    @property
    def namespace(self) -> str:
        """The host name of the namespace; stores keep leases and checkpoints under this name."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def reader(self, options: ReaderOptions) -> Reader: ...

    async def sender(self, partition: str | None = None) -> Sender: ...

    async def properties(self) -> HubProperties: ...

    async def partition_properties(self, partition: str) -> PartitionProperties: ...

    @property
    def has_batch_sender(self) -> bool:
        """Whether the driver sends batches that the caller has encoded."""
        return False

    async def batch_sender(self, partition: str) -> BatchSender:
        """A sender of encoded batches to one partition; OptionError if the driver has none."""
        raise OptionError(f"{type(self).__name__} cannot send encoded batches: use driver='native'")

    async def message_reader(self, options: ReaderOptions) -> MessageReader:
        """A reader of encoded messages; OptionError if the driver has none."""
        raise OptionError(f"{type(self).__name__} cannot read encoded messages: use driver='azure'")

    async def management(self) -> ManagementClient:
        """The management calls of an embedded hub; OptionError if the driver has none."""
        raise OptionError(
            f"{type(self).__name__} cannot create or delete hubs: use driver='native' "
            "with an embedded hub, or the portal of the service"
        )
