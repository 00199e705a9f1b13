"""Sends to one partition, or to a hub that chooses the partition, over as many links as needed.

Several batches may be pending at once, to save a round trip per batch. Batches whose order matters
(to one partition, or with one key) are sent one after the other: the next one is sent after the
outcome of the previous one, so a re-send does not change the order.

    NativeClient.sender -> NativeSender -> cut_batches -> Connection.send_delivery -> outcome
                           ^^^^^^^^^^^^ this module

After a transient failure a batch is re-sent unchanged. If its outcome was lost with the connection,
its events may then be stored twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
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
from pumphouse.client.batches import Payload, as_given, cut_batches
from pumphouse.client.errors import error_from
from pumphouse.client.native.connection import Connection
from pumphouse.client.native.reconnect import AuthorizedConnection, ReconnectingConnection
from pumphouse.errors import AmqpError, AuthError, LocalProtocolError, PumphouseError
from pumphouse.events import Event

SIZE_MAX = 1024 * 1024  # of a message, if the hub sends no limit
SIZE_MAX_OF_ANY_TIER = 20 << 20  # a larger limit of a hub is not used
UNDER_WAY_MAX = 8  # batches that wait for their outcome; up to 1 MiB each


class NativeSender:
    """Sends events and waits for their acknowledgement. Made by `NativeClient.sender`."""

    def __init__(
        self, connection: ReconnectingConnection, hub: str, partition: str | None = None
    ) -> None:
        self.connection = connection
        self.hub = hub
        self.partition = partition
        self.address = hub if partition is None else f"{hub}/Partitions/{partition}"
        self.size_max = SIZE_MAX
        self.accepted = 0  # acknowledged events
        self.link: SenderLink | None = None
        self.link_connection: Connection | None = None  # the connection of `link`
        self._attaching = asyncio.Lock()  # pending batches share one link
        self._room = asyncio.Event()
        self._link_failure: PumphouseError | None = None  # why the link was detached
        self._closed = False

    def __repr__(self) -> str:
        return f"<NativeSender {self.address} {self.accepted} accepted>"

    # -- attaching --------------------------------------------------------------------------------

    async def open(self) -> None:
        await self.connection.run_with_retries(self.ensure_attached)

    async def ensure_attached(self, authorized: AuthorizedConnection) -> SenderLink:
        """The link, attached again if it was lost."""
        async with self._attaching:
            if self._closed:
                raise LocalProtocolError(f"the sender to {self.address} has been closed")
            if self.link is None or self.link_connection is not authorized.connection:
                await self.attach(authorized)
            assert self.link is not None
            return self.link

    async def attach(self, authorized: AuthorizedConnection) -> None:
        await authorized.tokens.ensure(self.hub)
        self.link, self._link_failure = None, None
        link, response = await authorized.connection.attach(
            self,
            SENDER,
            source=Source(address=self.address),
            target=Target(address=self.address),
            snd_settle_mode=UNSETTLED,
            rcv_settle_mode=SECOND,
            initial_delivery_count=0,
        )
        if self._link_failure is not None:
            raise self._link_failure
        assert isinstance(link, SenderLink)
        self.link, self.link_connection = link, authorized.connection
        self.size_max = min(response.max_message_size or SIZE_MAX, SIZE_MAX_OF_ANY_TIER)

    # -- sending ----------------------------------------------------------------------------------

    def send(
        self,
        events: Iterable[Event],
        *,
        batch_events_max: int = BATCH_EVENTS_MAX,
        batch_bytes_max: int | None = None,
        under_way_max: int | None = None,
    ) -> Coroutine[Any, Any, int]:
        """Send events; returns their number after the hub has acknowledged all.

        After an error `accepted` is the number of acknowledged events. The outcome of pending
        batches may be unknown.
        """
        # Not a coroutine itself: a coroutine would take the events only when it is awaited.
        return self._send(as_given(events), batch_events_max, batch_bytes_max, under_way_max)

    async def _send(
        self,
        events: Iterable[Event],
        batch_events_max: int,
        batch_bytes_max: int | None,
        under_way_max: int | None,
    ) -> int:
        size_max = min(self.size_max, batch_bytes_max or self.size_max)
        payloads = cut_batches(events, size_max, batch_events_max)
        if self.partition is None:
            pending_max = min(UNDER_WAY_MAX, under_way_max or UNDER_WAY_MAX)
            return await PendingBatches(self, pending_max).send_all(payloads)
        count = 0
        for payload in payloads:
            count += await self.deliver(payload)
        return count

    async def deliver(self, payload: Payload) -> int:
        """Send a payload until the hub accepts or refuses it; returns its number of events."""

        async def attempt(authorized: AuthorizedConnection) -> None:
            try:
                await self.deliver_once(authorized, payload)
            except AuthError:
                # The token may have expired while the machine slept: put a new one, once.
                authorized.tokens.invalidate(self.hub)
                await self.deliver_once(authorized, payload)

        await self.connection.run_with_retries(attempt)
        self.accepted += payload.event_count
        return payload.event_count

    async def deliver_once(self, authorized: AuthorizedConnection, payload: Payload) -> None:
        link = await self.ensure_attached(authorized)
        connection = authorized.connection
        async with connection.within(connection.options.answer_s, "make room for a batch"):
            while not self.has_room(link, connection):
                self._room.clear()
                await self._room.wait()
        outcome = connection.send_delivery(link, payload.data, payload.message_format)
        async with connection.within(connection.options.answer_s, "acknowledge a batch"):
            check_outcome(await outcome)

    def has_room(self, link: SenderLink, connection: Connection) -> bool:
        connection.check()
        if link is not self.link:
            raise self._link_failure or AmqpError("amqp:link:detach-forced", "the link was lost")
        return connection.has_room(link)

    async def close(self) -> None:
        self._closed = True
        link, connection = self.link, self.link_connection
        self.link = None
        if link is not None and connection is not None:
            with suppress(PumphouseError):  # the hub detaches in any case
                await connection.detach(link)

    # -- events of the link -----------------------------------------------------------------------

    def on_delivery(self, delivery: Delivered) -> None:
        """Not used: nothing arrives on a sending link."""

    def on_run(self, payloads: Sequence[bytes]) -> None:
        """Not used: nothing arrives on a sending link."""

    def on_room(self) -> None:
        self._room.set()

    def on_lost(self, cause: PumphouseError) -> None:
        self._link_failure = cause
        self.link = None
        self._room.set()


class PendingBatches:
    """The pending batches of one `send`, at most one of each key."""

    def __init__(self, sender: NativeSender, under_way_max: int = UNDER_WAY_MAX) -> None:
        self.sender = sender
        self.under_way_max = under_way_max
        self._tasks: dict[asyncio.Task[int], str | None] = {}  # with the key of each batch
        self._accepted = 0
        self._failure: Exception | None = None

    async def send_all(self, payloads: Iterable[Payload]) -> int:
        """Send all payloads. After a failure, wait for the pending ones and send no others."""
        try:
            await self.start_all(payloads)
            await self.wait()
        except asyncio.CancelledError:
            for task in list(self._tasks):
                task.cancel()
            await self.wait()
            raise
        if self._failure is not None:
            raise self._failure
        return self._accepted

    async def start_all(self, payloads: Iterable[Payload]) -> None:
        try:
            for payload in payloads:
                await self.wait_for_room(payload.key)
                if self._failure is not None:
                    return
                self.start(payload)
                # The hub works on this batch while the next one is encoded.
                await asyncio.sleep(0)
        except Exception as wrong:  # raised by `send_all` after the pending batches are done
            self._failure = self._failure or wrong

    async def wait_for_room(self, key: str | None) -> None:
        while len(self._tasks) >= self.under_way_max or (key is not None and self.has_key(key)):
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def has_key(self, key: str) -> bool:
        return key in self._tasks.values()

    def start(self, payload: Payload) -> None:
        task = asyncio.create_task(self.sender.deliver(payload), name="batch")
        self._tasks[task] = payload.key
        task.add_done_callback(self.on_done)

    def on_done(self, task: asyncio.Task[int]) -> None:
        del self._tasks[task]
        if task.cancelled():
            return
        failed = task.exception()
        if isinstance(failed, Exception):
            self._failure = self._failure or failed
        elif failed is None:
            self._accepted += task.result()

    async def wait(self) -> None:
        """Wait for the pending batches."""
        while self._tasks:
            await asyncio.wait(self._tasks)


def check_outcome(state: Any) -> None:
    """Raise an error unless the outcome of a batch is `accepted`."""
    match state:
        case Accepted():
            return
        case Rejected():
            raise error_from(state.error)
    name = getattr(state, "NAME", "no outcome")
    raise AmqpError("amqp:not-implemented", f"unexpected outcome of a send: {name}")
