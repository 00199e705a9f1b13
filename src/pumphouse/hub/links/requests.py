"""The request and reply links of the nodes $cbs and $management."""

from __future__ import annotations

from collections import deque
from typing import Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, decode_message, encode_message
from pumphouse.amqp.performatives import Attach, Target
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.links import cbs, management
from pumphouse.hub.links.link import HubLink, LinkConnection, accept_attach, as_error, too_large
from pumphouse.hub.routing import Address

REQUEST_CREDIT = 100
REPLIES_MAX = 100  # waiting for a client that grants no credit


def open_request_link(
    connection: LinkConnection, link: Link, attach: Attach, address: Address
) -> HubLink:
    fields: dict[str, Any] = {"source": attach.source, "target": attach.target}
    if isinstance(link, ReceiverLink):
        link.size_max = connection.namespace.message_bytes_max
        accept_attach(link, attach, max_message_size=link.size_max, **fields)
        link.keep_granting(REQUEST_CREDIT)
        return RequestLink(connection, link, address)
    assert isinstance(link, SenderLink)
    accept_attach(link, attach, initial_delivery_count=0, **fields)
    reply_to = attach.target.address if isinstance(attach.target, Target) else None
    return ReplyLink(connection, link, address.kind, reply_to)


class RequestLink(HubLink):
    """A link on which requests to $cbs or $management arrive."""

    link: ReceiverLink

    def __init__(self, connection: LinkConnection, link: ReceiverLink, address: Address) -> None:
        super().__init__(connection, link)
        self.address = address

    def on_delivery(self, delivered: Delivered) -> None:
        session = self.link.session
        try:
            if delivered.oversize:
                raise too_large(delivered)
            request = decode_message(delivered.payload)
            reply_link = self.find_reply_link(request)
        except (AmqpError, RemoteProtocolError) as failure:
            if not delivered.settled:
                session.reject(delivered.delivery_id, as_error(failure))
            return
        if not delivered.settled:
            session.accept(delivered.delivery_id)
        reply_link.send(self.handle(request))

    def handle(self, request: Message) -> Message:
        """Carry out a request and return its reply."""
        if self.address.kind == "cbs":
            return cbs.handle(request, self.connection.guard)
        return management.handle(
            request, self.connection.namespace, self.connection.guard, self.address.hub
        )

    def find_reply_link(self, request: Message) -> ReplyLink:
        """The client's link for replies: the one it names, or else its first on this session."""
        candidates = [
            link.user
            for link in self.link.session.links.values()
            if isinstance(link.user, ReplyLink) and link.user.kind == self.address.kind
        ]
        reply_to = request.properties.reply_to if request.properties else None
        named = [link for link in candidates if link.reply_to == reply_to]
        if not candidates:
            raise AmqpError(
                "amqp:precondition-failed",
                f"Attach a receiver to '${self.address.kind}' on the same session first.",
            )
        return (named or candidates)[0]


class ReplyLink(HubLink):
    """A link on which the replies of $cbs or $management leave."""

    link: SenderLink

    def __init__(
        self, connection: LinkConnection, link: SenderLink, kind: str, reply_to: Any
    ) -> None:
        super().__init__(connection, link)
        self.kind = kind
        self.reply_to = reply_to
        self.waiting: deque[Message] = deque()

    def send(self, reply: Message) -> None:
        if len(self.waiting) >= REPLIES_MAX:
            self.close(
                "amqp:resource-limit-exceeded",
                f"{REPLIES_MAX} replies wait for credit; grant more.",
            )
            return
        self.waiting.append(reply)
        self.send_slice()

    def send_slice(self) -> bool:
        while self.waiting and self.link.sendable:
            self.link.send(encode_message(self.waiting.popleft()))
        if not self.waiting:
            self.link.answer_drain()
        return False
