"""Sends to one partition, or to a hub that chooses, over as many links as it takes.

Several batches may be under way at once: waiting for each before the next would cost a round trip
per batch. But of those whose order matters (to one partition; of one key) only one is, so that one
that is refused for the moment and sent again is not overtaken.

    NativeClient.sender -> NativeSender -> batches.cut -> Connection.post -> outcome
                     ^^^^^^ this module

A batch that the hub refused is sent again, exactly it. A batch whose outcome got lost with the
connection is sent again too, and may then be there twice: nobody can know.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
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
from pumphouse.client.base import BATCH_EVENTS_MAX
from pumphouse.client.batches import Payload, cut
from pumphouse.client.errors import refusal
from pumphouse.client.native.connection import Connection
from pumphouse.client.native.reconnect import AuthorizedConnection, ReconnectingConnection
from pumphouse.errors import AmqpError, AuthError, LocalProtocolError, PumphouseError
from pumphouse.events import Event

SIZE_MAX = 1024 * 1024  # of a message, if the hub names no limit
UNDER_WAY_MAX = 8  # batches that wait for their outcome; up to 1 MiB each


class NativeSender:
    """Sends events and waits until the hub has taken them. Made by `NativeClient.sender`."""

    def __init__(
        self, line: ReconnectingConnection, hub: str, partition: str | None = None
    ) -> None:
        self.line = line
        self.hub = hub
        self.partition = partition
        self.address = hub if partition is None else f"{hub}/Partitions/{partition}"
        self.size_max = SIZE_MAX
        self.accepted = 0  # events that the hub has taken
        self.link: SenderLink | None = None
        self.wire: Connection | None = None  # that the link is on
        self._attaching = asyncio.Lock()  # so that batches under way share one link
        self._room = asyncio.Event()
        self._fell: PumphouseError | None = None  # why the link is gone
        self._closed = False

    def __repr__(self) -> str:
        return f"<NativeSender {self.address} {self.accepted} accepted>"

    # -- attaching --------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.line.persist(self.attached)

    async def attached(self, contact: AuthorizedConnection) -> SenderLink:
        """The link, attached anew if it was lost."""
        async with self._attaching:
            if self._closed:
                raise LocalProtocolError(f"the sender to {self.address} has been closed")
            if self.link is None or self.wire is not contact.wire:
                await self.attach(contact)
            assert self.link is not None
            return self.link

    async def attach(self, contact: AuthorizedConnection) -> None:
        await contact.tokens.cover(self.hub)
        self.link, self._fell = None, None
        link, answer = await contact.wire.attach(
            self,
            SENDER,
            source=Source(address=self.address),
            target=Target(address=self.address),
            snd_settle_mode=UNSETTLED,
            rcv_settle_mode=SECOND,
            initial_delivery_count=0,
        )
        if self._fell is not None:
            raise self._fell
        assert isinstance(link, SenderLink)
        self.link, self.wire = link, contact.wire
        self.size_max = answer.max_message_size or SIZE_MAX

    # -- sending ----------------------------------------------------------------------------------

    async def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> int:
        """Send events and wait until the hub has taken them all; how many they were.

        After an error `accepted` tells how many were taken for sure; of the batches that were
        under way the outcome may be unknown.
        """
        size_max = min(self.size_max, batch_bytes_max or self.size_max)
        payloads = cut(events, size_max, batch_events_max)
        if self.partition is None:
            under_way = min(UNDER_WAY_MAX, under_way_max or UNDER_WAY_MAX)
            return await Flight(self, under_way).carry(payloads)
        count = 0
        for payload in payloads:
            count += await self.deliver(payload)
        return count

    async def deliver(self, payload: Payload) -> int:
        """Send a payload until the hub has taken it or said no for good; its number of events."""

        async def once(contact: AuthorizedConnection) -> None:
            try:
                await self.deliver_once(contact, payload)
            except AuthError:
                # A token that ran out behind our back (the machine slept) is put again, once.
                contact.tokens.forget(self.hub)
                await self.deliver_once(contact, payload)

        await self.line.persist(once)
        self.accepted += payload.event_count
        return payload.event_count

    async def deliver_once(self, contact: AuthorizedConnection, payload: Payload) -> None:
        link = await self.attached(contact)
        wire = contact.wire
        async with wire.within(wire.options.answer_s, "make room for a batch"):
            while not self.may_send(link, wire):
                self._room.clear()
                await self._room.wait()
        outcome = wire.post(link, payload.data, payload.message_format)
        async with wire.within(wire.options.answer_s, "acknowledge a batch"):
            check_outcome(await outcome)

    def may_send(self, link: SenderLink, wire: Connection) -> bool:
        wire.check()
        if link is not self.link:
            raise self._fell or AmqpError("amqp:link:detach-forced", "the link was lost")
        return wire.has_room(link)

    async def close(self) -> None:
        self._closed = True
        link, wire = self.link, self.wire
        self.link = None
        if link is not None and wire is not None:
            with suppress(PumphouseError):  # it has let go in any case, or will notice soon
                await wire.detach(link)

    # -- what happens to the link -----------------------------------------------------------------

    def delivered(self, delivery: Delivered) -> None:
        """Nothing arrives on a link on which we send."""

    def run_delivered(self, payloads: list[bytes]) -> None:
        """Nor does it by the run."""

    def stirred(self) -> None:
        self._room.set()

    def lost(self, why: PumphouseError) -> None:
        self._fell = why
        self.link = None
        self._room.set()


class Flight:
    """The batches of one `send` that are under way, at most one of each key."""

    def __init__(self, sender: NativeSender, under_way_max: int = UNDER_WAY_MAX) -> None:
        self.sender = sender
        self.under_way_max = under_way_max
        self._tasks: dict[asyncio.Task[int], str | None] = {}  # with the key of each
        self._accepted = 0
        self._failed: Exception | None = None

    async def carry(self, payloads: Iterable[Payload]) -> int:
        """Send all. After a failure those under way are waited for, and no others sent."""
        try:
            await self.launch_all(payloads)
            await self.land()
        except asyncio.CancelledError:
            for task in list(self._tasks):
                task.cancel()
            await self.land()
            raise
        if self._failed is not None:
            raise self._failed
        return self._accepted

    async def launch_all(self, payloads: Iterable[Payload]) -> None:
        try:
            for payload in payloads:
                await self.room_for(payload.key)
                if self._failed is not None:
                    return
                self.launch(payload)
        except Exception as wrong:  # of the user's own events, too; it waits for its turn
            self._failed = self._failed or wrong

    async def room_for(self, key: str | None) -> None:
        while len(self._tasks) >= self.under_way_max or (key is not None and self.has(key)):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def has(self, key: str) -> bool:
        return key in self._tasks.values()

    def launch(self, payload: Payload) -> None:
        task = asyncio.create_task(self.sender.deliver(payload), name="batch")
        self._tasks[task] = payload.key
        task.add_done_callback(self.landed)

    def landed(self, task: asyncio.Task[int]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        failed = task.exception()
        if isinstance(failed, Exception):
            self._failed = self._failed or failed
        elif failed is None:
            self._accepted += task.result()

    async def land(self) -> None:
        """Wait for those under way."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def check_outcome(state: Any) -> None:
    """Raise the outcome of a batch unless it is good."""
    match state:
        case Accepted():
            return
        case Rejected():
            raise refusal(state.error)
    name = getattr(state, "NAME", "no outcome")
    raise AmqpError("amqp:not-implemented", f"the hub answered a send with {name}")
