"""Both ends of a request: the links to and from $cbs and $management."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, decode_message, encode_message
from pumphouse.amqp.performatives import Attach, Target
from pumphouse.errors import AmqpError, RemoteProtocolError
from pumphouse.hub.links import cbs, management
from pumphouse.hub.links.link import Node, answer, as_error, too_large
from pumphouse.hub.routing import Address

if TYPE_CHECKING:
    from pumphouse.hub.connection import Conversation

REQUEST_CREDIT = 100
REPLIES_MAX = 100  # waiting for a client that grants no credit


def open_request_node(talk: Conversation, link: Link, attach: Attach, address: Address) -> Node:
    fields: dict[str, Any] = {"source": attach.source, "target": attach.target}
    if isinstance(link, ReceiverLink):
        link.size_max = talk.namespace.message_bytes_max
        answer(link, attach, max_message_size=link.size_max, **fields)
        link.keep_granting(REQUEST_CREDIT)
        return Requests(talk, link, address)
    assert isinstance(link, SenderLink)
    answer(link, attach, initial_delivery_count=0, **fields)
    reply_to = attach.target.address if isinstance(attach.target, Target) else None
    return Replies(talk, link, address.kind, reply_to)


class Requests(Node):
    """Where requests to $cbs or $management arrive."""

    link: ReceiverLink

    def __init__(self, talk: Conversation, link: ReceiverLink, address: Address) -> None:
        super().__init__(talk, link)
        self.address = address

    def on_delivery(self, delivered: Delivered) -> None:
        session = self.link.session
        try:
            if delivered.oversize:
                raise too_large(delivered)
            request = decode_message(delivered.payload)
            replies = self.find_replies(request)
        except (AmqpError, RemoteProtocolError) as wrong:
            if not delivered.settled:
                session.reject(delivered.delivery_id, as_error(wrong))
            return
        if not delivered.settled:
            session.accept(delivered.delivery_id)
        replies.send(self.reply(request))

    def reply(self, request: Message) -> Message:
        if self.address.kind == "cbs":
            return cbs.answer(request, self.talk.guard)
        return management.answer(request, self.talk.namespace, self.talk.guard, self.address.hub)

    def find_replies(self, request: Message) -> Replies:
        """The client's link for replies: the one it names, or else its only one on this session."""
        candidates = [
            link.user
            for link in self.link.session.links.values()
            if isinstance(link.user, Replies) and link.user.kind == self.address.kind
        ]
        reply_to = request.properties.reply_to if request.properties else None
        named = [replies for replies in candidates if replies.reply_to == reply_to]
        if not candidates:
            raise AmqpError(
                "amqp:precondition-failed",
                f"Attach a receiver to '${self.address.kind}' on the same session first.",
            )
        return (named or candidates)[0]


class Replies(Node):
    """Where the replies of $cbs or $management leave."""

    link: SenderLink

    def __init__(self, talk: Conversation, link: SenderLink, kind: str, reply_to: Any) -> None:
        super().__init__(talk, link)
        self.kind = kind
        self.reply_to = reply_to
        self.waiting: deque[Message] = deque()

    def send(self, reply: Message) -> None:
        if len(self.waiting) >= REPLIES_MAX:
            self.close("amqp:resource-limit-exceeded", f"{REPLIES_MAX} replies wait for credit.")
            return
        self.waiting.append(reply)
        self.pump()

    def pump(self) -> bool:
        while self.waiting and self.link.sendable:
            self.link.send(encode_message(self.waiting.popleft()))
        if not self.waiting:
            self.link.answer_drain()
        return False
