"""One AMQP connection over asyncio: a transport, deadlines, and links with handlers.

All protocol logic is in `amqp`. This module moves bytes, completes the futures of callers, sends
heartbeats, and detects a dead hub.

    NativeSender, NativeReader, RequestClient -> Connection -> amqp.Connection -> transport
                                                 ^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any, Protocol, cast
from warnings import warn

from pumphouse import forks
from pumphouse.amqp import credit
from pumphouse.amqp import events as amqp
from pumphouse.amqp.connection import CLIENT
from pumphouse.amqp.connection import Connection as AmqpConnection
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.links import Link, SenderLink
from pumphouse.amqp.performatives import RECEIVER, Attach, Error, Open
from pumphouse.amqp.session import Session
from pumphouse.client.errors import error_from, reason_text, shortened
from pumphouse.client.native.transports import cause_of, open_transport
from pumphouse.client.routes import Route
from pumphouse.clock import Clock, SystemClock
from pumphouse.errors import AuthError, ConnectionFailed, ProtocolError, PumphouseError
from pumphouse.logs import line

__all__ = [
    "Connection",
    "ConnectionOptions",
    "LinkHandler",
    "cause_of",
    "connect",
    "error_from",
    "fail_future",
    "reason_text",
]

log = logging.getLogger("pumphouse.client")

FRAME_BYTES_MAX = 1 << 20  # as the official client: most events fit into one frame
WRITE_HIGH_WATER = 1 << 20
# Batches stop at the high-water mark, but responses to the hub do not. A hub that requests
# responses without end and does not read them must not fill the memory.
WRITE_BYTES_MAX = 64 << 20
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """Timeouts of a connection, and the clock and random numbers that it uses."""

    connect_s: float = 10.0  # for opening the connection
    answer_s: float = 30.0  # for the response to an attach, a request or a send
    close_s: float = 2.0  # for closing the connection
    idle_s: float = 60.0  # after this time without data the connection counts as dead
    frame_bytes_max: int = FRAME_BYTES_MAX
    clock: Clock = field(default_factory=SystemClock, compare=False)
    rng: Random = field(default_factory=Random, compare=False)  # for the jitter of retries
    # Sleeps between the retries of a bulk client, which is blocking.
    pause: Callable[[float], object] = field(default=time.sleep, compare=False)


class LinkHandler(Protocol):
    """Handles the events of one link."""

    def on_delivery(self, delivery: amqp.Delivered) -> None:
        """A delivery arrived."""

    def on_run(self, payloads: Sequence[bytes]) -> None:
        """Consecutive settled deliveries arrived: only on a link that takes runs."""

    def on_room(self) -> None:
        """Sending may be possible: credit, window or socket buffer has grown."""

    def on_lost(self, cause: PumphouseError) -> None:
        """The link is detached."""


class Connection(asyncio.Protocol):
    """A connection with one session. Made by `connect`; a failure breaks it permanently."""

    transport: asyncio.Transport

    def __init__(self, address: str, hostname: str, options: ConnectionOptions) -> None:
        self.address = address
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.process = forks.process
        self.amqp = AmqpConnection(
            CLIENT,
            Open(
                container_id=uuid.uuid4().hex,
                hostname=hostname,
                max_frame_size=options.frame_bytes_max,
                idle_time_out=int(options.idle_s * 1000),
            ),
            limits=Limits(max_frame_size=options.frame_bytes_max),
        )
        self.writable = True
        self.failure: PumphouseError | None = None
        self._session: Session | None = None
        self.ready: asyncio.Future[None] = self.loop.create_future()
        self._disconnected = asyncio.Event()
        self._attaching: dict[Link, asyncio.Future[Attach]] = {}
        self._detaching: dict[Link, asyncio.Future[None]] = {}
        self._outcomes: dict[int, tuple[Link, asyncio.Future[Any]]] = {}  # by delivery id
        self._names = count(1)
        self._flushes_soon = False

    def __repr__(self) -> str:
        return f"<Connection {self.address} {'broken' if self.failure else self.amqp.state}>"

    @property
    def session(self) -> Session:
        assert self._session is not None, "connect() returns a connection with a session"
        return self._session

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that has opened the connection."""
        return self.process != forks.process

    # -- links ------------------------------------------------------------------------------------

    async def attach(self, handler: LinkHandler, role: bool, **fields: Any) -> tuple[Link, Attach]:
        """Attach a link; returns the response of the hub, or raises its refusal."""
        self.check()
        link = self.session.attach(self.new_name(), role, **fields)
        link.user = handler
        response = self._attaching[link] = self.loop.create_future()
        self.flush()
        try:
            async with self.within(self.options.answer_s, "respond to an attach"):
                return link, await response
        except BaseException:
            self.drop(link)
            raise
        finally:
            self._attaching.pop(link, None)

    def new_name(self) -> str:
        """A link name that is unique on the hub."""
        return f"{self.amqp.opening.container_id}-{next(self._names)}"

    async def detach(self, link: Link) -> None:
        """Detach a link and wait for the response of the hub."""
        if self.failure is not None or not link.attached or self.is_inherited:
            return
        detached = self._detaching[link] = self.loop.create_future()
        self.drop(link)
        try:
            async with self.within(self.options.close_s, "respond to a detach"):
                await detached
        finally:
            self._detaching.pop(link, None)

    def drop(self, link: Link) -> None:
        """Detach a link without waiting."""
        link.user = None
        if self.failure is None and link.state in ("ATTACHED", "ATTACH_SENT"):
            link.detach()
            self.flush()

    def has_room(self, link: SenderLink) -> bool:
        """Whether a delivery may be sent now: socket buffer and credit allow it."""
        return self.writable and link.sendable > 0

    def send_delivery(
        self, link: SenderLink, payload: bytes, message_format: int
    ) -> asyncio.Future[Any]:
        """Send one delivery; returns the future of its outcome."""
        self.check()
        tag = self.session.next_delivery_id.to_bytes(4, "big")
        delivery_id = link.send(payload, tag=tag, message_format=message_format, settled=False)
        outcome: asyncio.Future[Any] = self.loop.create_future()
        self._outcomes[delivery_id] = link, outcome
        self.flush()
        return outcome

    async def close(self) -> None:
        """Close the connection. Bounded by `close_s`, and never raises."""
        try:
            self.amqp.close()
            self.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.close_s):
                    await self._disconnected.wait()
        finally:
            if not self._disconnected.is_set():  # abort() must not be called twice
                self.transport.abort()
        await self._disconnected.wait()

    def check(self) -> None:
        """Raise if the connection is broken."""
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def within(self, seconds: float, what: str) -> AsyncIterator[None]:
        """Limit the wait for a response; the error names what the hub did not do."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise ConnectionFailed(
                f"the hub at {self.address} did not {what} within {seconds:g} s"
            ) from None

    # -- bytes ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.received_at = self.sent_at = self.loop.time()
        self._ticker = self.loop.call_later(TICK_S, self.tick)
        self.amqp.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.received_at = self.loop.time()
        try:
            for event in self.amqp.receive(data):
                self.handle(event)
        except ProtocolError as invalid:
            self.flush()
            text = shortened(str(invalid))
            self.fail(ConnectionFailed(f"{self.address} sent invalid AMQP: {text}"))
        except AuthError as refused:
            self.fail(AuthError(f"{self.address}: {refused.description}", refused.status))
        else:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticker.cancel()
        self._disconnected.set()
        self.fail(ConnectionFailed(f"the connection to {self.address} broke{reason(exc)}"))

    def flush(self) -> None:
        """Write all pending bytes to the transport."""
        out = self.amqp.data_to_send()
        if not out or self.transport.is_closing() or self.is_inherited:
            return
        self.sent_at = self.loop.time()
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
            # Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 do not pause us here (CVE-2024-12254).
            # Setting the limit again makes them check it.
            self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        if not self.writable and self.transport.get_write_buffer_size() > WRITE_BYTES_MAX:
            self.fail(ConnectionFailed(f"{self.address} does not read what we send"))
            self.transport.abort()

    def flush_soon(self) -> None:
        """Write all pending bytes when the tasks that are ready have run.

        Requests that start at the same time are then sent at once, and so are their replies.
        """
        if not self._flushes_soon:
            self._flushes_soon = True
            self.loop.call_soon(self._flush_later)

    def _flush_later(self) -> None:
        self._flushes_soon = False
        if self.failure is None:
            self.flush()

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.notify_room()

    # -- events -----------------------------------------------------------------------------------

    def handle(self, event: amqp.Event) -> None:
        match event:
            case amqp.RunDelivered():
                if event.link.user is not None:
                    event.link.user.on_run(event.payloads)
            case amqp.Delivered():
                if event.link.user is not None:
                    event.link.user.on_delivery(event)
            case amqp.Disposed():
                self.on_disposition(event)
            case amqp.Flowed():
                if event.link.user is not None:
                    event.link.user.on_room()
            case amqp.WindowOpened():
                self.notify_room()
            case amqp.Attached():
                self.on_attached(event)
            case amqp.Detached():
                self.on_detached(event)
            case amqp.Opened():
                self._session = self.amqp.begin()
            case amqp.Begun():
                if not self.ready.done():
                    self.ready.set_result(None)
            case amqp.Ended():
                self.on_ended(event)
            case amqp.Closed():
                reason = reason_text(event.error)
                self.fail(ConnectionFailed(f"{self.address} closed the connection{reason}"))
            case amqp.AttachAsked():
                refusal = "The client accepts no links."
                event.link.refuse(Error(condition="amqp:not-allowed", description=refusal))

    def on_ended(self, event: amqp.Ended) -> None:
        """Break the connection, and notify the handlers of the links that the session had."""
        cause = ConnectionFailed(f"{self.address} ended the session{reason_text(event.error)}")
        self.fail(cause)
        for link in event.links:
            if link.user is not None:
                link.user.on_lost(cause)

    def on_disposition(self, disposition: amqp.Disposed) -> None:
        """Complete the futures of settled deliveries. Few are pending, so each is compared."""
        if disposition.role != RECEIVER or not disposition.settled:
            return
        last_distance = credit.distance(disposition.first, disposition.last)
        for delivery_id in list(self._outcomes):
            if 0 <= credit.distance(disposition.first, delivery_id) <= last_distance:
                _, outcome = self._outcomes.pop(delivery_id)
                if not outcome.done():
                    outcome.set_result(disposition.state)

    def on_attached(self, event: amqp.Attached) -> None:
        # A refusal has no source or target of the hub; a detach with the reason follows.
        hub_end = event.attach.source if event.link.role == RECEIVER else event.attach.target
        response = self._attaching.get(event.link)
        if hub_end is not None and response is not None and not response.done():
            response.set_result(event.attach)

    def on_detached(self, event: amqp.Detached) -> None:
        detached, response = self._detaching.get(event.link), self._attaching.get(event.link)
        if detached is not None:
            if not detached.done():
                detached.set_result(None)
        elif response is not None and not response.done():
            fail_future(response, error_from(event.error))
        else:
            self.on_link_lost(event.link, error_from(event.error))

    def on_link_lost(self, link: Link, cause: PumphouseError) -> None:
        """Fail the pending deliveries of a detached link, and notify its handler."""
        pending = [key for key, (sent_on, _) in self._outcomes.items() if sent_on is link]
        for delivery_id in pending:
            fail_future(self._outcomes.pop(delivery_id)[1], cause)
        if link.user is not None:
            link.user.on_lost(cause)

    def notify_room(self) -> None:
        for handler in self.handlers():
            handler.on_room()

    def handlers(self) -> list[LinkHandler]:
        links = self._session.links.values() if self._session is not None else ()
        return [link.user for link in links if link.user is not None]

    def fail(self, cause: PumphouseError) -> None:
        """Break the connection: fail all waiting futures and close. Later calls do nothing."""
        if self.failure is not None:
            return
        self.failure = cause
        log.debug("%s", line("connection_lost", address=self.address, cause=cause))
        fail_future(self.ready, cause)
        waiting: list[asyncio.Future[Any]] = [outcome for _, outcome in self._outcomes.values()]
        waiting += [*self._attaching.values(), *self._detaching.values()]
        self._outcomes.clear()
        for future in waiting:
            fail_future(future, cause)
        for handler in self.handlers():
            handler.on_lost(cause)
        self.flush()
        self.transport.close()

    # -- time -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Send a heartbeat if one is due, and detect a dead hub."""
        now = self.loop.time()
        if now - self.received_at > self.options.idle_s:
            problem = f"no data from {self.address} for {self.options.idle_s:g} s"
            self.fail(ConnectionFailed(f"{problem}; the connection counts as dead"))
            self.transport.abort()
            return
        remote = self.amqp.remote
        # Every half of the hub's idle timeout, so that one heartbeat may be late.
        if remote and remote.idle_time_out and now - self.sent_at >= remote.idle_time_out / 2000:
            self.amqp.heartbeat()
            self.flush()
        self._ticker = self.loop.call_later(TICK_S, self.tick)


async def connect(
    route: Route, options: ConnectionOptions | None = None, context: ssl.SSLContext | None = None
) -> Connection:
    """Connect to a hub, up to an open connection with a session."""
    options = options or ConnectionOptions()
    connection = Connection(route.address, route.hostname, options)
    try:
        async with connection.within(options.connect_s, "open the connection"):
            await open_transport(route, connection, context)
            await connection.ready
    except BaseException:
        if hasattr(connection, "transport"):
            connection.transport.abort()
        raise
    return connection


def fail_future(future: asyncio.Future[Any], cause: PumphouseError) -> None:
    """Fail a future, and mark its exception as retrieved."""
    if not future.done():
        future.set_exception(cause)
        future.exception()


def reason(exc: Exception | None) -> str:
    return f" ({exc})" if exc is not None else "; the peer closed it"


def __getattr__(name: str) -> Any:
    if name == "WireOptions":
        warn(f"{__name__}.WireOptions is now ConnectionOptions", DeprecationWarning, stacklevel=2)
        return ConnectionOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
