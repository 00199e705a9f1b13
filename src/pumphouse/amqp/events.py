"""The events that a connection returns for received bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pumphouse.amqp.performatives import (
    Attach,
    Error,
    Open,
)

if TYPE_CHECKING:
    from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
    from pumphouse.amqp.session import Session


@dataclass(frozen=True, slots=True)
class Opened:
    """The peer opened the connection."""

    open: Open


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer closed the connection. Our close was sent in response."""

    error: Error | None


@dataclass(frozen=True, slots=True)
class Begun:
    """A session began."""

    session: Session


@dataclass(frozen=True, slots=True)
class Ended:
    """A session ended, and these links with it."""

    session: Session
    error: Error | None
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class AttachAsked:
    """The peer requests a link. Respond with `link.send_attach()` or `link.refuse()`."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class Attached:
    """The peer responded to our attach. A refusal has no source or target; its detach follows."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class Detached:
    """The peer detached a link. Our detach was sent in response."""

    link: Link
    error: Error | None


@dataclass(frozen=True, slots=True)
class Flowed:
    """The peer granted credit to a sending link, or asked to drain it."""

    link: SenderLink


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer accepts more transfer frames on a session."""

    session: Session


@dataclass(frozen=True, slots=True)
class Delivered:
    """A complete delivery arrived. `payload` is empty if `size` exceeds the limit of the link."""

    link: ReceiverLink
    delivery_id: int
    message_format: int
    settled: bool
    payload: bytes
    size: int

    @property
    def oversize(self) -> bool:
        return self.size > self.link.size_max

    @property
    def held_bytes(self) -> int:
        """Bytes of memory while it waits."""
        return len(self.payload)


@dataclass(frozen=True, slots=True)
class RunDelivered:
    """A run arrived: consecutive complete and settled deliveries, on a link that takes runs."""

    link: ReceiverLink
    payloads: Sequence[bytes]  # a list, or a PayloadBlock


@dataclass(frozen=True, slots=True)
class RunReceived:
    """Consecutive complete deliveries with consecutive ids, on a link that takes numbered runs.

    They have used credit. The caller calls `link.top_up()` after it has handled them.
    """

    link: ReceiverLink
    first_id: int
    settled: bool
    payloads: list[bytes]

    @property
    def held_bytes(self) -> int:
        """Bytes of memory while it waits."""
        return sum(map(len, self.payloads))

    def deliveries(self) -> Iterator[Delivered]:
        """The same as single deliveries, to handle one by one; grants credit in the end."""
        for number, payload in enumerate(self.payloads, self.first_id):
            yield Delivered(self.link, number, 0, self.settled, payload, len(payload))
        self.link.top_up()


@dataclass(frozen=True, slots=True)
class Disposed:
    """The peer reported the outcome of the deliveries `first` to `last`."""

    session: Session
    role: bool  # of the peer: RECEIVER or SENDER
    first: int
    last: int
    settled: bool
    state: Any


@dataclass(frozen=True, slots=True)
class FramesHandled:
    """Many frames were handled that caused no event. The caller may let other tasks run."""


FRAMES_HANDLED = FramesHandled()


Event = (
    Opened
    | Closed
    | Begun
    | Ended
    | AttachAsked
    | Attached
    | Detached
    | Flowed
    | WindowOpened
    | Delivered
    | RunDelivered
    | RunReceived
    | Disposed
    | FramesHandled
)
