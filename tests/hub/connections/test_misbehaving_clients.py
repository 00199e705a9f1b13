"""Clients that misbehave do not affect others, and use bounded memory of the hub.

Beside each of them a good peer sends and receives. The hub's buffers for the bad one are measured:
bytes to write, and incomplete deliveries.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.amqp.credit import Limits
from pumphouse.amqp.frames import AMQP_HEADER, EMPTY_FRAME, encode_frame
from pumphouse.amqp.links import PIECE_OVERHEAD
from pumphouse.amqp.messages import Message, encode_message
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    Flow,
    Open,
    Source,
    Target,
    Transfer,
)
from pumphouse.hub.connection import WRITE_HIGH_WATER, HubConnection
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.links.consumer import SINGLY_BYTES, SLICE_BYTES
from pumphouse.hub.links.requests import REPLIES_MAX
from pumphouse.hub.options import ServerOptions
from tests.hub.conftest import Connect
from tests.hub.events import batch_of
from tests.hub.peer import (
    HUB,
    READ_FROM,
    SEND_TO,
    Peer,
    event,
    eventually,
    open_socket,
    run_others,
)

OTHER = f"{HUB}/ConsumerGroups/$Default/Partitions/1"
# The most that is buffered for a peer that does not read: the high water mark, one slice, one more
# event, and the responses to what it had sent before.
UNREAD_MAX = WRITE_HIGH_WATER + SLICE_BYTES + (2 << 20)

PIECE = b"x" * 256 * 1024


@pytest.fixture
def options() -> ServerOptions:
    return ServerOptions(stop_s=0.2)


def connection_of(hub: EmbeddedHub, peer: Peer) -> HubConnection:
    name = peer.writer.get_extra_info("sockname")
    (match,) = [connection for connection in hub.server.connections if connection.peer == name]
    return match


def unread(hub: EmbeddedHub, peer: Peer) -> int:
    return connection_of(hub, peer).transport.get_write_buffer_size()


def fill(hub: EmbeddedHub, count: int, size: int) -> None:
    partition = hub.namespace.hub(HUB).partitions[0]
    batch = batch_of([bytes(size)] * count)
    hub.namespace.publish(partition, batch, None, lambda failure: None)


async def slow_peer(hub: EmbeddedHub, connect: Connect, **options: Any) -> Peer:
    """A peer that does not read. The kernel's buffers are small, so that the hub must buffer."""
    peer = await connect(receive_buffer=4096, **options)
    sock = connection_of(hub, peer).transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return peer


async def check_served(peer: Peer, rounds: int = 20) -> None:
    """A good peer sends to the other partition and reads its events."""
    out = await peer.sender(f"{HUB}/Partitions/1", "good out")
    into = await peer.receiver(OTHER, "good in", credit=rounds)
    for number in range(rounds):
        assert await peer.send(out, event(b"%d" % number)) == Accepted()
    await peer.until(lambda: len(peer.deliveries(into)) == rounds)
    assert peer.bodies(into) == [b"%d" % number for number in range(rounds)]


async def settled(measure: Callable[[], int]) -> int:
    """A number, after it has stayed the same for a while."""
    last, same = measure(), 0
    while same < 50:
        await run_others()
        now = measure()
        last, same = now, same + 1 if now == last else 0
    return last


# -- peers that do not read -----------------------------------------------------------------------


async def test_the_hub_buffers_little_for_a_reader_that_does_not_read(
    hub: EmbeddedHub, connect: Connect
) -> None:
    for _ in range(10):
        fill(hub, 16, 64 * 1024)  # ten megabytes
    bad, good = await slow_peer(hub, connect), await connect()
    await bad.receiver(credit=1_000_000)
    await eventually(lambda: not connection_of(hub, bad).writable, "the hub to stop writing")
    await check_served(good)
    # The system may take a little more after the hub has stopped.
    least = WRITE_HIGH_WATER - SINGLY_BYTES
    assert least <= await settled(lambda: unread(hub, bad)) <= UNREAD_MAX
    for _ in range(10):
        fill(hub, 16, 64 * 1024)
    await check_served(await connect())
    assert await settled(lambda: unread(hub, bad)) <= UNREAD_MAX


async def test_a_reader_that_resumes_reading_has_missed_nothing(
    hub: EmbeddedHub, connect: Connect
) -> None:
    for _ in range(10):
        fill(hub, 16, 64 * 1024)
    peer = await slow_peer(hub, connect)
    into = await peer.receiver(credit=160)
    await eventually(lambda: not connection_of(hub, peer).writable, "the hub to stop writing")
    await peer.until(lambda: len(peer.deliveries(into)) == 160)
    assert connection_of(hub, peer).writable


