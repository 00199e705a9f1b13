"""The seam: what a client of a hub can do, whichever driver does it.

Two drivers stand behind it: `native` (our AMQP, the default for the embedded hub) and `azure` (the
official SDK, the default for the real service). Processors, the command line and Spark know only
what is written here.

    open_client -> HubClient -> Reader, Sender, properties
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ this module

The contract, held by one suite for both drivers (tests/client/contract):

* A reader delivers the events of one partition in order, each once: after a broken connection it
  goes on behind the last event it handed out. Its position is settled before it asks for the first
  event, so that what arrives after `reader()` returned is never missed, `latest` included.
* Breaks that pass by themselves (a lost connection, a detach, throttling) are mended behind the
  caller's back, within `RetryOptions`. What does not pass is raised: ReaderEvicted, AuthError,
  HubNotFound, OptionError, and ConnectionFailed once the patience is used up.
* A sender's `send` returns when the hub has acknowledged every event. If a connection breaks while
  a batch is under way nobody can know its outcome; it is sent again, so it may then be there twice.
* Every call ends: there is a deadline on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol, Self

from pumphouse.errors import OptionError
from pumphouse.events import EARLIEST, Event, Position

DEFAULT_GROUP = "$Default"
PREFETCH = 300  # as the official clients
PREFETCH_BYTES_MAX = 16 * 1024 * 1024
BATCH_EVENTS_MAX = 1000  # so that what one refusal takes down has a bound


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """What to read, from where, and as whom."""

    partition: str
    group: str = DEFAULT_GROUP
    position: Position = EARLIEST
    epoch: int | None = None  # None reads beside others; a number evicts all lower ones
    prefetch: int = PREFETCH
    prefetch_bytes_max: int = PREFETCH_BYTES_MAX  # of what waits to be received, give or take one
    name: str = ""  # who we are, in the hub's messages to those we evict
    track_end: bool = False  # keep `Reader.end` up to date: it costs some bytes per event

    def __post_init__(self) -> None:
        if self.prefetch < 1:
            raise OptionError(f"prefetch must be at least 1 (got {self.prefetch})")
        if self.prefetch_bytes_max < 1:
            raise OptionError(
                f"prefetch_bytes_max must be at least 1 (got {self.prefetch_bytes_max})"
            )


@dataclass(frozen=True, slots=True)
class RetryOptions:
    """How patiently a break is mended: delays double from `first_s` to `most_s`, with jitter."""

    attempts: int = 8  # in a row; one that succeeds starts the count anew
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
    name: str
    created_ms: int
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PartitionProperties:
    hub: str
    partition: str
    first_sequence: int  # the oldest still there; above `last_sequence` if there is none
    last_sequence: int  # -1 if there has never been one
    last_offset: str  # "-1" likewise
    last_enqueued_ms: int
    empty: bool


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """The newest event of a partition, as the hub knew it when it sent the last one we received."""

    sequence: int
    offset: str
    enqueued_ms: int
    retrieved_ms: int


class AccessToken(Protocol):
    """What azure-identity hands out; nothing of it but these two is used."""

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
        """The newest event known of; None unless asked for with `track_end`, or not known yet."""

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; none if the deadline passes.

        A reader that was evicted or cut off for good hands out what has arrived, then raises why.
        """

    async def close(self) -> None:
        """Leave the partition. What was prefetched is forgotten."""


class Sender(Protocol):
    """Sends to one partition, or to a hub that chooses by key or in turn."""

    @property
    def accepted(self) -> int:
        """How many events the hub has taken for sure."""

    async def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> int:
        """Send events in as few batches as fit; how many they were, once all are acknowledged.

        `batch_bytes_max` makes batches smaller than the hub would take them, `under_way_max` says
        how many may wait for their acknowledgement at the same time; neither can be raised above
        what is usual.

        Events with a partition key keep their order among those of the same key. An event that is
        too large for the hub raises OptionError before anything of its batch is sent.
        """

    async def close(self) -> None: ...


class HubClient(Protocol):
    """A hub, over one or several connections: `async with open_client(...) as client`."""

    @property
    def hub(self) -> str: ...

    @property
    def namespace(self) -> str:
        """The host that checkpoints and leases are filed under, as the official clients do."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *exc: object) -> None: ...

    async def reader(self, options: ReaderOptions) -> Reader: ...

    async def sender(self, partition: str | None = None) -> Sender: ...

    async def properties(self) -> HubProperties: ...

    async def partition_properties(self, partition: str) -> PartitionProperties: ...
