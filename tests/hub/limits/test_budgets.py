"""The bytes that the hub holds for its clients: before authentication, after it, and in total."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.amqp.credit import Limits
from pumphouse.amqp.frames import AMQP_HEADER, encode_frame
from pumphouse.amqp.messages import Message, Properties, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from pumphouse.hub.connection import FLUSH_BYTES, HubConnection
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import ServerOptions
from tests.fuzz.offline_connection import OfflineConnection, Transport
from tests.hub.conftest import Connect
from tests.hub.connections.test_misbehaving_clients import (
    check_served,
    connection_of,
    fill,
    slow_peer,
)
from tests.hub.peer import SEND_TO, Peer, eventually, open_socket, run_others

ANONYMOUS = Login()
KIB = 1024
FLOWS = 10_000  # whose responses fill the buffers of the hub and of the system


@pytest.fixture
def options() -> ServerOptions:
    return ServerOptions(stop_s=0.2)


def request(id_bytes: int) -> bytes:
    properties = Properties(message_id=bytes(id_bytes))
    return encode_message(Message(properties=properties, application={"operation": "x"}))


async def check_refused(peer: Peer, caplog: pytest.LogCaptureFixture) -> None:
    """The connection is closed with a condition, and one line is logged."""
    error = await peer.until_closed()
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    lines = [record for record in caplog.records if "budget_exceeded" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"]


# -- before authentication ------------------------------------------------------------------------


async def test_an_anonymous_request_above_the_budget_closes_the_connection(
    hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await connect(ANONYMOUS), await connect()
    out = await bad.sender("$cbs")
    out.send(request(hub.server.options.anonymous_bytes_max))
    await check_refused(bad, caplog)
    await check_served(good)


async def test_anonymous_replies_without_credit_are_bounded_in_bytes(
    hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    bad = await connect(ANONYMOUS)
    await bad.receiver("$cbs")  # and no credit
    out = await bad.sender("$cbs")
    connection = connection_of(hub, bad)
    for _ in range(80):
        out.send(request(KIB))
    await check_refused(bad, caplog)
    assert connection.slot.budget.held <= 0
    assert hub.server.admission.total.held == 0


async def test_anonymous_replies_behind_a_closed_window_are_bounded_in_bytes(
    hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """Each link has credit, but the session accepts no frames: replies wait on each."""
    bad = await connect(ANONYMOUS)
    out = await bad.sender("$cbs")
    window = Flow(next_incoming_id=0, incoming_window=0, next_outgoing_id=0, outgoing_window=9)
    names = [f"reply {number}" for number in range(8)]
    for name in names:
        await bad.receiver("$cbs", name, credit=9, target=Target(address=name))
    bad.writer.write(encode_frame(window))
    for name in names:
        properties = Properties(message_id=bytes(KIB), reply_to=name)
        message = encode_message(Message(properties=properties, application={"operation": "x"}))
        for _ in range(10):
            out.send(message)
    await check_refused(bad, caplog)


async def test_anonymous_links_with_long_names_are_bounded(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    bad = await connect(ANONYMOUS)
    for number in range(25):
        bad.session.attach(f"{number}" + "n" * 1000, RECEIVER, source=Source(address="$cbs"))
    await check_refused(bad, caplog)


async def test_an_anonymous_client_that_does_not_read_is_not_buffered_for(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """It asks for responses without end. The hub stops within one read of its requests."""
    bad, good = await slow_peer(hub, connect, login=ANONYMOUS), await connect()
    connection = connection_of(hub, bad)
    echo = encode_frame(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True))
    bad.writer.write(echo * 100_000)
    await eventually(lambda: not connection.writable, "the hub to stop responding")
    await check_served(good)
    limit = hub.server.options.anonymous_bytes_max
    assert connection.transport.get_write_buffer_size() <= limit + 2 * FLUSH_BYTES
    assert not connection.transport.is_reading()


def test_an_anonymous_client_that_reads_slowly_may_begin_sessions() -> None:
    """Its responses are just below the limit at which the hub stops to send."""
    known = OfflineConnection()
    transport = SlowTransport()
    slot = known.server.admission.admit("fuzz", 0.0)
    assert slot is not None
    connection = HubConnection(known.server, slot)
    connection.connection_made(cast(asyncio.Transport, transport))
    session = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    begins = b"".join(encode_frame(session, number) for number in range(10))
    connection.data_received(AMQP_HEADER + encode_frame(Open(container_id="c")))
    connection.data_received(begins)
    assert not transport.closed
    assert len(connection.amqp.sessions) == 10
    assert known.server.admission.total.held > SlowTransport.UNREAD


class SlowTransport(Transport):
    """Has bytes that the client has not read."""

    UNREAD = 63 * KIB

    def get_write_buffer_size(self) -> int:
        return self.UNREAD


async def test_requests_after_a_pause_are_answered_in_order(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """The client does not read for a while, then reads everything: no response is missing."""
    peer = await slow_peer(hub, connect)
    connection = connection_of(hub, peer)
    session = Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9)
    numbers = range(1, 9)
    for number in numbers:
        peer.writer.write(encode_frame(session, number))
        echo = Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True)
        peer.writer.write(encode_frame(echo, number) * FLOWS)
    await eventually(lambda: not connection.writable, "the hub to stop responding")
    data = b""
    async with asyncio.timeout(30):
        while data.count(b"\x00\x53\x13") < FLOWS * len(numbers):
            piece = await peer.reader.read(1 << 18)
            assert piece, "the hub has closed the connection"
            data += piece
    await eventually(lambda: connection.transport.is_reading())
    assert data.count(b"\x00\x53\x11") == len(numbers)  # begins
    assert len(connection.amqp.sessions) == 1 + len(numbers)


async def test_a_token_gives_the_large_budget(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect(ANONYMOUS)
    connection = connection_of(hub, peer)
    assert connection.slot.budget.limit == 64 * KIB
    await peer.put_token(hub)
    assert connection.slot.budget.limit == Limits().held_bytes_max
    await peer.receiver("$management", credit=9)
    out = await peer.sender("$management", "requests")
    await peer.send(out, request(900 * KIB))


# -- after it -------------------------------------------------------------------------------------


class TestOneConnection:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(limits=Limits(held_bytes_max=1 << 20), stop_s=0.2)

    async def test_waiting_replies_are_bounded_in_bytes(
        self, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        bad, good = await connect(), await connect()
        out = await bad.sender("$management", "requests")
        names = [f"reply {number}" for number in range(12)]
        for name in names:
            await bad.receiver("$management", name, target=Target(address=name))
        for name in names:
            properties = Properties(message_id=bytes(KIB), reply_to=name)
            message = encode_message(Message(properties=properties, application={"operation": "x"}))
            for _ in range(95):
                out.send(message)
        await bad.until_closed()  # it may still be sending, and then does not get the condition
        assert "budget_exceeded" in caplog.text
        await check_served(good)

    async def test_replies_of_a_detached_link_are_released(
        self, hub: EmbeddedHub, connect: Connect
    ) -> None:
        peer = await connect()
        connection = connection_of(hub, peer)
        out = await peer.sender("$management", "requests")
        before = connection.slot.budget.held
        for number in range(5):
            into = await peer.receiver("$management", f"replies {number}")
            await peer.send(out, request(KIB))
            into.detach()
            await peer.until(lambda link=into: link.state == "DETACHED")  # type: ignore[misc]
        assert connection.slot.budget.held == before


class TestTotal:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(total_bytes_max=4 << 20, stop_s=0.2)

    async def test_the_connection_that_holds_most_is_closed(
        self, hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        small, large, good = await connect(), await connect(), await connect()
        for peer, frames in ((small, 20), (large, 50)):
            links = [await peer.sender(SEND_TO, f"{number}") for number in range(5)]
            for number in range(frames):
                handle = links[number % 5].handle
                part = Transfer(handle=handle, delivery_id=handle, more=True)
                peer.writer.write(encode_frame(part, payload=bytes(65_000)))
                await peer.writer.drain()
            await run_others()
        await check_refused(large, caplog)
        await eventually(lambda: hub.server.admission.total.held < 4 << 20)
        await check_served(good)
        await small.sync()

    async def test_bytes_that_clients_do_not_read_count(
        self, hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Each reader may have a megabyte unread; together they have too much."""
        for _ in range(10):
            fill(hub, 16, 64 * KIB)
        good = await connect()
        bad: list[HubConnection] = []
        for number in range(5):
            peer = await slow_peer(hub, connect)
            bad.append(connection_of(hub, peer))
            await peer.receiver(name=f"in {number}", credit=1_000_000)
        await eventually(lambda: any(each.closing for each in bad), "one of them to be closed")
        await eventually(lambda: hub.server.admission.total.held <= 4 << 20)
        assert not all(each.closing for each in bad)
        assert "budget_exceeded" in caplog.text
        await check_served(good)


