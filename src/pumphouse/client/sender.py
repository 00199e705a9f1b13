"""A link on which events are sent, and their outcomes awaited.

Several batches may be under way at once: waiting for each before the next would cost a round trip
per batch.

    Client.sender -> Sender -> batches.cut -> Wire.post -> outcome
                     ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import SenderLink
from pumphouse.amqp.performatives import (
    SECOND,
    SENDER,
    UNSETTLED,
    Accepted,
    Rejected,
    Source,
    Target,
)
from pumphouse.client.batches import Payload, cut
from pumphouse.client.wire import Wire, refusal
from pumphouse.errors import AmqpError, PumphouseError
from pumphouse.events import Event

SIZE_MAX = 1024 * 1024  # of a message, if the hub names no limit
UNDER_WAY_MAX = 8  # batches that wait for their outcome; up to 1 MiB each
BATCH_EVENTS_MAX = 1000  # so that what one refusal takes down has a bound

Outcome = asyncio.Future[Any]


class Sender:
    """Sends to one partition, or to a hub that chooses by key or in turn."""

    link: SenderLink

    def __init__(self, wire: Wire, address: str) -> None:
        self.wire = wire
        self.address = address
        self.size_max = SIZE_MAX
        self.accepted = 0  # events that the hub has taken
        self._room = asyncio.Event()
        self._lost: PumphouseError | None = None

    def __repr__(self) -> str:
        return f"<Sender {self.address} {self.accepted} accepted>"

    async def attach(self) -> None:
        link, answer = await self.wire.attach(
            self,
            SENDER,
            source=Source(address=self.address),
            target=Target(address=self.address),
            snd_settle_mode=UNSETTLED,
            rcv_settle_mode=SECOND,
            initial_delivery_count=0,
        )
        assert isinstance(link, SenderLink)
        self.link = link
        self.size_max = answer.max_message_size or SIZE_MAX

    async def send(
        self, events: Iterable[Event], *, batch_events_max: int = BATCH_EVENTS_MAX
    ) -> int:
        """Send events and wait until the hub has taken them all; how many they were.

        After an error `accepted` tells how many were taken for sure; of the batches that were
        under way the outcome is unknown.
        """
        under_way: deque[tuple[Outcome, Payload]] = deque()
        before = self.accepted
        try:
            for payload in cut(events, self.size_max, batch_events_max):
                if len(under_way) >= UNDER_WAY_MAX:
                    await self.conclude(*under_way.popleft())
                under_way.append((await self.post(payload), payload))
            while under_way:
                await self.conclude(*under_way.popleft())
        finally:
            for outcome, _ in under_way:
                outcome.cancel()
        return self.accepted - before

    async def post(self, payload: Payload) -> Outcome:
        """Send a payload as soon as there is room for it."""
        async with self.wire.within(self.wire.options.answer_s, "make room for a batch"):
            while not self.may_send():
                self._room.clear()
                await self._room.wait()
        return self.wire.post(self.link, payload.data, payload.message_format)

    def may_send(self) -> bool:
        if self._lost is not None:
            raise self._lost
        return self.wire.has_room(self.link)

    async def conclude(self, outcome: Outcome, payload: Payload) -> None:
        """Wait for the outcome of a payload, and raise it unless it is good."""
        async with self.wire.within(self.wire.options.answer_s, "acknowledge a batch"):
            state = await outcome
        match state:
            case Accepted():
                self.accepted += payload.event_count
            case Rejected():
                raise refusal(state.error)
            case _:
                name = getattr(state, "NAME", "no outcome")
                raise AmqpError("amqp:not-implemented", f"the hub answered a send with {name}")

    async def close(self) -> None:
        await self.wire.detach(self.link)

    def delivered(self, delivery: Delivered) -> None:
        """Nothing arrives on a link on which we send."""

    def stirred(self) -> None:
        self._room.set()

    def lost(self, why: PumphouseError) -> None:
        self._lost = why
        self._room.set()
