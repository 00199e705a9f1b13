"""Peers that do not behave: they harm themselves, and nobody else notices.

Beside each of them a good peer sends and receives. The bad one's share of the hub's memory is
measured: what waits to be written to it, and what of it waits to be completed.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from pumphouse.amqp.connection import Limits
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
from pumphouse.hub.links.consumer import SLICE_BYTES
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
    let_others_run,
    open_socket,
)

OTHER = f"{HUB}/ConsumerGroups/$Default/Partitions/1"
# What may wait for a peer that does not read: the high water, one slice, one event beyond it, and
# the answers to what it had already sent.
UNREAD_MAX = WRITE_HIGH_WATER + SLICE_BYTES + (2 << 20)


@pytest.fixture
def options() -> ServerOptions:
    return ServerOptions(stop_s=0.2)


def talk_of(hub: EmbeddedHub, peer: Peer) -> HubConnection:
    name = peer.writer.get_extra_info("sockname")
    (found,) = [talk for talk in hub.server.connections if talk.peer == name]
    return found


def unread(hub: EmbeddedHub, peer: Peer) -> int:
    return talk_of(hub, peer).transport.get_write_buffer_size()


def fill(hub: EmbeddedHub, count: int, size: int) -> None:
    where = hub.namespace.hub(HUB).partitions[0]
    batch = batch_of([bytes(size)] * count)
    hub.namespace.publish(where, batch, None, lambda failed: None)


async def deaf_peer(hub: EmbeddedHub, connect: Connect, **options: Any) -> Peer:
    """One that nobody lets read; the kernel holds little for it, so that the hub must."""
    peer = await connect(receive_buffer=4096, **options)
    sock = talk_of(hub, peer).transport.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return peer


async def thrives(peer: Peer, rounds: int = 20) -> None:
    """A good peer sends to the other partition, and reads what it sent."""
    out = await peer.sender(f"{HUB}/Partitions/1", "good out")
    into = await peer.receiver(OTHER, "good in", credit=rounds)
    for number in range(rounds):
        assert await peer.send(out, event(b"%d" % number)) == Accepted()
    await peer.until(lambda: len(peer.deliveries(into)) == rounds)
    assert peer.bodies(into) == [b"%d" % number for number in range(rounds)]


async def settles(measure: Callable[[], int]) -> int:
    """A number, once it has stayed the same for a while."""
    last, same = measure(), 0
    while same < 50:
        await let_others_run()
        now = measure()
        last, same = now, same + 1 if now == last else 0
    return last


# -- peers that do not read -----------------------------------------------------------------------


async def test_a_reader_that_does_not_read(hub: EmbeddedHub, connect: Connect) -> None:
    for _ in range(10):
        fill(hub, 16, 64 * 1024)  # ten megabytes
    bad, good = await deaf_peer(hub, connect), await connect()
    await bad.receiver(credit=1_000_000)
    await eventually(lambda: not talk_of(hub, bad).writable, "the hub to stop writing")
    await thrives(good)
    assert WRITE_HIGH_WATER <= await settles(lambda: unread(hub, bad)) <= UNREAD_MAX
    for _ in range(10):
        fill(hub, 16, 64 * 1024)
    await thrives(await connect())
    assert await settles(lambda: unread(hub, bad)) <= UNREAD_MAX


async def test_it_may_wake_up_and_has_missed_nothing(hub: EmbeddedHub, connect: Connect) -> None:
    for _ in range(10):
        fill(hub, 16, 64 * 1024)
    peer = await deaf_peer(hub, connect)
    into = await peer.receiver(credit=160)
    await eventually(lambda: not talk_of(hub, peer).writable, "the hub to stop writing")
    await peer.until(lambda: len(peer.deliveries(into)) == 160)
    assert talk_of(hub, peer).writable


async def test_a_flood_of_echoes_that_nobody_reads(hub: EmbeddedHub, connect: Connect) -> None:
    """Every flow asks for an answer; the hub stops listening once too many of them wait."""
    bad, good = await deaf_peer(hub, connect), await connect()
    echo = encode_frame(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9, echo=True))
    flood = asyncio.create_task(shout(bad, echo * 1000))
    await eventually(lambda: not talk_of(hub, bad).writable, "the hub to stop answering")
    await thrives(good)
    assert await settles(lambda: unread(hub, bad)) <= UNREAD_MAX
    flood.cancel()


async def shout(peer: Peer, data: bytes) -> None:
    """Write the same again and again, as fast as the hub takes it."""
    while True:
        peer.writer.write(data)
        await peer.writer.drain()


async def test_heartbeats_are_not_saved_up_for_it(hub: EmbeddedHub, connect: Connect) -> None:
    for _ in range(5):
        fill(hub, 16, 64 * 1024)
    bad = await deaf_peer(hub, connect, idle_time_out=1)
    await bad.receiver(credit=1000)
    talk = talk_of(hub, bad)
    await eventually(lambda: not talk.writable, "the hub to stop writing")
    waiting = await settles(lambda: unread(hub, bad))
    for _ in range(1000):
        talk.tick(asyncio.get_running_loop().time() + 100)
    assert unread(hub, bad) == waiting


async def test_a_closed_peer_that_does_not_read_is_dropped(
    hub: EmbeddedHub, connect: Connect
) -> None:
    """Hung up on, it does not take what is left for it; it must not stay for that."""
    for _ in range(5):
        fill(hub, 16, 64 * 1024)
    bad = await deaf_peer(hub, connect)
    await bad.receiver(credit=1000)
    talk = talk_of(hub, bad)
    await eventually(lambda: not talk.writable, "the hub to stop writing")
    talk.finish()
    await let_others_run()
    assert talk in hub.server.connections
    await eventually(lambda: talk not in hub.server.connections, "the hub to lose patience")
    assert [*hub.namespace.hub(HUB).readers()] == []


# -- peers that stop half-way ---------------------------------------------------------------------


async def test_a_reader_that_never_grants_credit(hub: EmbeddedHub, connect: Connect) -> None:
    bad, good = await connect(), await connect()
    into = await bad.receiver()
    for _ in range(20):
        fill(hub, 16, 64 * 1024)
    await thrives(good)
    await bad.sync()
    assert bad.deliveries(into) == []
    assert unread(hub, bad) == 0


@pytest.mark.parametrize("cut", [1, 4, 8, 12, 1000, 60_000])
async def test_a_peer_that_stops_within_a_frame(
    hub: EmbeddedHub, connect: Connect, cut: int
) -> None:
    bad, good = await connect(), await connect()
    await bad.sender()
    frame = encode_frame(Transfer(handle=0, delivery_id=0), payload=event(bytes(60_000)))
    bad.writer.write(frame[:cut])
    await thrives(good)
    assert await settles(lambda: talk_of(hub, bad).amqp._reader.pending) == cut
    bad.writer.write(frame[cut:])  # and goes on as if nothing had been
    await bad.until(lambda: bad.outcome(0) == Accepted())


async def test_a_peer_that_sends_byte_by_byte(hub: EmbeddedHub, connect: Connect) -> None:
    bad, good = await connect(), await connect()
    await bad.sender()
    frame = encode_frame(Transfer(handle=0, delivery_id=0), payload=event(b"slow"))
    for byte in frame:
        bad.writer.write(bytes((byte,)))
        await let_others_run()
    await thrives(good)
    await bad.until(lambda: bad.outcome(0) == Accepted())


async def test_deliveries_that_are_never_finished(hub: EmbeddedHub, connect: Connect) -> None:
    """On many links at once, each within its limit: together they reach the connection's."""
    bad, good = await connect(), await connect()
    limit = hub.server.options.limits.held_bytes_max
    links = [await bad.sender(SEND_TO, f"out {number}") for number in range(20)]
    for link in links:
        part = Transfer(handle=link.handle, delivery_id=link.handle, more=True)
        for _ in range(16):
            bad.writer.write(encode_frame(part, payload=bytes(65_000)))
    talk = talk_of(hub, bad)
    error = await bad.until_gone()
    assert error is not None
    assert error.condition == "amqp:resource-limit-exceeded"
    assert talk.amqp.held_bytes <= limit + 65_000 + PIECE_OVERHEAD
    await thrives(good)


