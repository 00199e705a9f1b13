"""One connection: bytes in, events to nodes, bytes out.

All protocol lives in `amqp`, all meaning in the nodes. A conversation moves bytes, shares the event
loop fairly among its readers, and does what the passing of time asks of one connection.

    transport -> Conversation -> amqp.Connection -> events -> nodes
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from pumphouse.amqp import events as amqp
from pumphouse.amqp.connection import SERVER, Connection, Limits
from pumphouse.amqp.performatives import (
    Error,
)
from pumphouse.errors import AmqpError, LocalProtocolError, RemoteProtocolError
from pumphouse.hub.access.guard import Guard
from pumphouse.hub.faults.injection import befall, befall_connection, befall_outlet
from pumphouse.hub.links.consumer import Outlet
from pumphouse.hub.links.factory import open_node
from pumphouse.hub.links.link import Node, as_error

log = logging.getLogger("pumphouse.hub")

if TYPE_CHECKING:
    from pumphouse.hub.server import HubServer

WRITE_HIGH_WATER = 1 << 20
TICK_S = 1.0
FORCED = "amqp:connection:forced"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How the hub treats its connections."""

    idle_timeout_s: float = 240.0  # announced, as the service does
    enforce_idle: bool = False  # the official client's idle producers go silent: off by default
    handshake_s: float = 60.0  # a connection that has not opened by then is dropped
    # How long an epoch reader counts as present after its connection broke without a word. The
    # service takes about ten minutes to notice; here it is at once, unless a test wants to see it.
    vanished_s: float = 0.0
    stop_s: float = 2.0  # how long `stop` waits for the last bytes to leave
    limits: Limits = field(default_factory=Limits)