async def test_unread_flow_responses_are_bounded(hub: EmbeddedHub, connect: Connect) -> None:
    """Every flow asks for a response; the hub stops reading when too many of them wait."""
    bad, good = await slow_peer(hub, connect), await connect()
    echo = encode_frame(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True))
    flooding = asyncio.create_task(flood(bad, echo * 1000))
    await eventually(lambda: not connection_of(hub, bad).writable, "the hub to stop responding")
    await check_served(good)
    assert await settled(lambda: unread(hub, bad)) <= UNREAD_MAX
    flooding.cancel()


async def flood(peer: Peer, data: bytes) -> None:
    """Write the same bytes repeatedly, as fast as the hub reads them."""
    while True:
        peer.writer.write(data)
        await peer.writer.drain()


async def test_no_heartbeats_are_buffered_for_a_peer_that_does_not_read(
    hub: EmbeddedHub, connect: Connect
) -> None:
    for _ in range(5):
        fill(hub, 16, 64 * 1024)
    bad = await slow_peer(hub, connect, idle_time_out=100)
    await bad.receiver(credit=1000)
    connection = connection_of(hub, bad)
    await eventually(lambda: not connection.writable, "the hub to stop writing")
    waiting = await settled(lambda: unread(hub, bad))
    for _ in range(1000):
        connection.tick(asyncio.get_running_loop().time() + 100)
    assert unread(hub, bad) == waiting


