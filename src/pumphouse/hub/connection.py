"""One client connection of the hub: bytes in, events to its links, bytes out.

`amqp` implements the protocol and `hub.links` the behaviour of each link. A connection moves the
bytes, shares the event loop fairly among its links, and does the periodic work of one connection.

    transport -> HubConnection -> amqp.Connection -> events -> links
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, cast

from pumphouse.amqp import events as amqp
from pumphouse.amqp.connection import SERVER, Connection
from pumphouse.amqp.credit import RESOURCE_LIMIT
from pumphouse.amqp.links import Link
from pumphouse.amqp.performatives import Error
from pumphouse.amqp.session import Session
from pumphouse.errors import AmqpError, LocalProtocolError, RemoteProtocolError
from pumphouse.hub import upkeep
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.faults.injection import inject_on_connect, inject_on_event
from pumphouse.hub.limits.admission import Slot
from pumphouse.hub.links.factory import open_link
from pumphouse.hub.links.link import HubLink, ReadyLinks, after_work
from pumphouse.hub.upkeep import FORCED, ConnectionOwner

WRITE_HIGH_WATER = 1 << 20
LARGE_BYTES = 64 * 1024  # of an incomplete delivery
# While one read is handled, the bytes to send are passed to the transport whenever there are this
# many, so that it can pause the connection.
FLUSH_BYTES = 64 * 1024

Arrival = amqp.Delivered | amqp.RunReceived


class HubConnection(asyncio.Protocol):
    """One client connection: bytes in, events to its links, bytes out."""

    transport: asyncio.Transport

    def __init__(self, server: ConnectionOwner, slot: Slot) -> None:
        self.server = server
        self.namespace = server.namespace
        self.options = server.options
        self.slot = slot
        self.writable = True
        self.opened = False
        self.closing = False
        self.abort_at = float("inf")  # on the loop's clock
        self._ready = ReadyLinks()
        self._scheduled = False
        self._sends_later = False  # True while its links wait for their turn to send
        self._flush_pending = False
        self._unread = 0  # bytes in the transport's buffer that are counted
        self._received = 0  # bytes that are not handled yet; they count for all connections
        self._suspended = False  # True while a fault delays the connection
        self._awaits_turn = False  # True while other connections are served
        self._awaits_storage = False  # True while the queue to the disk is full
        # Received, and not handled yet, because the connection has to wait: an event that is
        # handled first, then the events after it, then bytes.
        self._held_back: amqp.Event | None = None
        self._rest: Iterator[amqp.Event] | None = None
        self._late_data: deque[bytes] = deque()
        self._late_bytes = 0  # of `_late_data`
        self.reply_links: list[HubLink] = []  # of $cbs and $management

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=self.options.anonymous_bytes_max)
        self.peer = self.transport.get_extra_info("peername") or ("?", 0)
        self.guard = Guard(self.namespace, self.server.authority, self.on_authenticated)
        self.amqp = Connection(
            SERVER,
            self.server.opening,
            limits=self.options.limits,
            authenticate=self.guard.authenticate,
            budget=self.slot.budget,
        )
        self.slot.close = self.shut
        self.received_at = self.sent_at = self.server.loop.time()
        self.login_deadline = self.slot.accepted_at + self.options.handshake_s
        self.server.add(self)
        if self.namespace.faults:
            inject_on_connect(self.namespace.faults, self)

    def connection_lost(self, exc: Exception | None) -> None:
        vanished = not self.closing
        self.closing = True
        self.server.remove(self)
        for link in self.links():
            if vanished and self.options.vanished_s and link.lingers:
                self.call_later(self.options.vanished_s, link.on_closed)
            else:
                link.on_closed()
        self.discard()

    def discard(self) -> None:
        """Drop everything that refers to this connection, so that it is freed at once."""
        self._ready.clear()
        self._late_data.clear()
        self.reply_links.clear()
        self._held_back = self._rest = None
        self.namespace.storage.backlog.forget(self)
        self.server.turns.discard(self)
        self.guard.discard()
        self.amqp.discard()
        self.slot.release()

    def on_authenticated(self) -> None:
        """A key or a token is valid: from now on the connection may hold more."""
        self.slot.set_authenticated()
        upkeep.start_heartbeats(self)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    @property
    def peer_address(self) -> str:
        """Host and port of the client, for logs."""
        return f"{self.peer[0]}:{self.peer[1]}"

    def links(self) -> list[HubLink]:
        return [
            link.user
            for session in self.amqp.sessions.values()
            for link in session.links.values()
            if link.user is not None
        ]

    def call_later(self, seconds: float, callback: Callable[..., object], *args: Any) -> None:
        self.server.loop.call_later(seconds, callback, *args)

    # -- bytes ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.received_at = self.server.loop.time()
        if not self.must_wait and self.has_time():
            self.handle_events(self.amqp.receive(data))
        else:
            self._late_data.append(data)
            self._late_bytes += len(data)
            self.count_received()

    def handle_events(self, events: Iterator[amqp.Event], first: amqp.Event | None = None) -> None:
        """Handle events, then send the resulting bytes.

        `first` is an event that was held back. It is handled first, and no fault is injected again.
        """
        self._flush_pending = True
        try:
            if first is not None:
                events = after_work(self.handle(first), events)
            self.handle_each(events)
        except RemoteProtocolError as error:
            upkeep.close_after_violation(self, error)
        except LocalProtocolError as error:
            upkeep.close_after_bug(self, error)
        else:
            self.flush_now()
            self.count_received()

    def handle_each(self, events: Iterator[amqp.Event]) -> None:
        """Handle events until the connection has to wait. Faults are injected here."""
        faults, turns, clock = self.namespace.faults, self.server.turns, self.server.loop.time
        start = clock()
        end = start + turns.allowance(self.slot)
        try:
            while not self.must_wait:
                event = next(events, None)
                if event is None:
                    return
                if faults and isinstance(event, amqp.RunReceived):
                    events = chain(event.deliveries(), events)  # a fault may be due at each
                elif not (faults and inject_on_event(faults, self, event)):
                    events = after_work(self.handle(event), events)
                if self.amqp.unsent_bytes >= FLUSH_BYTES:
                    self.flush()
                if clock() > end and not self.must_wait:
                    self.await_turn(continued=True)
            self._rest = events
        finally:
            turns.spend(self.slot, clock() - start)

    def flush(self) -> None:
        """Pass all waiting bytes to the transport."""
        pieces = self.amqp.data_to_send()
        if not pieces or self.transport.is_closing():
            return
        self.sent_at = self.server.loop.time()
        if len(pieces) == 1:
            self.transport.write(pieces[0])
        else:
            self.transport.writelines(pieces)
            # writelines of Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 does not pause the writer
            # (CVE-2024-12254); setting the limit makes the transport check its buffer.
            self.transport.set_write_buffer_limits(high=self.transport.get_write_buffer_limits()[1])
        self.count_unread()

    def count_received(self) -> None:
        """Count the received bytes that are not handled yet: an incomplete frame, or a read."""
        size = self.amqp.pending_bytes + self._late_bytes
        if size != self._received:
            self.slot.hold_fixed(size - self._received)
            self._received = size

    def count_unread(self) -> None:
        """Count the bytes that the client has not read yet."""
        size = self.transport.get_write_buffer_size()
        if size != self._unread:
            self.slot.budget.hold_unread(size - self._unread)
            self._unread = size

    def finish(self) -> None:
        """Send waiting bytes, then close. A peer that does not read is dropped after `stop_s`."""
        self.flush()
        self.closing = True
        self.abort_at = min(self.abort_at, self.server.loop.time() + self.options.stop_s)
        self.transport.close()

    def shut(self, reason: str) -> None:
        """Close at once, because the hub needs the slot of this connection, or its bytes."""
        text = self.guard.tracked(f"The connection is closed by the hub ({reason}).")
        self.amqp.close(Error(condition=RESOURCE_LIMIT, description=text))
        self.flush()
        self.closing = True
        self.transport.abort()

    def warn_overrun(self, link: HubLink) -> None:
        """Log a producer that ignores its credit."""
        upkeep.warn_overrun(self, link.link)

    # -- waiting ----------------------------------------------------------------------------------

    @property
    def must_wait(self) -> bool:
        """Whether received bytes are not handled now. No more are read meanwhile."""
        return self._suspended or self._awaits_turn or self._awaits_storage or not self.writable

    def has_time(self) -> bool:
        """Whether events can be handled now. If not, the connection waits for its turn."""
        if self.server.turns.allowance(self.slot) > 0:
            return True
        # The last frame of a large delivery may take more time than one portion. So the connection
        # counts as continued: connections with new bytes are served in alternation with it.
        self.await_turn(continued=self.slot.budget.held > LARGE_BYTES)
        return False

    def await_turn(self, continued: bool) -> None:
        """Stop reading while other connections are served."""
        self._awaits_turn = True
        self.transport.pause_reading()
        self.server.turns.wait(self, continued)

    def take_turn(self) -> None:
        """Handle what was received, or let a link send."""
        if self._sends_later:
            self.send_next()
        if self._awaits_turn:
            self._awaits_turn = False
            self.proceed()

    def suspend(self, seconds: float, event: amqp.Event | None) -> None:
        """Stop reading for a while; then continue with this event."""
        self._suspended = True
        self._held_back = event
        self.transport.pause_reading()
        self.call_later(seconds, self.resume)

    def resume(self) -> None:
        self._suspended = False
        self.proceed()

    def await_storage(self, delivered: Arrival) -> None:
        """Stop reading until the queue to the disk has room; then continue with this delivery."""
        upkeep.warn_slow_disk(self)
        self._awaits_storage = True
        self._held_back = delivered
        self.slot.budget.hold(delivered.held_bytes)
        self.transport.pause_reading()
        self.namespace.storage.backlog.wait(self)

    def storage_ready(self) -> None:
        if isinstance(self._held_back, Arrival):
            self.slot.budget.hold(-self._held_back.held_bytes)
        self._awaits_storage = False
        self.proceed()

    def pause_writing(self) -> None:
        # For a client that does not read, the hub must buffer neither events nor replies.
        self.writable = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        self.count_unread()
        self.proceed()
        if self._ready:
            self.schedule_sending()

    def proceed(self) -> None:
        """Handle what was received during a wait, then read more."""
        while not self.must_wait and not self.transport.is_closing():
            if self._held_back is None and self._rest is None and not self._late_data:
                self.transport.resume_reading()
                return
            if self.has_time():
                self.handle_waiting()

    def handle_waiting(self) -> None:
        """Handle the oldest of what was received during a wait."""
        if self._held_back is not None or self._rest is not None:
            event, self._held_back = self._held_back, None
            rest, self._rest = self._rest, None
            self.handle_events(rest or iter(()), event)
        else:
            data = self._late_data.popleft()
            self._late_bytes -= len(data)
            self.handle_events(self.amqp.receive(data))

    # -- events -----------------------------------------------------------------------------------

    def handle(self, event: amqp.Event) -> Iterator[None] | None:
        """Handle an event; returns the steps of work that takes long, if any."""
        if self.closing and not isinstance(event, amqp.Closed):
            return None
        match event:
            case amqp.Delivered() | amqp.RunReceived():
                return self.deliver(event)
            case amqp.Flowed():
                self.schedule(event.link.user)
            case amqp.WindowOpened():
                self.wake_blocked(event.session)
            case amqp.AttachAsked():
                self.attach(event)
            case amqp.Detached():
                self.close_link(event.link)
            case amqp.Ended():
                for ended in event.links:
                    self.close_link(ended)
            case amqp.Opened():
                self.opened = True
                upkeep.check_idle_time_out(self)
                upkeep.start_heartbeats(self)
            case amqp.Closed():
                self.finish()
        return None

    def deliver(self, delivered: Arrival) -> Iterator[None] | None:
        link: HubLink = delivered.link.user
        if not delivered.link.attached:
            return None  # the link was detached while the delivery was held back
        if link.ready:
            if isinstance(delivered, amqp.RunReceived):
                return link.on_run(delivered)
            return link.on_delivery(delivered)
        self.await_storage(delivered)
        return None

    def attach(self, request: amqp.AttachAsked) -> None:
        try:
            request.link.user = open_link(self, request.link, request.attach)
        except AmqpError as refusal:
            upkeep.refuse_link(self, request.link, refusal)

    def close_link(self, link: Link) -> None:
        hub_link, link.user = link.user, None  # each refers to the other
        if hub_link is not None:
            hub_link.on_closed()

    # -- sending, one slice per turn --------------------------------------------------------------

    def schedule(self, link: HubLink | None) -> None:
        """Queue a link to send in a later turn of the event loop."""
        if link is not None and not link.queued:
            self._ready.add(link)
            self.schedule_sending()

    def schedule_sending(self) -> None:
        if self.writable and not self._scheduled:
            self._scheduled = True
            self.server.loop.call_soon(self.send_next)

    def send_next(self) -> None:
        """Let one link send a slice. Other links and connections run before it sends another."""
        self._scheduled = self._sends_later = False
        if not self._ready or not self.writable or self.transport.is_closing():
            return
        turns, clock = self.server.turns, self.server.loop.time
        if not turns.allowance(self.slot):
            self._scheduled = self._sends_later = True
            turns.wait(self, continued=True)
            return
        start = clock()
        if (link := self._ready.pop()) is not None:
            self.send_slice(link)
        turns.spend(self.slot, clock() - start)
        if self._ready:
            self.schedule_sending()

    def send_slice(self, link: HubLink) -> None:
        if link.send_slice():
            self._ready.add(link)
        else:
            link.wait_for_window()
        self.wake_blocked(link.link.session)
        self.flush()

    def wake_blocked(self, session: Session) -> None:
        """Continue one of the links that wait for the session window.

        Only one at a time, because it may use up the whole window.
        """
        if session.remote_window > 0 and session.blocked:
            link = next(iter(session.blocked))
            del session.blocked[link]
            self.schedule(link.user)

    def request_flush(self) -> None:
        """Flush soon: a link has sent something outside of `data_received`."""
        if not self._flush_pending:
            self._flush_pending = True
            self.server.loop.call_soon(self.flush_now)

    def flush_now(self) -> None:
        self._flush_pending = False
        self.flush()

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do the periodic work at a time of the loop's clock."""
        upkeep.tick(self, now)

    def stop(self) -> None:
        """Send close. The peer's own close ends the connection; its other frames are ignored."""
        self.amqp.close(
            Error(condition=FORCED, description=self.guard.tracked("The hub is shutting down."))
        )
        if self.opened:
            self.closing = True
            self.flush()
        else:
            self.finish()

    def drop(self) -> None:
        """Break the connection without a close, as a failing network does."""
        self.transport.abort()
