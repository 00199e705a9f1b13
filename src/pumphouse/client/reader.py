"""A link on which the events of one partition arrive.

Credit is what bounds the memory: what has arrived and not been taken, and what the hub may still
send, are together never more than `prefetch`.

    Wire -> Reader.delivered -> buffer -> receive -> batches.read_event -> Event
            ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import FIRST, RECEIVER, SETTLED, Source, Target
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import ReaderOptions
from pumphouse.client.batches import read_event
from pumphouse.client.selectors import filter_for
from pumphouse.client.wire import Wire
from pumphouse.errors import PumphouseError
from pumphouse.events import Event


class Reader:
    """Reads one partition, in order."""

    link: ReceiverLink

    def __init__(self, wire: Wire, hub: str, options: ReaderOptions) -> None:
        self.wire = wire
        self.options = options
        self.address = f"{hub}/ConsumerGroups/{options.group}/Partitions/{options.partition}"
        self._buffer: deque[bytes] = deque()
        self._stir = asyncio.Event()
        self._lost: PumphouseError | None = None

    def __repr__(self) -> str:
        return f"<Reader {self.address} {len(self._buffer)} waiting>"

    async def attach(self) -> None:
        link, _ = await self.wire.attach(
            self,
            RECEIVER,
            source=Source(address=self.address, filter=filter_for(self.options.position)),
            target=Target(address="reader"),
            snd_settle_mode=SETTLED,
            rcv_settle_mode=FIRST,
            properties=self.properties(),
        )
        assert isinstance(link, ReceiverLink)
        self.link = link
        self.top_up()

    def properties(self) -> dict[Any, Any] | None:
        epoch = self.options.epoch
        return None if epoch is None else {Symbol("com.microsoft:epoch"): epoch}

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; none if the deadline passes.

        A reader that was evicted or cut off hands out what has arrived, then raises why.
        """
        if not self._buffer and self._lost is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._stir.wait()
        count = min(max_events, len(self._buffer))
        if not count and self._lost is not None:
            raise self._lost
        taken = [self._buffer.popleft() for _ in range(count)]
        if not self._buffer:
            self._stir.clear()
        self.top_up()
        return [read_event(payload, self.options.partition) for payload in taken]

    def top_up(self) -> None:
        """Grant credit again once half of it is used and its events are taken."""
        room = self.options.prefetch - len(self._buffer)
        if self._lost is None and room - self.link.credit >= max(1, self.options.prefetch // 2):
            self.link.grant(room)
            self.wire.flush()

    async def close(self) -> None:
        await self.wire.detach(self.link)

    def delivered(self, delivery: Delivered) -> None:
        if not delivery.settled:
            delivery.link.session.accept(delivery.delivery_id)
        self._buffer.append(delivery.payload)
        self._stir.set()

    def stirred(self) -> None:
        """Room to send means nothing to a reader."""

    def lost(self, why: PumphouseError) -> None:
        self._lost = why
        self._stir.set()
