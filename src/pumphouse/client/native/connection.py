"""One AMQP connection of ours: a socket, deadlines, and links that have a user.

All protocol lives in `amqp`. This file moves bytes, wakes whoever waits for an answer, and does
what the passing of time asks for: heartbeats in one direction, a dead hub noticed in the other.

    NativeSender, NativeReader, RequestClient -> Connection -> amqp.Connection -> socket
                             ^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, cast
from warnings import warn

from pumphouse.amqp import credit
from pumphouse.amqp import events as amqp
from pumphouse.amqp.connection import CLIENT, Limits
from pumphouse.amqp.connection import Connection as AmqpConnection
from pumphouse.amqp.links import Link, SenderLink
from pumphouse.amqp.performatives import RECEIVER, Attach, Error, Open
from pumphouse.amqp.session import Session
from pumphouse.client.errors import refusal, told
from pumphouse.client.native.transports import cause, open_transport
from pumphouse.client.routes import Route
from pumphouse.errors import AuthError, ConnectionFailed, ProtocolError, PumphouseError

__all__ = [
    "Connection",
    "ConnectionOptions",
    "LinkHandler",
    "break_off",
    "cause",
    "connect",
    "refusal",
    "told",
]

log = logging.getLogger("pumphouse.client")

FRAME_BYTES_MAX = 1 << 20  # as the official client: the hub can hand over most events whole
WRITE_HIGH_WATER = 1 << 20
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """How long we wait."""

    connect_s: float = 10.0  # until the hub has opened the connection
    answer_s: float = 30.0  # until it has answered an attach, a request or a send
    close_s: float = 2.0  # until it has said good-bye
    idle_s: float = 60.0  # a hub that says nothing for so long is taken for dead


class LinkHandler(Protocol):
    """Whoever has attached a link, and is told what happens to it."""

    def delivered(self, delivery: amqp.Delivered) -> None:
        """A delivery has arrived."""

    def run_delivered(self, payloads: list[bytes]) -> None:
        """Several have, all settled: only on a link that asked for runs."""

    def stirred(self) -> None:
        """There may be room to send: credit, window or socket."""

    def lost(self, why: PumphouseError) -> None:
        """The link is gone."""


class Connection(asyncio.Protocol):
    """A connection with one session. Made by `connect`; a failure breaks it for good."""

    transport: asyncio.Transport

    def __init__(self, place: str, hostname: str, options: ConnectionOptions) -> None:
        self.place = place
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.amqp = AmqpConnection(
            CLIENT,
            Open(
                container_id=uuid.uuid4().hex,
                hostname=hostname,
                max_frame_size=FRAME_BYTES_MAX,
                idle_time_out=int(options.idle_s * 1000),
            ),
            limits=Limits(max_frame_size=FRAME_BYTES_MAX),
        )
        self.writable = True
        self.failure: PumphouseError | None = None
        self._session: Session | None = None
        self._ready: asyncio.Future[None] = self.loop.create_future()
        self._gone = asyncio.Event()
        self._attaching: dict[Link, asyncio.Future[Attach]] = {}
        self._leaving: dict[Link, asyncio.Future[None]] = {}
        self._outcomes: dict[int, tuple[Link, asyncio.Future[Any]]] = {}  # by delivery id
        self._names = count(1)

    def __repr__(self) -> str:
        return f"<Connection {self.place} {'broken' if self.failure else self.amqp.state}>"

    @property
    def session(self) -> Session:
        assert self._session is not None, "connect() returns a wire that has one"
        return self._session

    # -- what users call --------------------------------------------------------------------------

    async def attach(self, user: LinkHandler, role: bool, **fields: Any) -> tuple[Link, Attach]:
        """Ask for a link; the hub's answer, or its refusal as an error."""
        self.check()
        link = self.session.attach(self.new_name(), role, **fields)
        link.user = user
        answered = self._attaching[link] = self.loop.create_future()
        self.flush()
        try:
            async with self.within(self.options.answer_s, "answer an attach"):
                return link, await answered
        except BaseException:
            self.drop(link)
            raise
        finally:
            self._attaching.pop(link, None)

    def new_name(self) -> str:
        """A name that nothing else on this hub has."""
        return f"{self.amqp.opening.container_id}-{next(self._names)}"

    async def detach(self, link: Link) -> None:
        """Give up a link and wait until the hub has let go of it."""
        if self.failure is not None or not link.attached:
            return
        left = self._leaving[link] = self.loop.create_future()
        self.drop(link)
        try:
            async with self.within(self.options.close_s, "answer a detach"):
                await left
        finally:
            self._leaving.pop(link, None)

    def drop(self, link: Link) -> None:
        """Give up a link without waiting."""
        link.user = None
        if self.failure is None and link.state in ("ATTACHED", "ATTACH_SENT"):
            link.detach()
            self.flush()

    def has_room(self, link: SenderLink) -> bool:
        """Whether a delivery may be sent now: the socket takes it, and the hub."""
        return self.writable and link.sendable > 0

    def post(self, link: SenderLink, payload: bytes, message_format: int) -> asyncio.Future[Any]:
        """Send one delivery; the future will hold its outcome."""
        self.check()
        tag = self.session.next_delivery_id.to_bytes(4, "big")
        delivery_id = link.send(payload, tag=tag, message_format=message_format, settled=False)
        outcome: asyncio.Future[Any] = self.loop.create_future()
        self._outcomes[delivery_id] = link, outcome
        self.flush()
        return outcome

    async def close(self) -> None:
        """Say good-bye and hang up. Bounded, and quiet whatever the hub does."""
        try:
            self.amqp.close()
            self.flush()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.options.close_s):
                    await self._gone.wait()
        finally:
            if not self._gone.is_set():  # asyncio's transports do not stand it twice
                self.transport.abort()
        await self._gone.wait()

    def check(self) -> None:
        """Raise if the connection is broken."""
        if self.failure is not None:
            raise self.failure

    @asynccontextmanager
    async def within(self, seconds: float, what: str) -> AsyncIterator[None]:
        """A deadline for an answer of the hub; the error says what it did not do."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise ConnectionFailed(
                f"the hub at {self.place} did not {what} within {seconds:g} s"
            ) from None

    # -- bytes ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)
        self.heard = self.spoke = self.loop.time()
        self._ticker = self.loop.call_later(TICK_S, self.tick)
        self.amqp.start()
        self.flush()

    def data_received(self, data: bytes) -> None:
        self.heard = self.loop.time()
        try:
            for event in self.amqp.receive(data):
                self.handle(event)
        except ProtocolError as wrong:
            self.flush()
            self.fail(ConnectionFailed(f"{self.place} is no event hub we understand: {wrong}"))
        except AuthError as refused:
            self.fail(AuthError(f"{self.place}: {refused.description}", refused.status))
        else:
            self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ticker.cancel()
        self._gone.set()
        self.fail(ConnectionFailed(f"the connection to {self.place} broke{reason(exc)}"))

    def flush(self) -> None:
        """Hand all waiting bytes to the transport."""
        out = self.amqp.data_to_send()
        if not out or self.transport.is_closing():
            return
        self.spoke = self.loop.time()
        if len(out) == 1:
            self.transport.write(out[0])
        else:
            self.transport.writelines(out)
            # Python 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 forget to pause us there (CVE-2024-12254);
            # they look again when told the limit.
            self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.stir_all()

    # -- events -----------------------------------------------------------------------------------

    def handle(self, event: amqp.Event) -> None:
        match event:
            case amqp.RunDelivered():
                if event.link.user is not None:
                    event.link.user.run_delivered(event.payloads)
            case amqp.Delivered():
                if event.link.user is not None:
                    event.link.user.delivered(event)
            case amqp.Disposed():
                self.settle(event)
            case amqp.Flowed():
                if event.link.user is not None:
                    event.link.user.stirred()
            case amqp.WindowOpened():
                self.stir_all()
            case amqp.Attached():
                self.on_attached(event)
            case amqp.Detached():
                self.on_detached(event)
            case amqp.Opened():
                self._session = self.amqp.begin()
            case amqp.Begun():
                if not self._ready.done():
                    self._ready.set_result(None)
            case amqp.Ended():
                self.fail(ConnectionFailed(f"{self.place} ended the session{told(event.error)}"))
            case amqp.Closed():
                self.fail(ConnectionFailed(f"{self.place} hung up{told(event.error)}"))
            case amqp.AttachAsked():
                event.link.refuse(Error(condition="amqp:not-allowed", description="Not here."))

    def settle(self, said: amqp.Disposed) -> None:
        """Hand outcomes to those who wait for them. They are few, so looking at all is cheap."""
        if said.role != RECEIVER or not said.settled:
            return
        reach = credit.distance(said.first, said.last)
        for delivery_id in list(self._outcomes):
            if 0 <= credit.distance(said.first, delivery_id) <= reach:
                _, outcome = self._outcomes.pop(delivery_id)
                if not outcome.done():
                    outcome.set_result(said.state)

    def on_attached(self, event: amqp.Attached) -> None:
        # A refusal names no terminus of the hub's own; the detach that says why comes right behind.
        own = event.attach.source if event.link.role == RECEIVER else event.attach.target
        answered = self._attaching.get(event.link)
        if own is not None and answered is not None and not answered.done():
            answered.set_result(event.attach)

    def on_detached(self, event: amqp.Detached) -> None:
        left, answered = self._leaving.get(event.link), self._attaching.get(event.link)
        if left is not None:
            if not left.done():
                left.set_result(None)
        elif answered is not None and not answered.done():
            break_off(answered, refusal(event.error))
        else:
            self.on_lost(event.link, refusal(event.error))

    def on_lost(self, link: Link, why: PumphouseError) -> None:
        """The hub has closed a link in use: of what was under way on it nobody will hear more."""
        waiting = [number for number, (sent_on, _) in self._outcomes.items() if sent_on is link]
        for number in waiting:
            break_off(self._outcomes.pop(number)[1], why)
        if link.user is not None:
            link.user.lost(why)

    def stir_all(self) -> None:
        for user in self.users():
            user.stirred()

    def users(self) -> list[LinkHandler]:
        links = self._session.links.values() if self._session is not None else ()
        return [link.user for link in links if link.user is not None]

    def fail(self, why: PumphouseError) -> None:
        """Break the connection, once: everybody who waits is told, and nothing more is sent."""
        if self.failure is not None:
            return
        self.failure = why
        log.debug("lose connection place=%s why=%s", self.place, why)
        break_off(self._ready, why)
        waiting: list[asyncio.Future[Any]] = [outcome for _, outcome in self._outcomes.values()]
        waiting += [*self._attaching.values(), *self._leaving.values()]
        self._outcomes.clear()
        for future in waiting:
            break_off(future, why)
        for user in self.users():
            user.lost(why)
        self.flush()
        self.transport.close()

    # -- time -------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Let the hub hear from us in time, and notice if it has died."""
        now = self.loop.time()
        if now - self.heard > self.options.idle_s:
            silent = f"{self.place} has said nothing for {self.options.idle_s:g} s"
            self.fail(ConnectionFailed(f"{silent}; it is taken for dead"))
            self.transport.abort()
            return
        remote = self.amqp.remote
        # At half of what the hub tolerates, one heartbeat may be late.
        if remote and remote.idle_time_out and now - self.spoke >= remote.idle_time_out / 2000:
            self.amqp.heartbeat()
            self.flush()
        self._ticker = self.loop.call_later(TICK_S, self.tick)


async def connect(
    route: Route, options: ConnectionOptions | None = None, context: ssl.SSLContext | None = None
) -> Connection:
    """Connect to a hub, up to an open connection with a session."""
    options = options or ConnectionOptions()
    wire = Connection(route.place, route.hostname, options)
    try:
        async with wire.within(options.connect_s, "open the connection"):
            await open_transport(route, wire, context)
            await wire._ready
    except BaseException:
        if hasattr(wire, "transport"):
            wire.transport.abort()
        raise
    return wire


def break_off(future: asyncio.Future[Any], why: PumphouseError) -> None:
    """Fail a future. Whoever waits will see it; if nobody does, that is no reason to complain."""
    if not future.done():
        future.set_exception(why)
        future.exception()


def reason(exc: Exception | None) -> str:
    return f" ({exc})" if exc is not None else "; the other side hung up"


def __getattr__(name: str) -> Any:
    if name == "WireOptions":
        warn(f"{__name__}.WireOptions is now ConnectionOptions", DeprecationWarning, stacklevel=2)
        return ConnectionOptions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
