"""A reader over the official SDK: pulls, mends, and hands out each event once.

One task listens, as long as there is room; `receive` takes what has arrived. What has arrived and
not been taken, and what the hub may still send, are together never more than `prefetch`.

    SdkLink -> arrived -> waiting -> receive -> rows.decode_events -> Event
               ^^^^^^^ this module

A broken link is replaced by a new one behind the last event that has arrived. What waits stays, so
there is no gap; an event that comes again all the same is known by its sequence number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from pumphouse.client.azure.calls import Caller
from pumphouse.client.azure.link import SdkLink
from pumphouse.client.base import PartitionEnd, ReaderOptions
from pumphouse.client.event_decoding import decode_events
from pumphouse.client.positions import partition_end, position_after
from pumphouse.errors import LocalProtocolError, PumphouseError
from pumphouse.events import Event, Position

log = logging.getLogger("pumphouse.client")

EVENT_BYTES_MAX = 1 << 20  # what the service allows at most
SIGN_OF_LIFE_S = 60.0  # while nothing is taken; the service waits for four minutes

CANCEL_AGAIN_S = 0.5

T = TypeVar("T")
Attach = Callable[[Position, Callable[[bytes], None]], Awaitable[SdkLink]]


class AzureReader:
    """Reads one partition, in order."""

    _link: SdkLink
    _listening: asyncio.Task[None]

    def __init__(
        self, options: ReaderOptions, start: Position, attach: Attach, caller: Caller
    ) -> None:
        self.options = options
        self._start = start
        self._attach = attach
        self._caller = caller
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._last: Event | None = None  # that was handed out
        self._end: PartitionEnd | None = None
        self._stir = asyncio.Event()  # something waits, or nothing more will come
        self._room = asyncio.Event()  # something was taken
        self._lost: PumphouseError | None = None
        self._closing = False
        self._failures = 0  # in a row: until an event comes, or the link has lasted for long
        self._since = 0.0  # when it was attached

    def __repr__(self) -> str:
        return (
            f"<AzureReader {self.options.group} {self.options.partition} "
            f"{len(self._waiting)} waiting>"
        )

    @property
    def end(self) -> PartitionEnd | None:
        return self._end

    async def open(self) -> None:
        """Attach, and begin to listen."""
        self._link = await self._caller.persist(self._attach_next)
        self._since = self._caller.clock.monotonic()
        self._listening = asyncio.create_task(self._listen(), name=f"{self!r} listens")

    # -- what the user does -----------------------------------------------------------------------

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; none if the deadline passes.

        A reader that was evicted or cut off for good hands out what has arrived, then raises why.
        """
        return await self._wait(self._take, max_events, deadline_s)

    async def receive_messages(self, max_events: int = 100, deadline_s: float = 1.0) -> list[bytes]:
        """The next encoded messages; after a reconnect one may come twice."""
        return await self._wait(self._take_payloads, max_events, deadline_s)

    async def _wait(
        self, take: Callable[[int], list[T]], max_events: int, deadline_s: float
    ) -> list[T]:
        found: list[T] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not (found := take(max_events)):
                    if self._lost is not None:
                        raise self._lost
                    await self._stir.wait()
        return found

    def _take(self, max_events: int) -> list[Event]:
        """What waits, without what was handed out before."""
        payloads = self._pop(max_events)
        events = self._without_repeats(decode_events(payloads, self.options.partition))
        self._last = events[-1] if events else self._last
        return events

    def _take_payloads(self, max_events: int) -> list[bytes]:
        payloads = self._pop(max_events)
        if payloads:
            self._last = decode_events(payloads[-1:], self.options.partition)[0]
        return payloads

    def _pop(self, max_events: int) -> list[bytes]:
        payloads = [self._waiting.popleft() for _ in range(min(max_events, len(self._waiting)))]
        if not self._waiting and self._lost is None:
            self._stir.clear()
        if payloads:
            self._bytes -= sum(map(len, payloads))
            self._room.set()
            if self.options.track_end:
                self._end = partition_end(payloads[-1]) or self._end
        return payloads

    def _without_repeats(self, events: list[Event]) -> list[Event]:
        last = -1 if self._last is None or self._last.sequence is None else self._last.sequence
        return [event for event in events if event.sequence is None or event.sequence > last]

    async def close(self) -> None:
        """Leave the partition. What was prefetched is forgotten; whoever still waits is told."""
        self._closing = True
        while not self._listening.done():
            # The SDK waits with wait_for, which before Python 3.12 may swallow a cancellation.
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=CANCEL_AGAIN_S)
        await self._link.close()
        self._waiting.clear()
        self._end_with(LocalProtocolError(f"{self!r} has been closed"))

    # -- what goes on meanwhile -------------------------------------------------------------------

    async def _listen(self) -> None:
        """Listen until the link is lost for good, or until cancelled."""
        try:
            while not self._closing:
                try:
                    await self._turn()
                except Exception as failure:
                    await self._mend(self._caller.understand(failure))
        except PumphouseError as lost:
            self._end_with(lost)
            await self._link.close()

    async def _turn(self) -> None:
        """Take in a few events, if there is room for them."""
        options, link = self.options, self._link
        room = options.prefetch - len(self._waiting)
        if room - link.credit >= max(1, options.prefetch // 2):
            await link.grant(room)
        # Even if each is as large as can be, they fit.
        fitting = max(1, (options.prefetch_bytes_max - self._bytes) // EVENT_BYTES_MAX)
        if link.credit and self._bytes < options.prefetch_bytes_max:
            await link.listen(min(link.credit, fitting))
        else:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(SIGN_OF_LIFE_S):
                await self._room.wait()
        except TimeoutError:
            await self._link.grant(self._link.credit)

    async def _mend(self, broken: PumphouseError) -> None:
        """Replace a broken link; raises if it is lost for good."""
        await self._link.close()
        clock, retry = self._caller.clock, self._caller.retry
        lasted_s = clock.monotonic() - self._since
        self._failures = 1 if lasted_s >= retry.most_s else self._failures + 1
        self._link = await self._caller.persist(self._attach_next, broken, self._failures)
        self._since = clock.monotonic()
        log.info("attach again partition=%s from=%s", self.options.partition, self._next())

    async def _attach_next(self) -> SdkLink:
        return await self._attach(self._next(), self._arrived)

    def _next(self) -> Position:
        """Behind everything that has arrived; where we started, if nothing has."""
        last = self._last
        if self._waiting:
            last = decode_events([self._waiting[-1]], self.options.partition)[0]
        return self._start if last is None else position_after(last)

    def _arrived(self, payload: bytes) -> None:
        self._waiting.append(payload)
        self._bytes += len(payload)
        self._failures = 0
        self._stir.set()

    def _end_with(self, why: PumphouseError) -> None:
        if self._lost is None:
            self._lost = why
        self._stir.set()