class Conversation(asyncio.Protocol):
    """One connection: bytes in, events to nodes, bytes out."""

    transport: asyncio.Transport

    def __init__(self, server: HubServer) -> None:
        self.server = server
        self.namespace = server.namespace
        self.options = server.options
        self.writable = True
        self.opened = False
        self.closing = False
        self.abort_at = float("inf")  # on the loop's clock
        self._ready: deque[Node] = deque()  # nodes that may have something to send
        self._scheduled = False
        self._flushing = False  # bytes are about to be handed over anyway
        self._suspended = False  # by a fault that delays
        self._late: list[bytes] = []  # what a transport hands over that was told not to read

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
        self.since = self.heard = self.spoke = self.server.loop.time()
        self.server.conversations.add(self)
        if self.server.faults:
            befall_connection(self)

    def connection_lost(self, exc: Exception | None) -> None:
        vanished = not self.closing
        self.closing = True
        self.server.conversations.discard(self)
        self.server.check_emptied()
        for node in self.nodes():
            if vanished and self.options.vanished_s and node.lingers:
                self.server.loop.call_later(self.options.vanished_s, node.closed)
            else:
                node.closed()
        self._ready.clear()

    def nodes(self) -> list[Node]:
        return [
            link.user
            for session in self.amqp.sessions.values()
            for link in session.links.values()
            if link.user is not None
        ]

    # -- bytes ------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.heard = self.server.loop.time()
        if self._suspended:
            self._late.append(data)
        else:
            self.listen(self.amqp.receive(data))

    def listen(self, events: Iterator[amqp.Event], spared: amqp.Event | None = None) -> None:
        """Handle what has happened, then send what it made us say. Faults strike here."""
        self._flushing = True
        try:
            if spared is not None:
                self.handle(spared)
            for event in events:
                if not (self.server.faults and befall(self, event, events)):
                    self.handle(event)
                if self._suspended:
                    break
        except RemoteProtocolError as wrong:
            log.warning("peer=%s:%s broke the protocol: %s", *self.peer[:2], wrong)
            self.finish()
        except LocalProtocolError as wrong:
            log.error("peer=%s:%s cannot be answered: %s", *self.peer[:2], wrong)
            self.amqp.close(Error(condition="amqp:internal-error", description=str(wrong)))
            self.finish()
        else:
            self.flush_soon()

    def flush(self) -> None:
        """Hand all waiting bytes to the transport."""
        out = self.amqp.data_to_send()
        if not out or self.transport.is_closing():
            return
        self.spoke = self.server.loop.time()
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
            # Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 forget to pause us there (CVE-2024-12254);
            # they look again when told the limit.
            self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def finish(self) -> None:
        """Send what is left to say, then hang up; a peer that does not listen has `stop_s`."""
        self.flush()
        self.closing = True
        self.abort_at = min(self.abort_at, self.server.loop.time() + self.options.stop_s)
        self.transport.close()

    def suspend(self, seconds: float, event: amqp.Event | None, rest: Iterator[amqp.Event]) -> None:
        """Go deaf for a while; then go on with this event and the rest."""
        self._suspended = True
        self.transport.pause_reading()
        self.server.loop.call_later(seconds, self.go_on, event, rest)

    def befall_outlet(self, outlet: Outlet) -> bool:
        """A reader is about to be sent events; True if a fault keeps it from that."""
        return befall_outlet(outlet)

    def go_on(self, event: amqp.Event | None, rest: Iterator[amqp.Event]) -> None:
        self._suspended = False
        if self.transport.is_closing():
            return
        if self.writable:
            self.transport.resume_reading()
        self.listen(rest, spared=event)
        late, self._late = self._late, []
        for data in late:
            self.data_received(data)

    def pause_writing(self) -> None:
        # A client that does not read must not make us buffer: neither events nor its own replies.
        self.writable = False
        self.transport.pause_reading()

    def resume_writing(self) -> None:
        self.writable = True
        if not self._suspended:
            self.transport.resume_reading()
        if self._ready:
            self.schedule_run()

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
                self.leave(event.link.user)
            case amqp.Ended():
                for link in event.links:
                    self.leave(link.user)
            case amqp.Opened():
                self.opened = True
                if self.heartbeat_s < 2 * TICK_S:
                    self.server.hurry()
            case amqp.Closed():
                self.finish()

    def attach(self, asked: amqp.AttachAsked) -> None:
        try:
            asked.link.user = open_node(self, asked.link, asked.attach)
        except AmqpError as refused:
            log.info(
                "refuse link=%.80r peer=%s:%s %.500s", asked.link.name, *self.peer[:2], refused
            )
            asked.link.refuse(as_error(refused))

    def leave(self, node: Node | None) -> None:
        if node is not None:
            node.closed()

    # -- sending, a slice at a time ---------------------------------------------------------------

    def schedule(self, node: Node | None) -> None:
        """Let a node send, soon."""
        if node is not None and not node.queued:
            self.enqueue(node)
            self.schedule_run()

    def enqueue(self, node: Node) -> None:
        node.queued = True
        self._ready.append(node)

    def schedule_run(self) -> None:
        if self.writable and not self._scheduled:
            self._scheduled = True
            self.server.loop.call_soon(self.run)

    def run(self) -> None:
        """Give the next node its slice; come back for more after everyone else had a turn."""
        self._scheduled = False
        if not self._ready or not self.writable or self.transport.is_closing():
            return
        node = self._ready.popleft()
        node.queued = False
        if node.pump():
            self.enqueue(node)
        self.flush()
        if self._ready:
            self.schedule_run()

    def wake_writer(self) -> None:
        """A node has spoken outside of `data_received`: its words go out soon, once."""
        if not self._flushing:
            self._flushing = True
            self.server.loop.call_soon(self.flush_soon)

    def flush_soon(self) -> None:
        self._flushing = False
        self.flush()

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """What the passing of time asks for."""
        mute = not self.opened and now - self.since > self.options.handshake_s
        if mute or now > self.abort_at:
            self.transport.abort()
        if self.transport.is_closing():
            return
        if self.guard.next_expiry <= self.namespace.clock.now():
            self.close_expired()
        # To a peer that does not read, a heartbeat would only be one more thing to keep.
        if self.writable and now - self.spoke >= self.heartbeat_s:
            self.amqp.heartbeat()
        # Twice of what is announced, as the specification has it (2.4.5): peers that obey, such as
        # Proton, send their heartbeats in about the time announced, and not well before it.
        if self.options.enforce_idle and now - self.heard > 2 * self.options.idle_timeout_s:
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
            return
        self.flush()

    @property
    def heartbeat_s(self) -> float:
        """How long we may be silent: half of what the peer tolerates."""
        remote = self.amqp.remote
        if remote is None or not remote.idle_time_out:
            return float("inf")
        return remote.idle_time_out / 2000

    def close_expired(self) -> None:
        """Detach the links whose token has run out."""
        for node in self.nodes():
            if node.claim is not None and not self.guard.allows(node.path, node.claim):
                node.close(
                    "amqp:unauthorized-access",
                    f"ExpiredToken: the token for '{self.guard.resource(node.path)}' is expired. "
                    f"'{node.claim}' claim(s) are required; put a new token and attach again.",
                )

    def stop(self) -> None:
        """Say good-bye. The peer's answer ends the connection; what else it says is too late."""
        self.amqp.close(Error(condition=FORCED, description="The hub is shutting down."))
        if self.opened:
            self.closing = True
            self.flush()
        else:
            self.finish()

    def drop(self) -> None:
        """Break the connection without a word, as a failing network would."""
        self.transport.abort()
