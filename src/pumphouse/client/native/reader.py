"""Reads one partition, in order and without a gap, over as many links as it takes.

What has arrived stays when a link is lost; the next link starts behind the last event that arrived.
So an event is neither missed nor handed out twice, whatever happens to the connection. The place to
start is settled before the first link is attached: "latest" is looked up once and is from then on
a number, so that a break before the first event skips nothing.

    Connection -> NativeReader.run_delivered -> buffer -> receive -> rows.decode_events -> Event
            ^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import FIRST, RECEIVER, SETTLED, Source, Target
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import PartitionEnd, ReaderOptions
from pumphouse.client.event_decoding import decode_events
from pumphouse.client.native.connection import Connection
from pumphouse.client.native.management import ask_partition
from pumphouse.client.native.prefetch import SIZE_GUESS, Bounds, credit_for, guess_size
from pumphouse.client.native.reconnect import AuthorizedConnection, ReconnectingConnection
from pumphouse.client.positions import partition_end, position_after, position_after_all
from pumphouse.client.retries import judge
from pumphouse.client.selectors import filter_for
from pumphouse.errors import AuthError, LocalProtocolError, PumphouseError
from pumphouse.events import Event, Position

RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"


class NativeReader:
    """Reads one partition. Made by `NativeClient.reader`."""

    def __init__(self, line: ReconnectingConnection, hub: str, options: ReaderOptions) -> None:
        self.line = line
        self.hub = hub
        self.options = options
        self.address = f"{hub}/ConsumerGroups/{options.group}/Partitions/{options.partition}"
        self.start = options.position  # settled once `open` is done
        self.link: ReceiverLink | None = None
        self.wire: Connection | None = None  # that the link is on
        self._bounds = Bounds(options.prefetch, options.prefetch_bytes_max)
        self._buffer: deque[bytes] = deque()
        self._bytes = 0  # in the buffer
        self._size = SIZE_GUESS  # of the events to come
        self._last: Event | None = None  # that was handed out
        self._newest: bytes | None = None  # its message: what it says of the partition's end
        self._stir = asyncio.Event()
        self._lost: Exception | None = None  # for good
        self._fell: PumphouseError | None = None  # a link that was not ours yet is gone again
        self._mending: asyncio.Task[None] | None = None
        self._failures = 0  # in a row
        self._since = 0.0  # when the link was attached, or its first event came

    def __repr__(self) -> str:
        state = "lost" if self._lost else "attached" if self.link else "detached"
        return f"<NativeReader {self.address} {state} {len(self._buffer)} waiting>"

    @property
    def end(self) -> PartitionEnd | None:
        """The newest event of the partition that the hub has told of."""
        return None if self._newest is None else partition_end(self._newest)

    # -- attaching --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Settle where to start, and attach."""
        await self.line.persist(self.open_once)

    async def open_once(self, contact: AuthorizedConnection) -> None:
        if self.start.kind == "latest":
            found = await ask_partition(contact, self.hub, self.options.partition)
            self.start = position_after_all(found)
        await self.attach(contact)

    async def attach(self, contact: AuthorizedConnection) -> None:
        await contact.tokens.cover(self.hub)
        self._fell = None
        link, _ = await contact.wire.attach(
            self,
            RECEIVER,
            source=Source(address=self.address, filter=filter_for(self.next_position())),
            target=Target(address="reader"),
            snd_settle_mode=SETTLED,
            rcv_settle_mode=FIRST,
            desired_capabilities=(RUNTIME_METRIC,) if self.options.track_end else (),
            properties=self.properties(),
        )
        if self._fell is not None:
            raise self._fell
        assert isinstance(link, ReceiverLink)
        link.take_runs()
        self.link, self.wire = link, contact.wire
        self._since = self.line.options.clock.monotonic()
        self.top_up()

    def properties(self) -> dict[Any, Any] | None:
        said: dict[Any, Any] = {}
        if self.options.epoch is not None:
            said[Symbol("com.microsoft:epoch")] = self.options.epoch
        if self.options.name:
            said[Symbol("com.microsoft:receiver-name")] = self.options.name
        return said or None

    def next_position(self) -> Position:
        """Behind the last event that has arrived, handed out or not."""
        last = self._last
        if self._buffer:
            last = decode_events([self._buffer[-1]], self.options.partition)[0]
        return self.start if last is None else position_after(last)

    # -- what the user calls ----------------------------------------------------------------------

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; none if the deadline passes.

        A reader that was evicted or cut off for good hands out what has arrived, then raises why.
        """
        if not self._buffer and self._lost is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._stir.wait()
        if not self._buffer and self._lost is not None:
            raise self._lost
        events = self.hand_out(min(max_events, len(self._buffer)))
        if self.link is not None:
            self.top_up()
        elif self._mending is None and self._lost is None and self.may_resume():
            self.mend()
        return events

    def hand_out(self, count: int) -> list[Event]:
        """Events from the buffer; they leave it once they are understood, not before."""
        buffer = self._buffer
        taken = list(buffer if count == len(buffer) else islice(buffer, count))
        if not taken:
            return []
        events = decode_events(taken, self.options.partition)
        self._last = events[-1]
        if self.options.track_end:
            self._newest = taken[-1]
        self.forget(taken)
        return events

    def forget(self, taken: Sequence[bytes]) -> None:
        if len(taken) == len(self._buffer):
            self._buffer.clear()
            self._bytes = 0
            if self._lost is None:
                self._stir.clear()
            return
        for payload in taken:
            self._buffer.popleft()
            self._bytes -= len(payload)

    async def close(self) -> None:
        """Leave the partition. What was prefetched is forgotten."""
        if mending := self.stop():
            await asyncio.wait(mending)
        link, wire = self.link, self.wire
        self.link = None
        if link is not None and wire is not None:
            with suppress(PumphouseError):  # it has let go in any case, or will notice soon
                await wire.detach(link)

    def stop(self) -> list[asyncio.Task[None]]:
        """Hand out nothing more, and mend nothing; the tasks that are about to end for it."""
        mending = [] if self._mending is None else [self._mending]
        for task in mending:
            task.cancel()
        self._buffer.clear()
        self._bytes = 0
        self.end_for(LocalProtocolError(f"the reader of {self.address} has been closed"))
        return mending

    # -- what arrives -----------------------------------------------------------------------------

    def top_up(self) -> None:
        """Grant credit again once half of it is used and its events are taken."""
        if self.link is None or self.wire is None or not self.link.attached:
            return
        credit = credit_for(
            self._bounds, len(self._buffer), self._bytes, self._size, self.link.credit
        )
        if credit is not None:
            self.link.grant(credit)
            self.wire.flush()

    def delivered(self, delivery: Delivered) -> None:
        if not delivery.settled:
            delivery.link.session.accept(delivery.delivery_id)
        self.run_delivered([delivery.payload])

    def run_delivered(self, payloads: list[bytes]) -> None:
        if self._lost is not None:
            return
        sizes = list(map(len, payloads))
        self._size = guess_size(self._size, max(sizes))
        total = sum(sizes)
        if self._bytes + total <= self._bounds.bytes:
            self._buffer.extend(payloads)
            self._bytes += total
            self._failures = 0
        else:
            self.take_some(payloads)
        self._stir.set()
        self.top_up()

    def take_some(self, payloads: Sequence[bytes]) -> None:
        """Keep what the bound allows, give or take one, and let go: the rest is read again."""
        for payload in payloads:
            if self._bytes >= self._bounds.bytes:
                self.let_go()
                return
            self._buffer.append(payload)
            self._bytes += len(payload)
            self._failures = 0

    def let_go(self) -> None:
        """More has come than may wait. Give up the link until there is room."""
        if self.link is not None and self.wire is not None:
            self.wire.drop(self.link)
        self.link = None

    def may_resume(self) -> bool:
        """Whether there is room again: half of it, so that links do not come and go."""
        return self._bytes <= self._bounds.bytes // 2

    def stirred(self) -> None:
        """Room to send means nothing to a reader."""

    # -- losing a link and mending it -------------------------------------------------------------

    def lost(self, why: PumphouseError) -> None:
        if self.link is None:
            self._fell = why
            return
        self.link = None
        if self._lost is not None:
            return
        self.count_failure()
        verdict = judge(why, self._failures, self.line.options.retry, again=True)
        if isinstance(why, AuthError) and self._failures == 1:
            # A token that ran out behind our back (the machine slept) is put again, once.
            self.renew_token()
            verdict = None
        if verdict is None:
            self.mend()
        else:
            self.end_for(verdict)

    def count_failure(self) -> None:
        """A link that has lasted for as long as the longest delay was none."""
        lasted_s = self.line.options.clock.monotonic() - self._since
        if lasted_s >= self.line.options.retry.most_s:
            self._failures = 0
        self._failures += 1

    def renew_token(self) -> None:
        if (contact := self.line.current) is not None:
            contact.tokens.forget(self.hub)

    def mend(self) -> None:
        self._mending = asyncio.create_task(self.attach_again(), name=f"mending {self.address}")

    async def attach_again(self) -> None:
        try:
            # The first attempt is made at once; it is those that follow in a row which wait.
            failures = max(0, self._failures - 1)
            await self.line.persist(self.attach, failures=failures, again=True)
        except Exception as failed:  # whoever receives hears it, also if it is a bug
            self.end_for(failed)
        finally:
            self._mending = None

    def end_for(self, why: Exception) -> None:
        """There will be no further event."""
        self._lost = self._lost or why
        self._stir.set()
