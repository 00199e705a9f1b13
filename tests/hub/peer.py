"""A scripted AMQP peer on a real socket.

It reads only while a test waits for something, so a peer without a waiting test does not read.
Every wait has a deadline and ends as soon as its condition holds.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

from pumphouse.amqp import events as amqp_events
from pumphouse.amqp.connection import CLIENT, Connection, Login
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, Properties, decode_message, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SELECTOR_FILTER,
    SENDER,
    Error,
    Open,
    Rejected,
    Source,
    Target,
)
from pumphouse.amqp.sasl import PLAIN, plain_response
from pumphouse.amqp.session import Session
from pumphouse.amqp.types import Described, Symbol
from pumphouse.client.sas import sign
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub

DEADLINE_S = 30.0
HUB = "eh"
READ_FROM = f"{HUB}/ConsumerGroups/$Default/Partitions/0"
SEND_TO = f"{HUB}/Partitions/0"

E = TypeVar("E")


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.time = now

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("no code should sleep by this clock")


async def eventually(condition: Callable[[], object], what: str = "a condition") -> None:
    """Let the loop run until a condition holds."""
    try:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await run_others()
    except TimeoutError:
        raise AssertionError(f"waited {DEADLINE_S:g} s for {what}") from None


async def run_others() -> None:
    await asyncio.sleep(0.001)


def root_key(hub: EmbeddedHub) -> str:
    return hub.find_rule(ROOT_RULE, None).key


def root_login(hub: EmbeddedHub) -> Login:
    return Login(PLAIN, plain_response(ROOT_RULE, root_key(hub)))


async def open_socket(
    hub: EmbeddedHub, receive_buffer: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", hub.port))
    return await asyncio.open_connection(sock=sock)


async def send_raw(hub: EmbeddedHub, data: bytes) -> bytes:
    """Send bytes on a new connection; returns all received bytes until the hub closes."""
    reader, writer = await open_socket(hub)
    writer.write(data)
    try:
        async with asyncio.timeout(DEADLINE_S):
            return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


class HubClosed(Exception):
    """The hub has closed the connection."""


class Peer:
    """One connection, with one session unless a test begins more."""

    amqp: Connection
    session: Session

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.events: list[amqp_events.Event] = []
        self.received_bytes = 0

    @classmethod
    async def connect(
        cls,
        hub: EmbeddedHub,
        login: Login | None = None,
        *,
        max_frame_size: int = 65536,
        idle_time_out: int | None = None,
        receive_buffer: int | None = None,
    ) -> Peer:
        """A peer with an open connection and a session, by default with the root key."""
        peer = cls(*await open_socket(hub, receive_buffer))
        opening = Open(
            container_id="peer", max_frame_size=max_frame_size, idle_time_out=idle_time_out
        )
        peer.amqp = Connection(
            CLIENT,
            opening,
            login=login or root_login(hub),
            limits=Limits(max_frame_size=max_frame_size),
        )
        peer.amqp.start()
        try:
            await peer.until(lambda: peer.of(amqp_events.Opened), "an open")
            peer.session = peer.amqp.begin()
            await peer.until(lambda: peer.of(amqp_events.Begun), "a begin")
        except BaseException:
            await peer.drop()
            raise
        return peer

    # -- bytes ------------------------------------------------------------------------------------

    def flush(self) -> None:
        self.writer.writelines(self.amqp.data_to_send())

    async def until(self, condition: Callable[[], object], what: str = "a condition") -> None:
        """Send and receive until a condition holds."""
        self.flush()
        try:
            async with asyncio.timeout(DEADLINE_S):
                while not condition():
                    await self.receive()
        except TimeoutError:
            raise AssertionError(f"waited {DEADLINE_S:g} s for {what}") from None

    async def receive(self) -> None:
        data = await self.reader.read(1 << 16)
        if not data:
            raise HubClosed
        self.received_bytes += len(data)
        self.events += self.amqp.receive(data)
        self.flush()

    async def sync(self) -> None:
        """Begin and end a session: the hub has then handled all earlier frames."""
        extra = self.amqp.begin()
        await self.until(lambda: extra.state == "MAPPED", "a begin")
        extra.end()
        await self.until(lambda: extra.state == "UNMAPPED", "an end")

    async def until_closed(self) -> Error | None:
        """Receive until the hub closes; returns the error of its close."""
        with suppress(HubClosed, ConnectionError):
            await self.until(lambda: False, "the hub to close")
        closed = self.of(amqp_events.Closed)
        return closed[-1].error if closed else None

    async def drop(self) -> None:
        """Break the connection without a close."""
        self.writer.transport.abort()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def close(self) -> None:
        """Send close and wait for the hub's close."""
        self.amqp.close()
        with suppress(HubClosed, ConnectionError):
            await self.until(lambda: self.of(amqp_events.Closed), "a close")
        await self.drop()

    # -- received events --------------------------------------------------------------------------

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]

    def deliveries(self, link: Link) -> list[amqp_events.Delivered]:
        return [event for event in self.of(amqp_events.Delivered) if event.link is link]

    def messages(self, link: Link) -> list[Message]:
        return [decode_message(event.payload) for event in self.deliveries(link)]

    def bodies(self, link: Link) -> list[bytes]:
        return [b"".join(message.data) for message in self.messages(link)]

    def detached(self, link: Link) -> Error | None:
        """The error a link was detached with, if it was."""
        detaches = [event for event in self.of(amqp_events.Detached) if event.link is link]
        return detaches[-1].error if detaches else None

    # -- links ------------------------------------------------------------------------------------

    async def attach(self, name: str, role: bool, **fields: Any) -> Link:
        """Attach a link; Refused with the hub's error if it is refused."""
        link = self.session.attach(name, role, **fields)
        await self.until(lambda: link.state in ("ATTACHED", "DETACHED"), f"a response to {name}")
        response = next(event for event in self.of(amqp_events.Attached) if event.link is link)
        if (response.attach.target if role == SENDER else response.attach.source) is None:
            await self.until(lambda: link.state == "DETACHED", "the detach of a refusal")
            raise Refused(self.detached(link))
        return link

    async def sender(self, address: str = SEND_TO, name: str = "out", **fields: Any) -> SenderLink:
        """A link to send on, with credit."""
        fields = {"source": Source(address="here"), "target": Target(address=address), **fields}
        link = await self.attach(name, SENDER, initial_delivery_count=0, **fields)
        assert isinstance(link, SenderLink)
        await self.until(lambda: link.credit, "credit")
        return link

    async def receiver(
        self,
        address: str = READ_FROM,
        name: str = "in",
        credit: int = 0,
        selector: str | None = None,
        **fields: Any,
    ) -> ReceiverLink:
        """A link to receive on, with this credit."""
        filters = {SELECTOR_FILTER: Described(SELECTOR_FILTER, selector)} if selector else None
        fields = {"target": Target(address="here"), **fields}
        source = Source(address=address, filter=filters)
        link = await self.attach(name, RECEIVER, source=source, **fields)
        assert isinstance(link, ReceiverLink)
        if credit:
            link.grant(credit)
            self.flush()
        return link

    async def send(
        self, link: SenderLink, payload: bytes, message_format: int = 0, settled: bool = False
    ) -> Any:
        """Send a delivery and wait for its outcome."""
        delivery_id = link.send(payload, message_format=message_format, settled=settled)
        if settled:
            self.flush()
            return None
        await self.until(lambda: self.outcome(delivery_id) is not None, "an outcome")
        return self.outcome(delivery_id)

    def outcome(self, delivery_id: int) -> Any:
        for event in self.of(amqp_events.Disposed):
            if event.first <= delivery_id <= event.last and event.role == RECEIVER:
                assert event.settled
                return event.state
        return None

    async def request(self, node: str, application: dict[Any, Any], **fields: Any) -> Message:
        """Send a request to $cbs or $management; returns its reply."""
        out = await self.sender(node, f"to {node} {uuid4()}")
        into = await self.receiver(node, f"from {node} {uuid4()}", credit=1)
        properties = Properties(message_id=uuid4(), reply_to="here")
        message = Message(application=application, properties=properties, **fields)
        await self.send(out, encode_message(message))
        await self.until(lambda: self.deliveries(into), f"a reply of {node}")
        (reply,) = self.messages(into)
        assert reply.properties is not None
        assert reply.properties.correlation_id == properties.message_id
        for link in (out, into):
            link.detach()
        await self.until(lambda: not out.session.links.keys() & {out.remote_handle}, "a detach")
        return reply

    async def put_token(
        self, hub: EmbeddedHub, path: str = "", expiry: float = 9e9, key: str | None = None
    ) -> Message:
        """Put a token for a path of the hub."""
        resource = f"sb://{hub.authority}/{path}"
        token = sign(resource, ROOT_RULE, key or root_key(hub), int(expiry))
        kind = "servicebus.windows.net:sastoken"
        fields = {"operation": "put-token", "type": kind, "name": resource}
        return await self.request("$cbs", fields, value=token)


class Refused(AssertionError):
    """The hub has refused an attach."""

    def __init__(self, error: Error | None) -> None:
        super().__init__(str(error))
        assert error is not None
        self.error = error


def rejection(outcome: object) -> Error:
    """The error of an outcome that must be a rejection."""
    assert isinstance(outcome, Rejected), outcome
    assert outcome.error is not None
    return outcome.error


def event(body: bytes, **annotations: Any) -> bytes:
    """An event as a producer sends it."""
    named = {Symbol(name.replace("_", "-")): value for name, value in annotations.items()}
    return encode_message(Message(data=(body,), annotations=named))
