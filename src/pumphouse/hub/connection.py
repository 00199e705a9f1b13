"""One client connection of the hub: bytes in, events to its links, bytes out.

`amqp` implements the protocol and `hub.links` the behaviour of each link. A connection moves the
bytes, shares the event loop fairly among its links, and does the periodic work of one connection.

    transport -> HubConnection -> amqp.Connection -> events -> links
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

from pumphouse.amqp import events as amqp
from pumphouse.amqp.connection import SERVER, Connection
from pumphouse.amqp.performatives import Error, Open
from pumphouse.errors import AmqpError, LocalProtocolError, RemoteProtocolError
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.faults.injection import inject_on_connect, inject_on_event
from pumphouse.hub.links.factory import open_link
from pumphouse.hub.links.link import HubLink, as_error
from pumphouse.hub.namespace import Namespace
from pumphouse.hub.options import ServerOptions
from pumphouse.logs import line

log = logging.getLogger("pumphouse.hub")

WRITE_HIGH_WATER = 1 << 20
TICK_S = 1.0
FORCED = "amqp:connection:forced"


class ConnectionOwner(Protocol):
    """The part of the server that its connections use."""

    namespace: Namespace
    options: ServerOptions
    authority: str
    opening: Open
    loop: asyncio.AbstractEventLoop

    def add(self, connection: HubConnection) -> None: ...

    def remove(self, connection: HubConnection) -> None: ...

    def tick_early(self) -> None: ...


class HubConnection(asyncio.Protocol):
    """One client connection: bytes in, events to its links, bytes out."""

    transport: asyncio.Transport

    def __init__(self, server: ConnectionOwner) -> None:
        self.server = server
        self.namespace = server.namespace
        self.options = server.options
        self.writable = True
        self.opened = False
        self.closing = False
        self.abort_at = float("inf")  # on the loop's clock
        self._ready: deque[HubLink] = deque()  # links that may have something to send
        self._scheduled = False
        self._flush_pending = False
        self._suspended = False  # True while a fault delays the connection
        self._late_data: list[bytes] = []  # received while reading was paused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.peer = self.transport.get_extra_info("peername") or ("?", 0)
        self.guard = Guard(self.namespace, self.server.authority)
        self.amqp = Connection(
            SERVER,
            self.server.opening,
            limits=self.options.limits,
            authenticate=self.guard.authenticate,
        )
        self.connected_at = self.received_at = self.sent_at = self.server.loop.time()
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
        self._ready.clear()

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
        if self._suspended:
            self._late_data.append(data)
        else:
            self.handle_events(self.amqp.receive(data))

    def handle_events(
        self, events: Iterator[amqp.Event], without_fault: amqp.Event | None = None
    ) -> None:
        """Handle events, then send the resulting bytes. Faults are injected here.

        `without_fault` is handled first and gets no fault, because one has already delayed it.
        """
        self._flush_pending = True
        faults = self.namespace.faults
        try:
            if without_fault is not None:
                self.handle(without_fault)
            for event in events:
                if not (faults and inject_on_event(faults, self, event, events)):
                    self.handle(event)
                if self._suspended:
                    break
        except RemoteProtocolError as error:
            report = line(
                "protocol_violated", peer=self.peer_address, error=error, todo="check the client"
            )
            log.warning("%s", report)
            self.finish()
        except LocalProtocolError as error:
            log.error("%s", line("connection_failed", peer=self.peer_address, error=error,
                                 todo="report this as a bug of the hub"))  # fmt: skip
            self.amqp.close(Error(condition="amqp:internal-error", description=str(error)))
            self.finish()
        else:
            self.flush_now()

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
            self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def finish(self) -> None:
        """Send what is waiting, then close. A peer that does not read is dropped after `stop_s`."""
        self.flush()
        self.closing = True
        self.abort_at = min(self.abort_at, self.server.loop.time() + self.options.stop_s)
        self.transport.close()

    def suspend(self, seconds: float, event: amqp.Event | None, rest: Iterator[amqp.Event]) -> None:
        """Stop reading for a while; then continue with this event and the rest."""
        self._suspended = True
        self.transport.pause_reading()
        self.call_later(seconds, self.resume, event, rest)

    def resume(self, event: amqp.Event | None, rest: Iterator[amqp.Event]) -> None:
        self._suspended = False
        if self.transport.is_closing():
            return
        if self.writable:
            self.transport.resume_reading()
        self.handle_events(rest, without_fault=event)
        late_data, self._late_data = self._late_data, []
        for data in late_data:
            self.data_received(data)

    def pause_writing(self) -> None:
        # For a client that does not read, the hub must buffer neither events nor replies.
        self.writable = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        if not self._suspended:
            self.transport.resume_reading()
        if self._ready:
            self.schedule_sending()

    # -- events -----------------------------------------------------------------------------------

    def handle(self, event: amqp.Event) -> None:
        if self.closing and not isinstance(event, amqp.Closed):
            return
        match event:
            case amqp.Delivered():
                event.link.user.on_delivery(event)
            case amqp.Flowed():
                self.schedule(event.link.user)
            case amqp.WindowOpened():
                for link in event.session.links.values():
                    self.schedule(link.user)
            case amqp.AttachAsked():
                self.attach(event)
            case amqp.Detached():
                self.close_link(event.link.user)
            case amqp.Ended():
                for link in event.links:
                    self.close_link(link.user)
            case amqp.Opened():
                self.opened = True
                if self.heartbeat_s < 2 * TICK_S:
                    self.server.tick_early()
            case amqp.Closed():
                self.finish()

    def attach(self, request: amqp.AttachAsked) -> None:
        try:
            request.link.user = open_link(self, request.link, request.attach)
        except AmqpError as refusal:
            name = request.link.name[:80]
            log.info("%s", line("link_refused", link=name, peer=self.peer_address, error=refusal))
            request.link.refuse(as_error(refusal))

    def close_link(self, link: HubLink | None) -> None:
        if link is not None:
            link.on_closed()

    # -- sending, one slice per turn --------------------------------------------------------------

    def schedule(self, link: HubLink | None) -> None:
        """Queue a link to send in a later turn of the event loop."""
        if link is not None and not link.queued:
            self.enqueue(link)
            self.schedule_sending()

    def enqueue(self, link: HubLink) -> None:
        link.queued = True
        self._ready.append(link)

    def schedule_sending(self) -> None:
        if self.writable and not self._scheduled:
            self._scheduled = True
            self.server.loop.call_soon(self.send_next)

    def send_next(self) -> None:
        """Let the next link send one slice; other links and connections run before its next one."""
        self._scheduled = False
        if not self._ready or not self.writable or self.transport.is_closing():
            return
        link = self._ready.popleft()
        link.queued = False
        if link.send_slice():
            self.enqueue(link)
        self.flush()
        if self._ready:
            self.schedule_sending()

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
        """Do the periodic work: time-outs, expired tokens, heartbeats."""
        handshake_late = not self.opened and now - self.connected_at > self.options.handshake_s
        if handshake_late or now > self.abort_at:
            self.transport.abort()
        if self.transport.is_closing():
            return
        if self.guard.next_expiry <= self.namespace.clock.now():
            self.close_expired()
        # For a peer that does not read, a heartbeat would only fill the buffer.
        if self.writable and now - self.sent_at >= self.heartbeat_s:
            self.amqp.heartbeat()
        # Twice the announced time, as in the specification (2.4.5): peers such as Proton send their
        # heartbeats just about in the announced time, not well before it.
        if self.options.enforce_idle and now - self.received_at > 2 * self.options.idle_timeout_s:
            self.close_idle()
            return
        self.flush()

    @property
    def heartbeat_s(self) -> float:
        """The longest time without sending: half of the peer's idle time-out."""
        remote = self.amqp.remote
        if remote is None or not remote.idle_time_out:
            return float("inf")
        return remote.idle_time_out / 2000

    def close_idle(self) -> None:
        idle_ms = int(self.options.idle_timeout_s * 1000)
        self.amqp.close(
            Error(
                condition=FORCED,
                description="The connection was inactive for more than the allowed "
                f"{idle_ms} milliseconds and is closed by container "
                f"'{self.server.opening.container_id}'.",
            )
        )
        self.finish()

    def close_expired(self) -> None:
        """Detach the links whose token has expired."""
        for link in self.links():
            if link.claim is not None and not self.guard.allows(link.path, link.claim):
                link.close(
                    "amqp:unauthorized-access",
                    f"ExpiredToken: the token for '{self.guard.resource(link.path)}' is expired. "
                    f"'{link.claim}' claim(s) are required; put a new token and attach again.",
                )

    def stop(self) -> None:
        """Send close. The peer's own close ends the connection; its other frames are ignored."""
        self.amqp.close(Error(condition=FORCED, description="The hub is shutting down."))
        if self.opened:
            self.closing = True
            self.flush()
        else:
            self.finish()

    def drop(self) -> None:
        """Break the connection without a close, as a failing network does."""
        self.transport.abort()
