"""Requests to the nodes $cbs and $management of a hub, and their replies.

AMQP links are one-way. A request is a message on one link, and its reply a message on another with
the correlation id of the request. The status code of the reply is that of HTTP.

    Tokens, NativeManagement -> RequestClient -> Connection
                                ^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any, Self

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import ReceiverLink, SenderLink
from pumphouse.amqp.messages import (
    SINGLE_FORMAT,
    Message,
    Properties,
    decode_message,
    encode_message,
)
from pumphouse.amqp.performatives import RECEIVER, SENDER, SETTLED, Source, Target
from pumphouse.client.errors import CONDITION_CHARS_MAX, shortened
from pumphouse.client.native.connection import Connection, fail_future
from pumphouse.errors import (
    AmqpError,
    AuthError,
    HubExists,
    HubNotFound,
    PumphouseError,
    RemoteProtocolError,
)

REPLY_CREDIT = 50  # requests that may be pending at once


class RequestClient:
    """The request link and the reply link of one node."""

    request_link: SenderLink
    reply_link: ReceiverLink

    def __init__(self, connection: Connection, node: str) -> None:
        self.connection = connection
        self.node = node
        # The hub distinguishes the reply links of a session by this address.
        self.reply_address = connection.new_name()
        self._numbers = count(1)
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._room_changed = asyncio.Event()
        self._failure: PumphouseError | None = None

    @property
    def broken(self) -> bool:
        """Whether the hub has closed one of the links."""
        return self._failure is not None

    @classmethod
    async def open(cls, connection: Connection, node: str) -> Self:
        client = cls(connection, node)
        reply_link, _ = await connection.attach(
            client,
            RECEIVER,
            source=Source(address=node),
            target=Target(address=client.reply_address),
            snd_settle_mode=SETTLED,
        )
        request_link, _ = await connection.attach(
            client,
            SENDER,
            source=Source(address=client.reply_address),
            target=Target(address=node),
            snd_settle_mode=SETTLED,
            initial_delivery_count=0,
        )
        assert isinstance(reply_link, ReceiverLink)
        assert isinstance(request_link, SenderLink)
        client.reply_link, client.request_link = reply_link, request_link
        reply_link.keep_granting(REPLY_CREDIT)
        connection.flush()
        return client

    async def request(self, application: Mapping[str, Any], value: Any = None) -> Any:
        """Send a request; returns the value of the reply, or raises its error."""
        request_id = str(next(self._numbers))
        message = Message(
            properties=Properties(message_id=request_id, reply_to=self.reply_address),
            application=dict(application),
            value=value,
        )
        async with self.connection.within(
            self.connection.options.answer_s, f"respond on {self.node}"
        ):
            reply = await self.exchange(request_id, encode_message(message))
        return reply_value(reply)

    async def exchange(self, request_id: str, request: bytes) -> Message:
        while not self.has_room_for_request():
            self._room_changed.clear()
            await self._room_changed.wait()
        reply_future: asyncio.Future[Message] = self.connection.loop.create_future()
        self._pending[request_id] = reply_future
        try:
            self.request_link.send(request, message_format=SINGLE_FORMAT)
            self.connection.flush_soon()
            return await reply_future
        finally:
            self._pending.pop(request_id, None)
            self._room_changed.set()

    def has_room_for_request(self) -> bool:
        if self._failure is not None:
            raise self._failure
        return len(self._pending) < REPLY_CREDIT and self.connection.has_room(self.request_link)

    def on_delivery(self, delivery: Delivered) -> None:
        if not delivery.settled:
            self.reply_link.session.accept(delivery.delivery_id)
        try:
            reply = decode_message(delivery.payload)
        except RemoteProtocolError as malformed:
            self.on_lost(malformed)
            return
        request_id = reply.properties.correlation_id if reply.properties else None
        reply_future = self._pending.get(request_id) if isinstance(request_id, str) else None
        if reply_future is not None and not reply_future.done():
            reply_future.set_result(reply)

    def on_run(self, payloads: Sequence[bytes]) -> None:
        """Not used: the reply link takes no runs."""

    def on_room(self) -> None:
        self._room_changed.set()

    def on_lost(self, failure: PumphouseError) -> None:
        self._failure = failure
        for reply_future in self._pending.values():
            fail_future(reply_future, failure)
        self._room_changed.set()


def reply_value(reply: Message) -> Any:
    """The value of a reply; a status outside of 2xx is raised as an error."""
    fields = reply.application
    status = fields.get("status-code", fields.get("statusCode"))
    if isinstance(status, int) and 200 <= status < 300:
        return reply.value
    text = fields.get("status-description") or fields.get("statusDescription") or f"status {status}"
    condition = fields.get("error-condition") or fields.get("errorCondition")
    shown = shortened(str(condition or "amqp:internal-error"), CONDITION_CHARS_MAX)
    raise error_for_status(status, shortened(str(text)), shown)


def error_for_status(status: Any, text: str, condition: str) -> PumphouseError:
    match status:
        case 401 | 403:
            return AuthError(text, int(status))
        case 404:
            return HubNotFound(text)
        case 409:
            return HubExists(text)
    return AmqpError(condition, text)