async def test_a_closed_peer_that_does_not_read_is_dropped(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """After the close it does not read the rest; the connection must not stay for that."""
    for _ in range(5):
        fill(hub, 16, 64 * 1024)
    bad = await slow_peer(hub, connect)
    await bad.receiver(credit=1000)
    connection = connection_of(hub, bad)
    await eventually(lambda: not connection.writable, "the hub to stop writing")
    connection.finish()
    await run_others()
    assert connection in hub.server.connections
    await eventually(lambda: connection not in hub.server.connections, "the time-out")
    assert [*hub.namespace.hub(HUB).readers()] == []


# -- peers that stop half-way ---------------------------------------------------------------------


async def test_a_reader_without_credit_gets_no_events(hub: EmbeddedHub, connect: Connect) -> None:
    bad, good = await connect(), await connect()
    into = await bad.receiver()
    for _ in range(20):
        fill(hub, 16, 64 * 1024)
    await check_served(good)
    await bad.sync()
    assert bad.deliveries(into) == []
    assert unread(hub, bad) == 0


@pytest.mark.parametrize("cut", [1, 4, 8, 12, 1000, 60_000])
async def test_a_peer_may_pause_within_a_frame(
    hub: EmbeddedHub, connect: Connect, cut: int
) -> None:
    bad, good = await connect(), await connect()
    await bad.sender()
    frame = encode_frame(Transfer(handle=0, delivery_id=0), payload=event(bytes(60_000)))
    bad.writer.write(frame[:cut])
    await check_served(good)
    assert await settled(lambda: connection_of(hub, bad).amqp._reader.pending) == cut
    bad.writer.write(frame[cut:])  # and continues
    await bad.until(lambda: bad.outcome(0) == Accepted())


async def test_a_peer_may_send_byte_by_byte(hub: EmbeddedHub, connect: Connect) -> None:
    bad, good = await connect(), await connect()
    await bad.sender()
    frame = encode_frame(Transfer(handle=0, delivery_id=0), payload=event(b"slow"))
    for byte in frame:
        bad.writer.write(bytes((byte,)))
        await run_others()
    await check_served(good)
    await bad.until(lambda: bad.outcome(0) == Accepted())


async def test_incomplete_deliveries_reach_the_limit_of_the_connection(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """On many links, each within its own limit; together they reach the connection's."""
    bad, good = await connect(), await connect()
    limit = hub.server.options.limits.held_bytes_max
    links = [await bad.sender(SEND_TO, f"out {number}") for number in range(20)]
    for link in links:
        part = Transfer(handle=link.handle, delivery_id=link.handle, more=True)
        for _ in range(16):
            bad.writer.write(encode_frame(part, payload=bytes(65_000)))
    connection = connection_of(hub, bad)
    error = await bad.until_closed()
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert connection.amqp.held_bytes <= limit + 65_000 + PIECE_OVERHEAD
    await check_served(good)


# -- peers that ask for too much ------------------------------------------------------------------


async def test_waiting_replies_are_bounded(hub: EmbeddedHub, connect: Connect) -> None:
    bad, good = await connect(), await connect()
    into = await bad.receiver("$management", "replies")  # and no credit
    out = await bad.sender("$management")
    request = encode_message(Message(application={"operation": "x" * 1000}))
    for _ in range(REPLIES_MAX + 50):
        out.send(request, settled=False)
    await bad.until(lambda: bad.detached(into))
    error = bad.detached(into)
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    await check_served(good)


async def test_credit_may_be_the_largest_number(hub: EmbeddedHub, connect: Connect) -> None:
    fill(hub, 10, 10)
    peer = await connect()
    into = await peer.receiver(credit=2**32 - 1)
    await peer.until(lambda: len(peer.deliveries(into)) == 10)
    into.grant(2**31)
    fill(hub, 10, 10)
    await peer.until(lambda: len(peer.deliveries(into)) == 20)


class TestLimits:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(limits=Limits(links_max=10, channel_max=5), stop_s=0.2)

    async def test_links_above_the_limit_close_the_connection(self, connect: Connect) -> None:
        bad, good = await connect(), await connect()
        for number in range(10):
            await bad.sender(SEND_TO, f"out {number}")
        bad.session.attach("one more", SENDER, target=Target(address=SEND_TO))
        error = await bad.until_closed()
        assert error is not None
        assert error.condition == "amqp:resource-limit-exceeded"
        await check_served(good)

    async def test_sessions_above_the_limit_close_the_connection(self, connect: Connect) -> None:
        bad, good = await connect(), await connect()
        for _ in range(5):
            bad.amqp.begin()
        await bad.until(lambda: len(bad.amqp.sessions) == 6)
        bad.amqp.begin()
        error = await bad.until_closed()
        assert error is not None
        assert error.condition == "amqp:connection:framing-error"
        await check_served(good)


async def test_many_links_and_window_changes_do_not_block_other_peers(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """Every opening of the window lets each link send; other peers are still served."""
    bad, good = await connect(), await connect()
    fields = {"source": Source(address="here"), "target": Target(address=SEND_TO)}
    links = [bad.session.attach(f"out {n}", SENDER, **fields) for n in range(1500)]
    await bad.until(lambda: all(link.attached for link in links))
    closed, opened = (
        Flow(next_incoming_id=0, incoming_window=n, next_outgoing_id=0, outgoing_window=9)
        for n in (0, 5)
    )
    bad.writer.write((encode_frame(closed) + encode_frame(opened)) * 200)
    await check_served(good)
    await bad.sync()
    assert all(link.attached for link in links)


async def test_a_link_may_attach_send_and_detach_in_one_packet(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """Attach, transfer, detach, and attach again with the same handle."""
    peer = await connect()
    frames = []
    for number in range(50):
        attach = Attach(name=f"{number}", handle=3, role=SENDER, target=Target(address=SEND_TO))
        transfer = Transfer(handle=3, delivery_id=number)
        frames += [encode_frame(attach), encode_frame(transfer, payload=event(b"x"))]
        frames.append(encode_frame(Detach(handle=3, closed=True)))
    peer.writer.write(b"".join(frames))
    log = hub.namespace.hub(HUB).partitions[0].log
    await eventually(lambda: log.next_sequence == 50, "fifty events")
    assert not hub.namespace.hub(HUB).senders


async def test_connections_cut_at_any_byte_leave_nothing(hub: EmbeddedHub) -> None:
    """Each is cut at another byte. The fixture checks what remains."""
    script = AMQP_HEADER + b"".join(
        encode_frame(frame)
        for frame in (
            Open(container_id="c"),
            Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9),
            Attach(name="a", handle=0, role=SENDER, target=Target(address="$cbs")),
            Attach(name="b", handle=1, role=RECEIVER, source=Source(address=READ_FROM)),
            Transfer(handle=0, delivery_id=0, more=True),
        )
    )
    for cut in range(0, len(script), 7):
        _, writer = await open_socket(hub)
        writer.write(script[:cut] + EMPTY_FRAME * (cut % 3))
        await writer.drain()
        writer.transport.abort()
    await eventually(lambda: not hub.server.connections)


@pytest.mark.parametrize("pieces", [1, 2])  # two pieces use writelines, one uses write
async def test_a_connection_pauses_writing_for_one_and_for_many_pieces(
    pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedHub() as hub, asyncio.timeout(20):
        _, writer = await asyncio.open_connection("127.0.0.1", hub.port)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        while not hub.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)
        [connection] = hub.server.connections
        monkeypatch.setattr(connection.amqp, "data_to_send", lambda: [PIECE] * pieces)
        while connection.writable:
            connection.flush()
            await asyncio.sleep(0)
        assert connection.transport.get_write_buffer_size() <= WRITE_HIGH_WATER + 2 * len(PIECE)
        assert not connection.transport.is_reading()
        writer.transport.abort()


# -- peers with small frames ----------------------------------------------------------------------


@pytest.mark.parametrize("address", ["$cbs", READ_FROM, "missing"])
async def test_a_link_name_above_the_frame_size_of_the_client_closes_its_connection(
    connect: Connect, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = await connect(max_frame_size=512), await connect()
    attach = Attach(name="n" * 1000, handle=0, role=RECEIVER, source=Source(address=address))
    bad.writer.write(encode_frame(attach))
    error = await bad.until_closed()
    assert error is not None
    assert error.condition == "amqp:frame-size-too-small"
    assert "max-frame-size" in (error.description or "")
    (record,) = [entry for entry in caplog.records if entry.levelname != "INFO"]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("protocol_violated ")
    await check_served(good)
