"""One AMQP connection of ours: a socket, deadlines, and links that have a user.

All protocol lives in `amqp`. This file moves bytes, wakes whoever waits for an answer, and does
what the passing of time asks for: heartbeats in one direction, a dead hub noticed in the other.

    Sender, Reader, Calls -> Wire -> amqp.Connection -> socket
                             ^^^^ this module
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, cast

from pumphouse.amqp import credit
from pumphouse.amqp import events as amqp
from pumphouse.amqp.connection import CLIENT, Connection, Limits
from pumphouse.amqp.links import Link, SenderLink
from pumphouse.amqp.performatives import RECEIVER, Attach, Error, Open
from pumphouse.amqp.session import Session
from pumphouse.errors import (
    AmqpError,
    AuthError,
    ConnectionFailed,
    HubNotFound,
    ProtocolError,
    PumphouseError,
)

log = logging.getLogger("pumphouse.client")

FRAME_BYTES_MAX = 1 << 20  # as the official client: the hub can hand over most events whole
WRITE_HIGH_WATER = 1 << 20
TICK_S = 1.0


@dataclass(frozen=True, slots=True)
class WireOptions:
    """How long we wait."""

    connect_s: float = 10.0  # until the hub has opened the connection
    answer_s: float = 30.0  # until it has answered an attach, a request or a send
    close_s: float = 2.0  # until it has said good-bye
    idle_s: float = 60.0  # a hub that says nothing for so long is taken for dead


class LinkUser(Protocol):
    """Whoever has attached a link, and is told what happens to it."""

    def delivered(self, delivery: amqp.Delivered) -> None:
        """A delivery has arrived."""

    def stirred(self) -> None:
        """There may be room to send: credit, window or socket."""

    def lost(self, why: PumphouseError) -> None:
        """The link is gone."""


class Wire(asyncio.Protocol):
    """A connection with one session. Made by `connect`; a failure breaks it for good."""

    transport: asyncio.Transport

    def __init__(self, place: str, hostname: str, options: WireOptions) -> None:
        self.place = place
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.amqp = Connection(
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
        self._outcomes: dict[int, asyncio.Future[Any]] = {}  # by delivery id
        self._names = count(1)

    def __repr__(self) -> str:
        return f"<Wire {self.place} {'broken' if self.failure else self.amqp.state}>"

    @property
    def session(self) -> Session:
        assert self._session is not None, "connect() returns a wire that has one"
        return self._session

    # -- what users call --------------------------------------------------------------------------

    async def attach(self, user: LinkUser, role: bool, **fields: Any) -> tuple[Link, Attach]:
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
            async with self.within(self.options.answer_s, "answer a detach"):
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
        outcome = self._outcomes[delivery_id] = self.loop.create_future()
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
        if out and not self.transport.is_closing():
            self.spoke = self.loop.time()
            self.transport.writelines(out)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.stir_all()

    # -- events -----------------------------------------------------------------------------------

    def handle(self, event: amqp.Event) -> None:
        match event:
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
                outcome = self._outcomes.pop(delivery_id)
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
        elif event.link.user is not None:
            event.link.user.lost(refusal(event.error))

    def stir_all(self) -> None:
        for user in self.users():
            user.stirred()

    def users(self) -> list[LinkUser]:
        links = self._session.links.values() if self._session is not None else ()
        return [link.user for link in links if link.user is not None]

    def fail(self, why: PumphouseError) -> None:
        """Break the connection, once: everybody who waits is told, and nothing more is sent."""
        if self.failure is not None:
            return
        self.failure = why
        log.debug("lose connection place=%s why=%s", self.place, why)
        break_off(self._ready, why)
        for waiting in (self._attaching, self._leaving, self._outcomes):
            for future in waiting.values():
                break_off(future, why)
        self._outcomes.clear()
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


async def connect(host: str, port: int, options: WireOptions | None = None) -> Wire:
    """Connect to a hub, up to an open connection with a session."""
    options = options or WireOptions()
    place = f"{host}:{port}"
    wire = Wire(place, host, options)
    try:
        async with wire.within(options.connect_s, "open the connection"):
            await wire.loop.create_connection(lambda: wire, host, port)
            await wire._ready
    except OSError as failed:
        raise ConnectionFailed(
            f"no hub answers at {place}: {cause(failed)}; is it running? `pumphouse up` starts one"
        ) from None
    except BaseException:
        if hasattr(wire, "transport"):
            wire.transport.abort()
        raise
    return wire


def cause(failed: OSError) -> str:
    """Why there is no connection, in the system's words without asyncio's."""
    if isinstance(failed, socket.gaierror) or not failed.errno:
        # Without a number, several addresses were tried and all of them failed.
        return failed.strerror or "connection refused"
    return os.strerror(failed.errno).lower()


def break_off(future: asyncio.Future[Any], why: PumphouseError) -> None:
    """Fail a future. Whoever waits will see it; if nobody does, that is no reason to complain."""
    if not future.done():
        future.set_exception(why)
        future.exception()


def refusal(error: Error | None) -> PumphouseError:
    """A hub's error as one of ours."""
    if error is None:
        return AmqpError("amqp:link:detach-forced", "the hub detached the link")
    description = error.description or ""
    if error.condition == "amqp:unauthorized-access":
        return AuthError(description or error.condition)
    if error.condition == "amqp:not-found":
        return HubNotFound(description or error.condition)
    return AmqpError(error.condition, description)


def told(error: Error | None) -> str:
    return f": {error.description or error.condition}" if error is not None else ""


def reason(exc: Exception | None) -> str:
    return f" ({exc})" if exc is not None else "; the other side hung up"
