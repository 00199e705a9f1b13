"""Reads one partition, in order and without gaps, over as many links as needed.

Buffered events survive the loss of a link; the next link starts after the last buffered event. So
no event is missed or returned twice. "latest" is resolved to a sequence number before the first
attach, so no event is skipped if the connection breaks before the first event arrives.

    Connection -> NativeReader.on_run -> buffer -> receive -> decode_events -> Event
                  ^^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pumphouse.amqp.columnar.payload_blocks import sizes_of
from pumphouse.amqp.events import Delivered
from pumphouse.amqp.links import ReceiverLink
from pumphouse.amqp.performatives import FIRST, RECEIVER, SETTLED, Source, Target
from pumphouse.amqp.types import Symbol
from pumphouse.client.base import PartitionEnd, ReaderOptions
from pumphouse.client.native.connection import Connection
from pumphouse.client.native.management import request_partition
from pumphouse.client.native.payload_buffer import PayloadBuffer
from pumphouse.client.native.prefetch import SIZE_GUESS, Bounds, credit_for, guess_size
from pumphouse.client.native.reconnect import AuthorizedConnection, ReconnectingConnection
from pumphouse.client.native.recreated import is_same_event, position_of, recreated_error
from pumphouse.client.positions import partition_end, position_after, position_after_all
from pumphouse.client.retries import failure_to_raise
from pumphouse.client.selectors import filter_for
from pumphouse.errors import AuthError, LocalProtocolError, PumphouseError, RemoteProtocolError
from pumphouse.events import Event, Position

RUNTIME_METRIC = "com.microsoft:enable-receiver-runtime-metric"


class NativeReader:
    """Reads one partition. Made by `NativeClient.reader`."""

    def __init__(
        self, connection: ReconnectingConnection, hub: str, options: ReaderOptions
    ) -> None:
        self.connection = connection
        self.hub = hub
        self.options = options
        self.address = f"{hub}/ConsumerGroups/{options.group}/Partitions/{options.partition}"
        self.start = options.position  # resolved by `open`
        self.link: ReceiverLink | None = None
        self.link_connection: Connection | None = None  # of the link
        self._last_bounds = Bounds(options.prefetch, options.buffer_bytes)
        self._buffer = PayloadBuffer()
        self._size_estimate = SIZE_GUESS  # of the next events
        self._last: Event | None = None  # returned by receive
        self._newest: bytes | None = None  # the message of `_last`; it contains the partition end
        self._wakeup = asyncio.Event()
        self._failure: Exception | None = None  # permanent
        self._attach_failure: PumphouseError | None = None  # detached during the attach
        self._reattaching: asyncio.Task[None] | None = None
        self._failures = 0  # consecutive
        self._attached_at = 0.0  # monotonic time
        self._repeated: Event | None = None  # the hub sends this event again, before new ones

    def __repr__(self) -> str:
        state = "lost" if self._failure else "attached" if self.link else "detached"
        return f"<NativeReader {self.address} {state} {len(self._buffer)} waiting>"

    @property
    def buffered_events(self) -> int:
        return len(self._buffer)

    @property
    def end(self) -> PartitionEnd | None:
        """The newest event of the partition that the hub has reported."""
        return None if self._newest is None else partition_end(self._newest)

    @property
    def _bounds(self) -> Bounds:
        """The limits of the buffer as they are now."""
        limit = self.options.buffer_bytes
        if limit != self._last_bounds.bytes:
            self._last_bounds = Bounds(self.options.prefetch, limit)
        return self._last_bounds

    # -- attaching --------------------------------------------------------------------------------

    async def open(self) -> None:
        """Resolve the start position, and attach."""
        await self.connection.run_with_retries(self.open_once)

    async def open_once(self, authorized: AuthorizedConnection) -> None:
        if self.start.kind == "latest":
            properties = await request_partition(authorized, self.hub, self.options.partition)
            self.start = position_after_all(properties)
        await self.attach(authorized)

    async def attach(self, authorized: AuthorizedConnection) -> None:
        await authorized.tokens.ensure(self.hub)
        self._attach_failure = None
        link, _ = await authorized.connection.attach(
            self,
            RECEIVER,
            source=Source(address=self.address, filter=filter_for(self.position_to_attach())),
            target=Target(address="reader"),
            snd_settle_mode=SETTLED,
            rcv_settle_mode=FIRST,
            desired_capabilities=(RUNTIME_METRIC,) if self.options.track_end else (),
            properties=self.properties(),
        )
        if self._attach_failure is not None:
            raise self._attach_failure
        assert isinstance(link, ReceiverLink)
        link.take_runs()
        self.link, self.link_connection = link, authorized.connection
        self._attached_at = self.connection.settings.options.clock.monotonic()
        self.top_up()

    def properties(self) -> dict[Any, Any] | None:
        properties: dict[Any, Any] = {}
        if self.options.epoch is not None:
            properties[Symbol("com.microsoft:epoch")] = self.options.epoch
        if self.options.name:
            properties[Symbol("com.microsoft:receiver-name")] = self.options.name
        return properties or None

    def next_position(self) -> Position:
        """The position after the last event that has arrived."""
        last = self.last_arrived()
        return self.start if last is None else position_after(last)

    def last_arrived(self) -> Event | None:
        return self.decode([self._buffer.last])[0] if self._buffer else self._last

    def position_to_attach(self) -> Position:
        """The next position; with `detect_recreated` that of the last event."""
        last = self.last_arrived() if self.options.detect_recreated else None
        self._repeated = None if last is None or last.sequence is None else last
        return self.next_position() if self._repeated is None else position_of(self._repeated)

    # -- receiving --------------------------------------------------------------------------------

    async def receive(self, max_events: int = 100, deadline_s: float = 1.0) -> list[Event]:
        """The next events, as soon as there is one; an empty list at the deadline.

        A reader that is evicted or permanently disconnected returns its buffered events first and
        then raises the reason.
        """
        self.connection.check_process()
        if not self._buffer and self._failure is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline_s):
                    await self._wakeup.wait()
        if not self._buffer and self._failure is not None:
            raise self._failure
        events = self.take(min(max_events, len(self._buffer)))
        if self.link is not None:
            self.top_up()
        elif self._reattaching is None and self._failure is None and self.has_room():
            self.reattach()
        return events

    def take(self, count: int) -> list[Event]:
        """Decode events from the buffer. They leave it only if decoding succeeds."""
        runs = self._buffer.first(count)
        if not runs:
            return []
        events = self.decode(runs[0])
        for payloads in runs[1:]:
            events += self.decode(payloads)
        self._last = events[-1]
        if self.options.track_end:
            self._newest = runs[-1][-1]
        self._buffer.drop(runs)
        if not self._buffer and self._failure is None:
            self._wakeup.clear()
        return events

    def decode(self, payloads: Sequence[bytes]) -> list[Event]:
        # Not needed to send events, and slow to import.
        from pumphouse.client.event_decoding import decode_events

        try:
            return decode_events(payloads, self.options.partition)
        except RemoteProtocolError as wrong:
            sent = f"{self.connection.settings.route.address} sent an invalid event of"
            raise RemoteProtocolError(f"{sent} {self.address}: {wrong}", wrong.condition) from None

    async def close(self) -> None:
        """Detach from the partition and drop the buffered events."""
        if reattaching := self.stop():
            await asyncio.wait(reattaching)
        link, connection = self.link, self.link_connection
        self.link = None
        if link is not None and connection is not None:
            with suppress(PumphouseError):  # the hub detaches in any case
                await connection.detach(link)

    def stop(self) -> list[asyncio.Task[None]]:
        """Drop the buffer and stop reattaching; returns the tasks that are ending."""
        reattaching = [] if self._reattaching is None else [self._reattaching]
        for task in reattaching:
            task.cancel()
        self._buffer.clear()
        self.fail(LocalProtocolError(f"the reader of {self.address} has been closed"))
        return reattaching

    # -- deliveries -------------------------------------------------------------------------------

    def top_up(self) -> None:
        """Grant credit after half of it is used and its events are received."""
        if self.link is None or self.link_connection is None or not self.link.attached:
            return
        credit = credit_for(
            self._bounds,
            len(self._buffer),
            self._buffer.bytes,
            self._size_estimate,
            self.link.credit,
        )
        if credit is not None:
            self.link.grant(credit)
            self.link_connection.flush()

    def on_delivery(self, delivery: Delivered) -> None:
        if not delivery.settled:
            delivery.link.session.accept(delivery.delivery_id)
        self.on_run([delivery.payload])

    def on_run(self, payloads: Sequence[bytes]) -> None:
        if self._repeated is not None:
            payloads = self.without_repeated(payloads)
        if self._failure is not None:
            return
        # The hub may still use credit that was withdrawn meanwhile: at most a second full buffer.
        if len(self._buffer) + len(payloads) > 2 * self.options.prefetch:
            self.refuse_excess()
            return
        if not payloads:
            return self.top_up()
        size, largest = sizes_of(payloads)
        self._size_estimate = guess_size(self._size_estimate, largest)
        if self._buffer.bytes + size <= self._bounds.bytes:
            self._buffer.append(payloads, size)
            self._failures = 0
        else:
            self.buffer_some(payloads)
        self._wakeup.set()
        self.top_up()

    def without_repeated(self, payloads: Sequence[bytes]) -> Sequence[bytes]:
        """The first payloads of a new link, without the event that the last link sent."""
        repeated, self._repeated = self._repeated, None
        with suppress(RemoteProtocolError):  # `receive` raises it
            first = self.decode(payloads[:1])[0]
            if repeated is not None and first.sequence == repeated.sequence:
                if not is_same_event(repeated, first):
                    self.release_link()
                    self.fail(recreated_error(self.address, first))
                return payloads[1:]
        return payloads

    def refuse_excess(self) -> None:
        """End the reader: the hub does not respect its credit, which bounds the buffer."""
        address = self.connection.settings.route.address
        self.release_link()
        text = f"{address} sent more events of {self.address} than the reader has requested"
        self.fail(RemoteProtocolError(text, "amqp:link:transfer-limit-exceeded"))

    def buffer_some(self, payloads: Sequence[bytes]) -> None:
        """Buffer payloads up to the byte limit; beyond it, release the link and drop the others."""
        for payload in payloads:
            if self._buffer.bytes >= self._bounds.bytes:
                self.release_link()
                return
            self._buffer.append([payload], len(payload))
            self._failures = 0

    def release_link(self) -> None:
        """Detach until the buffer has room."""
        if self.link is not None and self.link_connection is not None:
            self.link_connection.drop(self.link)
        self.link = None

    def has_room(self) -> bool:
        """Whether half of the buffer is free, so that the link may be attached again."""
        return self._buffer.bytes <= self._bounds.bytes // 2

    def on_room(self) -> None:
        """Not used: a reader does not send."""

    # -- losing and reattaching a link ------------------------------------------------------------

    def on_lost(self, cause: PumphouseError) -> None:
        if self.link is None:
            self._attach_failure = cause
            return
        self.link = None
        if self._failure is not None:
            return
        self.count_failure()
        error = failure_to_raise(
            cause, self._failures, self.connection.settings.retry, resumed=True
        )
        if isinstance(cause, AuthError) and self._failures == 1:
            # The token may have expired while the machine slept: send a new one, once.
            self.invalidate_token()
            error = None
        if error is None:
            self.reattach()
        else:
            self.fail(error)

    def count_failure(self) -> None:
        """Count a failure; a link that lasted for the longest delay resets the count."""
        lasted_s = self.connection.settings.options.clock.monotonic() - self._attached_at
        if lasted_s >= self.connection.settings.retry.most_s:
            self._failures = 0
        self._failures += 1

    def invalidate_token(self) -> None:
        if (authorized := self.connection.current) is not None:
            authorized.tokens.invalidate(self.hub)

    def reattach(self) -> None:
        self._reattaching = asyncio.create_task(
            self.reattach_with_retries(), name=f"reattaching {self.address}"
        )

    async def reattach_with_retries(self) -> None:
        try:
            # The first attempt has no delay; only the retries wait.
            failures = max(0, self._failures - 1)
            await self.connection.run_with_retries(self.attach, failures=failures, resumed=True)
        except Exception as failed:  # raised by `receive`, also if it is a bug
            self.fail(failed)
        finally:
            self._reattaching = None

    def fail(self, cause: Exception) -> None:
        """End the reader: no further event will arrive."""
        self._failure = self._failure or cause
        self._wakeup.set()
