"""Pending batches of a sender never exceed credit, window, socket buffer and their own limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from pumphouse.amqp import session
from pumphouse.amqp.connection import SERVER
from pumphouse.amqp.connection import Connection as AmqpConnection
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.events import AttachAsked, Delivered, Detached
from pumphouse.amqp.links import Link, ReceiverLink, SenderLink
from pumphouse.amqp.messages import Message, Properties, decode_message, encode_message
from pumphouse.amqp.performatives import Attach, Open, Released
from pumphouse.client.base import RetryOptions
from pumphouse.client.native.client import NativeClient
from pumphouse.client.native.connection import WRITE_HIGH_WATER, Connection, ConnectionOptions
from pumphouse.client.native.sender import UNDER_WAY_MAX, NativeSender
from pumphouse.errors import AmqpError, ConnectionFailed
from pumphouse.events import Event
from tests.client.native.test_connection import listening

OPTIONS = ConnectionOptions(answer_s=0.3, close_s=0.05)


class StingyHub:
    """A hub that grants little credit, and checks that it is respected."""

    replies: SenderLink

    def __init__(self, credit: int, frame_bytes: int = 65536) -> None:
        self.credit = credit
        self.limits = Limits(max_frame_size=frame_bytes)
        self.deliveries: list[int] = []
        self.settle: Callable[[Delivered], None] = self.keep_waiting
        self.listens = asyncio.Event()
        self.listens.set()

    def keep_waiting(self, delivered: Delivered) -> None:
        self.deliveries.append(delivered.delivery_id)

    def accept(self, delivered: Delivered) -> None:
        self.keep_waiting(delivered)
        delivered.link.session.accept(delivered.delivery_id)
        if delivered.link.credit == 0:
            delivered.link.grant(self.credit)

    def release(self, delivered: Delivered) -> None:
        """Send an outcome that event hubs do not use."""
        delivered.link.session.dispose(delivered.delivery_id, delivered.delivery_id, Released())

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opening = Open(container_id="stingy", max_frame_size=self.limits.max_frame_size)
        amqp = AmqpConnection(SERVER, opening, limits=self.limits)
        while data := await reader.read(1 << 16):
            for event in amqp.receive(data):
                self.handle(event)
            writer.writelines(amqp.data_to_send())
            await self.listens.wait()

    def handle(self, event: Any) -> None:
        match event:
            case AttachAsked(link=link):
                self.answer(link, event.attach)
            case Delivered() if event.link.user is not None:
                self.take_token(event)
            case Delivered():
                assert event.link.credit >= 0, "sent beyond its credit"
                self.settle(event)
            case Detached():
                raise AssertionError("the client should not leave")

    def answer(self, link: Link, asked: Attach) -> None:
        link.send_attach(
            Attach(
                name=link.name,
                handle=link.handle,
                role=link.role,
                source=asked.source,
                target=asked.target,
                initial_delivery_count=0,
                max_message_size=1 << 20,
            )
        )
        if isinstance(link, SenderLink):
            self.replies = link
        elif isinstance(link, ReceiverLink):
            cbs = asked.target.address == "$cbs"
            link.user = self if cbs else None
            link.grant(10 if cbs else self.credit)

    def take_token(self, asked: Delivered) -> None:
        properties = decode_message(asked.payload).properties
        assert properties is not None
        reply = Message(
            properties=Properties(correlation_id=properties.message_id),
            application={"status-code": 202, "status-description": "Accepted"},
        )
        self.replies.send(encode_message(reply))


@asynccontextmanager
async def attached(port: int) -> AsyncIterator[tuple[Connection, NativeSender]]:
    """A sender without retries."""
    text = f"Endpoint=sb://127.0.0.1:{port};SharedAccessKeyName=a;SharedAccessKey=b"
    client = NativeClient(
        f"{text};UseDevelopmentEmulator=true", "eh", options=OPTIONS, retry=RetryOptions(0)
    )
    async with client:
        sender = await client.sender()
        assert sender.link_connection is not None
        yield sender.link_connection, sender


def watch_windows(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the window of the hub after each delivery."""
    windows: list[int] = []
    send_delivery = connection.send_delivery

    def watched(*args: Any) -> Any:
        outcome = send_delivery(*args)
        windows.append(connection.session.remote_window)
        return outcome

    monkeypatch.setattr(connection, "send_delivery", watched)
    return windows


@pytest.mark.parametrize("credit", [1, 3, 100])
async def test_a_sender_respects_credit_and_window(
    monkeypatch: pytest.MonkeyPatch, credit: int
) -> None:
    monkeypatch.setattr(session, "INCOMING_WINDOW", 20)  # frames, of 512 bytes
    hub = StingyHub(credit, frame_bytes=512)
    hub.settle = hub.accept
    async with listening(hub) as port, attached(port) as (connection, sender):
        windows = watch_windows(connection, monkeypatch)
        assert await sender.send([Event(b"x" * 2500)] * 50, batch_events_max=1) == 50
        assert len(hub.deliveries) == 50
        assert min(windows) >= 0


async def test_a_sender_without_acknowledgements_stops_at_its_limit() -> None:
    hub = StingyHub(credit=1000)
    async with listening(hub) as port, attached(port) as (_, sender):
        with pytest.raises(ConnectionFailed, match=r"did not acknowledge a batch within 0\.3 s"):
            await sender.send([Event(b"x")] * 500, batch_events_max=1)
        assert len(hub.deliveries) == UNDER_WAY_MAX


async def test_a_send_without_credit_ends_at_its_deadline() -> None:
    async with listening(StingyHub(credit=0)) as port, attached(port) as (_, sender):
        with pytest.raises(ConnectionFailed, match=r"did not make room for a batch within 0\.3 s"):
            await sender.send([Event(b"x")])


async def test_a_hub_that_does_not_read_stops_the_sender() -> None:
    hub = StingyHub(credit=1000)
    async with listening(hub) as port, attached(port) as (connection, sender):
        hub.listens.clear()
        large = [Event(b"x" * 1_000_000)] * 20
        with pytest.raises(ConnectionFailed, match="within"):
            await sender.send(large, batch_events_max=1)
        assert connection.transport.get_write_buffer_size() <= WRITE_HIGH_WATER + 1_001_000
        hub.listens.set()


async def test_an_unexpected_outcome_is_an_error() -> None:
    hub = StingyHub(credit=10)
    hub.settle = hub.release
    async with listening(hub) as port, attached(port) as (_, sender):
        with pytest.raises(AmqpError, match="unexpected outcome of a send: released"):
            await sender.send([Event(b"x")])
