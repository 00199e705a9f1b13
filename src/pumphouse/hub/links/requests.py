"""The request and reply links of the nodes $cbs and $management."""

from __future__ import annotations

from collections import deque
from typing import Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, decode_message, encode_message
from pumphouse.amqp.performatives import Attach, Target
from pumphouse.amqp.session import Session
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.limits.lengths import check_length
from pumphouse.hub.links import cbs, management
from pumphouse.hub.links.link import HubLink, LinkConnection, accept_attach, as_error, too_large
from pumphouse.hub.routing import Address

REQUEST_CREDIT = 100
REQUEST_BYTES_MAX = 256 * 1024  # requests have a few hundred bytes, and a token of a few thousand
REQUEST_VALUES_MAX = 4096  # in one section of a request
REPLY_LINKS_MAX = 16  # of one connection; each request searches them for its reply link
REPLIES_MAX = 100  # waiting for a client that grants no credit


def open_request_link(
    connection: LinkConnection, link: Link, attach: Attach, address: Address
) -> HubLink:
    fields: dict[str, Any] = {"source": attach.source, "target": attach.target}
    if isinstance(link, ReceiverLink):
        link.size_max = min(REQUEST_BYTES_MAX, connection.namespace.message_bytes_max)
        accept_attach(link, attach, max_message_size=link.size_max, **fields)
        link.keep_granting(REQUEST_CREDIT)
        return RequestLink(connection, link, address)
    assert isinstance(link, SenderLink)
    if len(connection.reply_links) >= REPLY_LINKS_MAX:
        raise AmqpError(
            "amqp:resource-limit-exceeded",
            f"A connection has at most {REPLY_LINKS_MAX} links for replies of $cbs and "
            "$management; detach some.",
        )
    accept_attach(link, attach, initial_delivery_count=0, **fields)
    reply_to = attach.target.address if isinstance(attach.target, Target) else None
    return ReplyLink(connection, link, address.kind, reply_to)


def check_ids(request: Message) -> None:
    """AmqpError if the message id or the reply address is too long: the reply repeats them."""
    if request.properties is not None:
        for name in ("message_id", "reply_to"):
            value = getattr(request.properties, name)
            if isinstance(value, str | bytes):
                check_length(name.replace("_", "-"), value)


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
            request = decode_message(delivered.payload, values_max=REQUEST_VALUES_MAX)
            check_ids(request)
            reply_link = self.find_reply_link(request)
        except (AmqpError, RemoteProtocolError) as failure:
            if not delivered.settled:
                session.reject(delivered.delivery_id, as_error(failure, self.connection.guard))
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
        """The link for the reply: the one that the request names, else the first of the session."""
        candidates = [
            link
            for link in self.connection.reply_links
            if isinstance(link, ReplyLink) and link.serves(self.link.session, self.address.kind)
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
        self.waiting: deque[bytes] = deque()  # encoded; they count in the connection's budget
        connection.reply_links.append(self)

    def serves(self, session: Session, kind: str) -> bool:
        return self.link.session is session and self.kind == kind

    def send(self, reply: Message) -> None:
        if len(self.waiting) >= REPLIES_MAX:
            self.close(
                "amqp:resource-limit-exceeded",
                f"{REPLIES_MAX} replies wait for credit; grant more.",
            )
            return
        payload = encode_message(reply)
        self.waiting.append(payload)
        # A reply may be large, such as the list of all hubs. So REPLIES_MAX alone would not bound
        # the memory of the waiting replies.
        self.connection.amqp.hold(len(payload))
        self.send_slice()
        self.wait_for_window()

    def send_slice(self) -> bool:
        while self.waiting and self.link.sendable:
            self.link.send(self.take())
        if not self.waiting:
            self.link.answer_drain()
        return False

    def take(self) -> bytes:
        payload = self.waiting.popleft()
        self.connection.amqp.hold(-len(payload))
        return payload

    def on_closed(self) -> None:
        if self in self.connection.reply_links:
            self.connection.reply_links.remove(self)
        while self.waiting:
            self.take()