async def test_an_incomplete_frame_counts_for_all_connections_only(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect(ANONYMOUS)
    connection, total = connection_of(hub, peer), hub.server.admission.total
    await peer.sync()
    held, before = connection.slot.budget.held, total.held
    frame = (60_000).to_bytes(4, "big") + b"\x02\x00\x00\x00" + bytes(60_000 - 8)
    peer.writer.write(frame[:50_000])
    await eventually(lambda: total.held == before + 50_000, "the bytes to count")
    assert connection.slot.budget.held == held
    await peer.drop()
    await eventually(lambda: total.held == 0)


async def test_a_slot_is_released_with_its_connection(hub: EmbeddedHub) -> None:
    data = AMQP_HEADER + b"".join(
        encode_frame(frame)
        for frame in (
            Open(container_id="c"),
            Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9),
            Attach(name="a", handle=0, role=SENDER, target=Target(address="$cbs")),
            Transfer(handle=0, delivery_id=0, more=True),
        )
    )
    for _ in range(20):
        _, writer = await open_socket(hub)
        writer.write(data + bytes(3))
        await writer.drain()
        await eventually(lambda: hub.server.admission.total.held, "the bytes to count")
        writer.transport.abort()
        await eventually(lambda: len(hub.server.admission) == 0, "the slot to be released")
        assert hub.server.admission.total.held == 0


def test_the_options_give_the_limits() -> None:
    options = replace(ServerOptions(), connections_max=7, limits=Limits(held_bytes_max=5))
    limits = options.admission_limits
    assert (limits.connections_max, limits.per_address_max) == (7, 4000)
    assert (limits.anonymous_bytes_max, limits.connection_bytes_max) == (64 * KIB, 5)
    assert limits.total_bytes_max == KIB**3
