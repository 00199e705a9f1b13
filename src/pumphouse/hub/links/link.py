"""The base of all links of the hub, and what they share: accepting an attach, errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pumphouse.amqp.connection import Connection
from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import Link
from pumphouse.amqp.performatives import Attach, Error
from pumphouse.errors import AmqpError, HubNotFound, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.namespace import EventHub, Namespace
from pumphouse.hub.routing import Address


class LinkConnection(Protocol):
    """The part of a connection that its links use."""

    namespace: Namespace
    guard: Guard
    amqp: Connection

    def schedule(self, link: HubLink | None) -> None: ...

    def request_flush(self) -> None: ...

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None: ...

    def drop(self) -> None: ...


class HubLink:
    """One attached link. The defaults fit a link that neither sends nor receives."""

    claim: Claim | None = None  # a token must give this claim for the link to stay attached
    path = ""
    lingers = False  # whether it may count as present after its connection broke
    queued = False  # whether it waits for its turn to send

    def __init__(self, connection: LinkConnection, link: Link) -> None:
        self.connection = connection
        self.link = link

    @property
    def send_scope(self) -> tuple[str, str] | None:
        """The hub and partition id (or "") that events are sent to; None if not a producer."""
        return None

    def on_delivery(self, delivered: Delivered) -> None:
        """Handle a delivery that has arrived."""

    def send_slice(self) -> bool:
        """Send at most one slice; True if there is more to send and credit for it."""
        return False

    def on_closed(self) -> None:
        """Clean up after the link is gone."""

    def close(self, condition: str, description: str) -> None:
        """Detach the link with an error."""
        if self.link.attached:
            self.link.detach(Error(condition=condition, description=description))
            self.connection.request_flush()
        self.on_closed()


def accept_attach(link: Link, attach: Attach, **fields: Any) -> None:
    """Send our attach in response to the peer's, with the same name, modes and handle."""
    settle_modes = {
        "snd_settle_mode": attach.snd_settle_mode,
        "rcv_settle_mode": attach.rcv_settle_mode,
    }
    link.answer(
        Attach(name=link.name, handle=link.handle, role=link.role, **{**settle_modes, **fields})
    )


def find_hub(connection: LinkConnection, address: Address) -> EventHub:
    try:
        return connection.namespace.hub(address.hub)
    except HubNotFound:
        raise not_found(connection, address.hub) from None


def not_found(connection: LinkConnection, path: str) -> AmqpError:
    resource = connection.guard.resource(path)
    return AmqpError("amqp:not-found", f"The messaging entity '{resource}' could not be found.")


def too_large(delivered: Delivered) -> AmqpError:
    return AmqpError(
        "amqp:link:message-size-exceeded",
        f"The received message (delivery-id:{delivered.delivery_id}, size:{delivered.size} bytes) "
        f"exceeds the limit ({delivered.link.size_max} bytes) currently allowed on the link.",
    )


def as_error(failure: AmqpError | RemoteProtocolError) -> Error:
    text = failure.description if isinstance(failure, AmqpError) else str(failure)
    return Error(condition=failure.condition, description=text)
