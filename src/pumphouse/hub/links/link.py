"""One attached link, as the hub sees it: what every node has in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import Link
from pumphouse.amqp.performatives import Attach, Error
from pumphouse.errors import AmqpError, HubNotFound, RemoteProtocolError
from pumphouse.hub.access.auth import Claim
from pumphouse.hub.namespace import EventHub
from pumphouse.hub.routing import Address

if TYPE_CHECKING:
    from pumphouse.hub.connection import Conversation


class Node:
    """One attached link. The defaults fit a link to which nothing happens."""

    claim: Claim | None = None  # what a token must allow for the link to stay
    path = ""
    lingers = False  # whether others may take it for present after its connection broke
    queued = False  # whether its turn to send is coming

    def __init__(self, talk: Conversation, link: Link) -> None:
        self.talk = talk
        self.link = link

    def on_delivery(self, delivered: Delivered) -> None:
        """A delivery has arrived."""

    def pump(self) -> bool:
        """Send what may be sent; True if there is more to send and room for it."""
        return False

    def closed(self) -> None:
        """The link is gone."""

    def close(self, condition: str, description: str) -> None:
        """Detach the link, saying why."""
        if self.link.attached:
            self.link.detach(Error(condition=condition, description=description))
            self.talk.wake_writer()
        self.closed()


def answer(link: Link, attach: Attach, **fields: Any) -> None:
    """Our attach in answer to the peer's, with the same name, modes and handle."""
    settle = {"snd_settle_mode": attach.snd_settle_mode, "rcv_settle_mode": attach.rcv_settle_mode}
    link.answer(Attach(name=link.name, handle=link.handle, role=link.role, **{**settle, **fields}))


def find_hub(talk: Conversation, address: Address) -> EventHub:
    try:
        return talk.namespace.hub(address.hub)
    except HubNotFound:
        raise not_found(talk, address.hub) from None


def not_found(talk: Conversation, path: str) -> AmqpError:
    return AmqpError(
        "amqp:not-found", f"The messaging entity '{talk.guard.resource(path)}' could not be found."
    )


def too_large(delivered: Delivered) -> AmqpError:
    return AmqpError(
        "amqp:link:message-size-exceeded",
        f"The received message (delivery-id:{delivered.delivery_id}, size:{delivered.size} bytes) "
        f"exceeds the limit ({delivered.link.size_max} bytes) currently allowed on the link.",
    )


def as_error(wrong: AmqpError | RemoteProtocolError) -> Error:
    text = wrong.description if isinstance(wrong, AmqpError) else str(wrong)
    return Error(condition=wrong.condition, description=text)
