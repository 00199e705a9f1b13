"""Requests to a node of the hub and their replies: $cbs and $management.

AMQP has one-way links only. A call is a message on one link and a message back on another, found
again by its correlation id; a status code says how it went, as in HTTP.

    Tokens, NativeManagement -> RequestClient -> Connection
                          ^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
from pumphouse.client.native.connection import Connection, break_off
from pumphouse.errors import (
    AmqpError,
    AuthError,
    HubExists,
    HubNotFound,
    PumphouseError,
    RemoteProtocolError,
)

REPLY_CREDIT = 50  # calls that may be under way at once


class RequestClient:
    """One node, with a link to ask and a link to be answered."""

    asking: SenderLink
    answering: ReceiverLink

    def __init__(self, wire: Connection, node: str) -> None:
        self.wire = wire
        self.node = node
        # The hub tells the reply links of a session apart by this address.
        self.here = wire.new_name()
        self._numbers = count(1)
        self._pending: dict[str, asyncio.Future[Message]] = {}
        self._room = asyncio.Event()
        self._lost: PumphouseError | None = None

    @property
    def broken(self) -> bool:
        """Whether the hub has closed one of the links."""
        return self._lost is not None

    @classmethod
    async def open(cls, wire: Connection, node: str) -> Self:
        calls = cls(wire, node)
        answering, _ = await wire.attach(
            calls,
            RECEIVER,
            source=Source(address=node),
            target=Target(address=calls.here),
            snd_settle_mode=SETTLED,
        )
        asking, _ = await wire.attach(
            calls,
            SENDER,
            source=Source(address=calls.here),
            target=Target(address=node),
            snd_settle_mode=SETTLED,
            initial_delivery_count=0,
        )
        assert isinstance(answering, ReceiverLink)
        assert isinstance(asking, SenderLink)
        calls.answering, calls.asking = answering, asking
        answering.keep_granting(REPLY_CREDIT)
        wire.flush()
        return calls

    async def ask(self, application: Mapping[str, Any], value: Any = None) -> Any:
        """Make a call; the value of the reply, or the hub's refusal as an error."""
        number = str(next(self._numbers))
        request = Message(
            properties=Properties(message_id=number, reply_to=self.here),
            application=dict(application),
            value=value,
        )
        async with self.wire.within(self.wire.options.answer_s, f"answer on {self.node}"):
            reply = await self.exchange(number, encode_message(request))
        return value_of(reply)

    async def exchange(self, number: str, request: bytes) -> Message:
        while not self.may_ask():
            self._room.clear()
            await self._room.wait()
        answered: asyncio.Future[Message] = self.wire.loop.create_future()
        self._pending[number] = answered
        try:
            self.asking.send(request, message_format=SINGLE_FORMAT)
            self.wire.flush()
            return await answered
        finally:
            self._pending.pop(number, None)
            self._room.set()

    def may_ask(self) -> bool:
        if self._lost is not None:
            raise self._lost
        return len(self._pending) < REPLY_CREDIT and self.wire.has_room(self.asking)

    def delivered(self, delivery: Delivered) -> None:
        if not delivery.settled:
            self.answering.session.accept(delivery.delivery_id)
        try:
            reply = decode_message(delivery.payload)
        except RemoteProtocolError as wrong:
            self.lost(wrong)
            return
        number = reply.properties.correlation_id if reply.properties else None
        answered = self._pending.get(number) if isinstance(number, str) else None
        if answered is not None and not answered.done():
            answered.set_result(reply)

    def run_delivered(self, payloads: list[bytes]) -> None:
        """Replies are few: they come one by one."""

    def stirred(self) -> None:
        self._room.set()

    def lost(self, why: PumphouseError) -> None:
        self._lost = why
        for answered in self._pending.values():
            break_off(answered, why)
        self._room.set()


def value_of(reply: Message) -> Any:
    """What a reply holds; a status outside of 2xx is raised."""
    asked = reply.application
    status = asked.get("status-code", asked.get("statusCode"))
    if isinstance(status, int) and 200 <= status < 300:
        return reply.value
    text = asked.get("status-description") or asked.get("statusDescription") or f"status {status}"
    condition = asked.get("error-condition") or asked.get("errorCondition")
    raise refused(status, str(text), str(condition or "amqp:internal-error"))


def refused(status: Any, text: str, condition: str) -> PumphouseError:
    match status:
        case 401 | 403:
            return AuthError(text, int(status))
        case 404:
            return HubNotFound(text)
        case 409:
            return HubExists(text)
    return AmqpError(condition, text)
