"""A reader over the official SDK that returns each event once.

One task receives while the buffer has room; `receive` takes events from the buffer. Buffered events
and granted credit together never exceed `prefetch`.

    SdkLink -> arrived -> waiting -> receive -> decode_events -> Event
               ^^^^^^^ this module

A broken link is replaced by one that starts after the last buffered event, so there is no gap. An
event that arrives twice is recognised by its sequence number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from pumphouse.client.azure.calls import SdkCaller
from pumphouse.client.azure.link import SdkLink
from pumphouse.client.base import PartitionEnd, ReaderOptions
from pumphouse.client.event_decoding import decode_events
from pumphouse.client.positions import partition_end, position_after
from pumphouse.errors import LocalProtocolError, PumphouseError
from pumphouse.events import Event, Position
from pumphouse.logs import line

log = logging.getLogger("pumphouse.client")

EVENT_BYTES_MAX = 1 << 20  # the limit of the service
HEARTBEAT_S = 60.0  # interval while the buffer is full; the service's idle timeout is four minutes

CANCEL_AGAIN_S = 0.5  # before the next attempt to cancel the receiving task

T = TypeVar("T")
Attach = Callable[[Position, Callable[[bytes], None]], Awaitable[SdkLink]]


class AzureReader:
    """Reads one partition, in order."""

    _link: SdkLink
    _listening: asyncio.Task[None]

    def __init__(
        self, options: ReaderOptions, start: Position, attach: Attach, caller: SdkCaller
    ) -> None:
        self.options = options
        self._start = start
        self._attach = attach
        self._caller = caller
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._last: Event | None = None  # returned by receive
        self._end: PartitionEnd | None = None
        self._wakeup = asyncio.Event()  # events are buffered, or the reader has ended
        self._room = asyncio.Event()  # the buffer has room
        self._failure: PumphouseError | None = None
        self._closing = False
        self._failures = 0  # consecutive: reset by an event, or by a link that lasted `most_s`
        self._attached_at = 0.0  # monotonic time

    def __repr__(self) -> str:
        return (
            f"<AzureReader {self.options.group} {self.options.partition} "
            f"{len(self._waiting)} waiting>"
        )

    @property
    def buffered_events(self) -> int:
        return len(self._waiting)

    @property
    def end(self) -> PartitionEnd | None:
        return self._end

    async def open(self) -> None:
        """Attach, and start receiving."""
        self._link = await self._caller.call_with_retries(self._attach_next)
        self._attached_at = self._caller.clock.monotonic()
        self._listening = asyncio.create_task(self._listen(), name=f"{self!r} receives")

    # -- receiving --------------------------------------------------------------------------------

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; an empty list at the deadline.

        A reader that is evicted or permanently disconnected returns its buffered events first and
        then raises the reason.
        """
        return await self._take_within(self._take, max_events, deadline_s)

    async def receive_messages(self, max_events: int = 100, deadline_s: float = 1.0) -> list[bytes]:
        """The next encoded messages; after a reconnect one may come twice."""
        return await self._take_within(self._take_payloads, max_events, deadline_s)

    async def _take_within(
        self, take: Callable[[int], list[T]], max_events: int, deadline_s: float
    ) -> list[T]:
        taken: list[T] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s):
                while not (taken := take(max_events)):
                    if self._failure is not None:
                        raise self._failure
                    await self._wakeup.wait()
        return taken

    def _take(self, max_events: int) -> list[Event]:
        """Decode buffered events, without duplicates."""
        payloads = self._pop(max_events)
        events = self._without_duplicates(decode_events(payloads, self.options.partition))
        self._last = events[-1] if events else self._last
        return events

    def _take_payloads(self, max_events: int) -> list[bytes]:
        payloads = self._pop(max_events)
        if payloads:
            self._last = decode_events(payloads[-1:], self.options.partition)[0]
        return payloads

    def _pop(self, max_events: int) -> list[bytes]:
        payloads = [self._waiting.popleft() for _ in range(min(max_events, len(self._waiting)))]
        if not self._waiting and self._failure is None:
            self._wakeup.clear()
        if payloads:
            self._bytes -= sum(map(len, payloads))
            self._room.set()
            if self.options.track_end:
                self._end = partition_end(payloads[-1]) or self._end
        return payloads

    def _without_duplicates(self, events: list[Event]) -> list[Event]:
        last = -1 if self._last is None or self._last.sequence is None else self._last.sequence
        return [event for event in events if event.sequence is None or event.sequence > last]

    async def close(self) -> None:
        """Detach from the partition and drop the buffer; a waiting `receive` raises."""
        self._closing = True
        while not self._listening.done():
            # The SDK uses wait_for, which may swallow a cancellation before Python 3.12.
            self._listening.cancel()
            await asyncio.wait([self._listening], timeout=CANCEL_AGAIN_S)
        await self._link.close()
        self._waiting.clear()
        self._end_with(LocalProtocolError(f"{self!r} has been closed"))

    # -- filling the buffer -----------------------------------------------------------------------

    async def _listen(self) -> None:
        """Receive until the link is lost permanently, or until cancelled."""
        try:
            while not self._closing:
                try:
                    await self._receive_or_wait()
                except Exception as failure:
                    await self._reattach(self._caller.translate(failure))
        except PumphouseError as lost:
            self._end_with(lost)
            await self._link.close()

    async def _receive_or_wait(self) -> None:
        """Receive a few events; if the buffer is full, wait for room."""
        options, link = self.options, self._link
        room = options.prefetch - len(self._waiting)
        if room - link.credit >= max(1, options.prefetch // 2):
            await link.grant(room)
        # The number of events that fit even if all have the largest size.
        bytes_max = options.buffer_bytes
        events_max = max(1, (bytes_max - self._bytes) // EVENT_BYTES_MAX)
        if link.credit and self._bytes < bytes_max:
            await link.listen(min(link.credit, events_max))
        else:
            await self._wait_for_room()

    async def _wait_for_room(self) -> None:
        self._room.clear()
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._room.wait()
        except TimeoutError:
            await self._link.grant(self._link.credit)  # a heartbeat

    async def _reattach(self, broken: PumphouseError) -> None:
        """Replace a broken link; raises if it is lost permanently."""
        await self._link.close()
        clock, retry = self._caller.clock, self._caller.retry
        lasted_s = clock.monotonic() - self._attached_at
        self._failures = 1 if lasted_s >= retry.most_s else self._failures + 1
        self._link = await self._caller.call_with_retries(self._attach_next, broken, self._failures)
        self._attached_at = clock.monotonic()
        log.info(
            "%s",
            line(
                "link_reattached", partition=self.options.partition, position=self._next_position()
            ),
        )

    async def _attach_next(self) -> SdkLink:
        return await self._attach(self._next_position(), self._arrived)

    def _next_position(self) -> Position:
        """The position after the last event that has arrived, or the start."""
        last = self._last
        if self._waiting:
            last = decode_events([self._waiting[-1]], self.options.partition)[0]
        return self._start if last is None else position_after(last)

    def _arrived(self, payload: bytes) -> None:
        self._waiting.append(payload)
        self._bytes += len(payload)
        self._failures = 0
        self._wakeup.set()

    def _end_with(self, cause: PumphouseError) -> None:
        if self._failure is None:
            self._failure = cause
        self._wakeup.set()
