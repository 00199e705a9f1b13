"""Opens the link that a client's attach asks for, by its address and direction.

attach -> open_link -> RequestLink, ReplyLink    ($cbs and $management: one link each way)
                    -> ProducerLink              (events into a partition)
                    -> ConsumerLink              (events out of a partition)
"""

from __future__ import annotations

from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.performatives import SENDER, Attach, Source, Target
from pumphouse.errors import AmqpError
from pumphouse.hub.links.consumer import open_consumer_link
from pumphouse.hub.links.link import HubLink, LinkConnection
from pumphouse.hub.links.producer import open_producer_link
from pumphouse.hub.links.requests import open_request_link
from pumphouse.hub.routing import parse_address

REQUEST_NODES = ("cbs", "management")


def open_link(connection: LinkConnection, link: Link, attach: Attach) -> HubLink:
    """Open and accept the link that an attach asks for; AmqpError if it is refused."""
    terminus, kind = (attach.target, Target) if attach.role == SENDER else (attach.source, Source)
    text = terminus.address if isinstance(terminus, kind) else None
    if not isinstance(text, str):
        raise AmqpError(
            "amqp:invalid-field",
            f"Link '{attach.name}' has no address; "
            "a sender sets it in the target of the attach, a receiver in the source.",
        )
    address = parse_address(text)
    if address.kind in REQUEST_NODES:
        return open_request_link(connection, link, attach, address)
    if isinstance(link, ReceiverLink):
        return open_producer_link(connection, link, attach, address)
    assert isinstance(link, SenderLink)
    return open_consumer_link(connection, link, attach, address)
