"""What a link is attached to: the nodes $cbs and $management, and both ends of a partition.

A node answers for one link. It is told of deliveries and credit, and of the link's end; it speaks
through the conversation that it belongs to.

    attach -> open_node -> Requests, Replies        ($cbs and $management: one link each way)
                        -> Intake                   (a producer: events into a partition)
                        -> Outlet                   (a consumer: events out of a partition)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.performatives import SENDER, Attach, Source, Target
from pumphouse.errors import AmqpError
from pumphouse.hub.links.consumer import open_outlet
from pumphouse.hub.links.link import Node
from pumphouse.hub.links.producer import open_intake
from pumphouse.hub.links.requests import open_request_node
from pumphouse.hub.routing import parse_address

if TYPE_CHECKING:
    from pumphouse.hub.connection import Conversation

REQUEST_NODES = ("cbs", "management")


def open_node(talk: Conversation, link: Link, attach: Attach) -> Node:
    """The node that an attach asks for, answered; AmqpError if it is refused."""
    terminus, kind = (attach.target, Target) if attach.role == SENDER else (attach.source, Source)
    text = terminus.address if isinstance(terminus, kind) else None
    if not isinstance(text, str):
        raise AmqpError("amqp:invalid-field", f"Link '{attach.name}' names no address.")
    address = parse_address(text)
    if address.kind in REQUEST_NODES:
        return open_request_node(talk, link, attach, address)
    if isinstance(link, ReceiverLink):
        return open_intake(talk, link, attach, address)
    assert isinstance(link, SenderLink)
    return open_outlet(talk, link, attach, address)
