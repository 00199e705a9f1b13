"""What a connection tells its user after bytes have arrived."""

from __future__ import annotations

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
    """The peer has opened the connection."""

    open: Open


@dataclass(frozen=True, slots=True)
class Closed:
    """The peer has closed the connection; ours was closed in answer."""

    error: Error | None


@dataclass(frozen=True, slots=True)
class Begun:
    """A session is up."""

    session: Session


@dataclass(frozen=True, slots=True)
class Ended:
    """A session has ended, and with it these links."""

    session: Session
    error: Error | None
    links: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class AttachAsked:
    """The peer wants a link. Answer with `link.accept()` or `link.refuse()`."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class Attached:
    """The peer has answered our attach. A refusal has no source or target; its detach follows."""

    link: Link
    attach: Attach


@dataclass(frozen=True, slots=True)
class Detached:
    """The peer has detached a link; ours was detached in answer."""

    link: Link
    error: Error | None


@dataclass(frozen=True, slots=True)
class Flowed:
    """The peer has granted credit to, or asked to drain, a link on which we send."""

    link: SenderLink


@dataclass(frozen=True, slots=True)
class WindowOpened:
    """The peer takes more transfer frames on a session."""

    session: Session


@dataclass(frozen=True, slots=True)
class Delivered:
    """A whole delivery has arrived. `payload` is empty if `size` passed the link's limit."""

    link: ReceiverLink
    delivery_id: int
    message_format: int
    settled: bool
    payload: bytes
    size: int

    @property
    def oversize(self) -> bool:
        return self.size > self.link.size_max


@dataclass(frozen=True, slots=True)
class RunDelivered:
    """Several whole and settled deliveries have arrived, on a link that takes them by the run."""

    link: ReceiverLink
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class Disposed:
    """The peer has said what became of deliveries `first` to `last` that we sent or received."""

    session: Session
    role: bool
    first: int
    last: int
    settled: bool
    state: Any


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
    | Disposed
)