# -- peers that ask for too much ------------------------------------------------------------------


async def test_requests_whose_replies_nobody_takes(hub: EmbeddedHub, connect: Connect) -> None:
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
    await thrives(good)


async def test_credit_beyond_measure(hub: EmbeddedHub, connect: Connect) -> None:
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

    async def test_too_many_links(self, connect: Connect) -> None:
        bad, good = await connect(), await connect()
        for number in range(10):
            await bad.sender(SEND_TO, f"out {number}")
        bad.session.attach("one more", SENDER, target=Target(address=SEND_TO))
        error = await bad.until_gone()
        assert error is not None
        assert error.condition == "amqp:resource-limit-exceeded"
        await thrives(good)

    async def test_too_many_sessions(self, connect: Connect) -> None:
        bad, good = await connect(), await connect()
        for _ in range(5):
            bad.amqp.begin()
        await bad.until(lambda: len(bad.amqp.sessions) == 6)
        bad.amqp.begin()
        error = await bad.until_gone()
        assert error is not None
        assert error.condition == "amqp:connection:framing-error"
        await thrives(good)


async def test_many_links_and_a_window_that_flickers(hub: EmbeddedHub, connect: Connect) -> None:
    """Every opening of the window gives each link a turn, and others still have theirs."""
    bad, good = await connect(), await connect()
    fields = {"source": Source(address="here"), "target": Target(address=SEND_TO)}
    links = [bad.session.attach(f"out {n}", SENDER, **fields) for n in range(1500)]
    await bad.until(lambda: all(link.attached for link in links))
    closed, opened = (
        Flow(next_incoming_id=0, incoming_window=n, next_outgoing_id=0, outgoing_window=9)
        for n in (0, 5)
    )
    bad.writer.write((encode_frame(closed) + encode_frame(opened)) * 200)
    await thrives(good)
    await bad.sync()
    assert all(link.attached for link in links)


async def test_frames_before_the_attach_is_answered(hub: EmbeddedHub, connect: Connect) -> None:
    """A whole life in one packet: attach, transfers, detach, attach again with the same handle."""
    peer = await connect()
    lives = []
    for number in range(50):
        attach = Attach(name=f"{number}", handle=3, role=SENDER, target=Target(address=SEND_TO))
        transfer = Transfer(handle=3, delivery_id=number)
        lives += [encode_frame(attach), encode_frame(transfer, payload=event(b"x"))]
        lives.append(encode_frame(Detach(handle=3, closed=True)))
    peer.writer.write(b"".join(lives))
    log = hub.namespace.hub(HUB).partitions[0].log
    await eventually(lambda: log.next_sequence == 50, "fifty events")
    assert not hub.namespace.hub(HUB).senders


async def test_many_peers_come_and_go_in_the_midst_of_everything(hub: EmbeddedHub) -> None:
    """Each is cut off at another place; none leaves a trace (the fixture looks)."""
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
