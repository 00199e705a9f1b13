"""The periodic work of the server: heartbeats, idle peers, expired tokens, time-outs, the stop."""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import ExitStack, suppress

import pytest

from pumphouse.amqp.connection import Login
from pumphouse.amqp.frames import AMQP_HEADER, SASL_HEADER, encode_frame
from pumphouse.amqp.performatives import RECEIVER, Accepted, Open, Source
from pumphouse.amqp.types import Symbol
from pumphouse.clock import MovableClock
from pumphouse.errors import LocalProtocolError
from pumphouse.hub import server
from pumphouse.hub.connection import HubConnection
from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import Retention, ServerOptions
from pumphouse.hub.upkeep import close_after_bug
from pumphouse.logs import line
from tests.hub.conftest import Connect
from tests.hub.events import batch_of
from tests.hub.peer import (
    DEADLINE_S,
    HUB,
    Clock,
    HubClosed,
    Peer,
    Refused,
    event,
    eventually,
    open_socket,
    send_raw,
)

ANONYMOUS = Login()


# -- heartbeats -----------------------------------------------------------------------------------


class TestHeartbeats:
    @pytest.fixture
    def options(self, monkeypatch: pytest.MonkeyPatch) -> ServerOptions:
        """Without the peer's request the hub would tick once an hour."""
        monkeypatch.setattr(server, "TICK_S", 3600.0)
        return ServerOptions()

    async def test_heartbeats_are_sent_in_time(self, connect: Connect) -> None:
        """The idle time-out of the peer is 200 ms, from its open on."""
        peer = await connect(idle_time_out=200)
        loop = asyncio.get_running_loop()
        start, before = loop.time(), peer.received_bytes
        await peer.until(lambda: peer.received_bytes >= before + 5 * 8, "five heartbeats")
        assert (peer.received_bytes - before) % 8 == 0
        assert loop.time() - start > 5 * 0.05  # not more often than requested
        assert peer.amqp.state == "OPENED"

    async def test_one_client_does_not_make_the_ticks_of_others_more_frequent(
        self, hub: EmbeddedHub, connect: Connect, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        other, hasty = await connect(), await connect(idle_time_out=100)
        await hasty.sync()
        anonymous = await connect(ANONYMOUS, idle_time_out=100)
        await anonymous.sync()
        ticked: list[object] = []
        monkeypatch.setattr(HubConnection, "tick", lambda self, now: ticked.append(self.peer))
        hub.server.tick_due()
        assert ticked == [hasty.writer.get_extra_info("sockname")]
        await anonymous.put_token(hub)  # now it has authenticated
        assert len(hub.server.hasty) == 2
        await anonymous.drop()
        await eventually(lambda: len(hub.server.connections) == 2, "the end of a connection")
        assert len(hub.server.hasty) == 1
        assert other.amqp.state == "OPENED"


@pytest.mark.parametrize("milliseconds", [1, 99])
async def test_an_idle_time_out_that_needs_too_many_heartbeats_is_refused(
    hub: EmbeddedHub, milliseconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    opening = Open(container_id="c", idle_time_out=milliseconds)
    received = await send_raw(hub, AMQP_HEADER + encode_frame(opening))
    assert b"amqp:invalid-field" in received
    assert b"open.idle-time-out is %d ms, the minimum is 100" % milliseconds in received
    assert "protocol_violated" in caplog.text


async def test_a_failure_of_retention_does_not_stop_the_heartbeats(
    hub: EmbeddedHub,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Retention fails at every tick; heartbeats are sent anyway."""

    def fail() -> None:
        raise OSError("disk on fire")

    monkeypatch.setattr(hub.server, "expire_due", fail)
    peer = await connect(idle_time_out=100)
    before = peer.received_bytes
    await peer.until(lambda: peer.received_bytes >= before + 3 * 8, "three heartbeats")
    assert "disk on fire" in caplog.text


async def test_the_end_of_failing_ticks_is_logged_with_their_number(
    hub: EmbeddedHub, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pumphouse.hub")
    for _ in range(3):
        hub.server.log_tick_failure(OSError("disk on fire"))
    hub.server.log_tick_success()
    hub.server.log_tick_success()
    logged = [record.getMessage() for record in caplog.records]
    assert logged.count("tick_recovered failures=3") == 1


async def test_a_peer_without_idle_timeout_gets_no_heartbeats(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await connect()
    other = await connect(idle_time_out=100)
    before = other.received_bytes
    await other.until(lambda: other.received_bytes >= before + 80, "ten heartbeats of another peer")
    before = peer.received_bytes
    await peer.sync()
    assert peer.received_bytes - before < 100  # a begin and an end, and no heartbeats before them


async def test_no_heartbeat_is_sent_soon_after_other_frames(
    hub: EmbeddedHub, connect: Connect
) -> None:
    await connect(idle_time_out=100_000)
    (connection,) = hub.server.connections
    now = asyncio.get_running_loop().time()
    connection.sent_at = now - 49
    connection.tick(now)
    assert connection.sent_at == now - 49
    connection.tick(now + 1.5)
    assert connection.sent_at >= now


class TestIdle:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(idle_timeout_s=0.2, enforce_idle=True)

    async def test_an_idle_peer_is_closed(self, connect: Connect) -> None:
        peer = await connect()
        error = await peer.until_closed()
        assert error is not None
        assert error.condition == "amqp:connection:forced"
        assert "inactive for more than the allowed 200 milliseconds" in str(error.description)

    async def test_a_peer_that_sends_heartbeats_stays(
        self, hub: EmbeddedHub, connect: Connect
    ) -> None:
        lively, idle = await connect(), await connect()
        (lively_connection,) = [t for t in hub.server.connections if t.peer == _name(lively)]

        async def beat() -> None:
            while True:
                lively.amqp.heartbeat()
                lively.flush()
                await asyncio.sleep(0.01)

        beating = asyncio.create_task(beat())
        try:
            assert await idle.until_closed() is not None
        finally:
            beating.cancel()
        assert not lively_connection.closing


def _name(peer: Peer) -> tuple[str, int]:
    name: tuple[str, int] = peer.writer.get_extra_info("sockname")
    return name


# -- tokens ---------------------------------------------------------------------------------------


async def test_an_expired_token_detaches_its_links(
    hub: EmbeddedHub, connect: Connect, clock: Clock
) -> None:
    peer = await connect(ANONYMOUS)
    await peer.put_token(hub, HUB, expiry=clock.time + 100)
    out, into = await peer.sender(), await peer.receiver(credit=10)
    clock.time += 99
    hub.server.tick()
    assert await peer.send(out, event(b"in time")) == Accepted()
    clock.time += 1
    hub.server.tick()
    await peer.until(lambda: peer.detached(out) and peer.detached(into))
    for link in (out, into):
        error = peer.detached(link)
        assert error is not None
        assert error.condition == "amqp:unauthorized-access"
        assert "ExpiredToken" in str(error.description)
    assert not hub.namespace.hub(HUB).senders
    assert not [*hub.namespace.hub(HUB).readers()]
    with pytest.raises(Refused):
        await peer.sender(name="again")
    await peer.put_token(hub, HUB, expiry=clock.time + 100)
    await peer.sender(name="and again")


async def test_a_renewed_token_keeps_its_links(
    hub: EmbeddedHub, connect: Connect, clock: Clock
) -> None:
    peer = await connect(ANONYMOUS)
    await peer.put_token(hub, HUB, expiry=clock.time + 100)
    out = await peer.sender()
    clock.time += 90
    await peer.put_token(hub, HUB, expiry=clock.time + 100)
    clock.time += 90
    hub.server.tick()
    assert await peer.send(out, event(b"still here")) == Accepted()


async def test_an_expired_token_does_not_affect_the_links_of_another(
    hub: EmbeddedHub, connect: Connect, clock: Clock
) -> None:
    hub.create_hub("other", 1)
    peer = await connect(ANONYMOUS)
    await peer.put_token(hub, HUB, expiry=clock.time + 10)
    await peer.put_token(hub, "other", expiry=clock.time + 1000)
    out, stays = await peer.sender(), await peer.sender("other", "stays")
    clock.time += 11
    hub.server.tick()
    await peer.until(lambda: peer.detached(out))
    assert await peer.send(stays, event(b"x")) == Accepted()


async def test_an_expiry_error_fits_the_frame_limit_of_the_peer(
    hub: EmbeddedHub, connect: Connect, clock: Clock
) -> None:
    """The error names a long path; it is shortened, and the tick continues for other peers."""
    long = "h" * 250
    hub.create_hub(long, 1)
    small = await connect(ANONYMOUS, max_frame_size=512)
    await small.put_token(hub, long, expiry=clock.time + 10)
    out = await small.sender(long)
    clock.time += 11
    hub.server.tick()
    await small.until(lambda: small.detached(out))
    assert "ExpiredToken" in str(small.detached(out))


# -- time-outs ------------------------------------------------------------------------------------


class TestHandshake:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(handshake_s=0.05)

    @pytest.mark.parametrize("start", [b"", b"AM", SASL_HEADER, SASL_HEADER + b"\x00\x00\x00\x20"])
    async def test_a_connection_that_never_opens_is_dropped(
        self, hub: EmbeddedHub, start: bytes
    ) -> None:
        _, writer = await open_socket(hub)
        writer.write(start)
        await eventually(lambda: hub.server.connections, "the connection")

        def is_dropped() -> bool:
            hub.server.tick()
            return not hub.server.connections

        await eventually(is_dropped, "the time-out")
        writer.close()

    async def test_an_authenticated_connection_is_not_dropped(
        self, hub: EmbeddedHub, connect: Connect
    ) -> None:
        peer = await connect()
        (connection,) = hub.server.connections
        connection.tick(asyncio.get_running_loop().time() + 3600)
        await peer.sync()

    async def test_a_connection_without_a_token_is_closed(
        self, hub: EmbeddedHub, connect: Connect
    ) -> None:
        """Also one that sends all the time, and holds links of $cbs."""
        peer = await connect(ANONYMOUS)
        link = peer.session.attach("in", RECEIVER, source=Source(address="$cbs"))
        (connection,) = hub.server.connections
        with suppress(HubClosed, ConnectionError):
            await peer.until(lambda: link.attached)
            while True:
                peer.amqp.heartbeat()
                peer.flush()
                hub.server.tick()
                await peer.receive()
        # On a busy machine the hub has stopped waiting for the peer, and has reset the connection.
        with suppress(ConnectionResetError):
            assert "No valid key or token" in str(await peer.until_closed())
        await eventually(lambda: connection not in hub.server.connections, "the end")

    async def test_a_token_keeps_the_connection_until_it_expires(
        self, hub: EmbeddedHub, connect: Connect, clock: Clock
    ) -> None:
        peer = await connect(ANONYMOUS)
        await peer.put_token(hub, HUB, expiry=clock.time + 100)
        (connection,) = hub.server.connections
        now = asyncio.get_running_loop().time() + 3600
        connection.tick(now)
        await peer.sync()
        clock.time += 100
        connection.tick(now + 0.01)  # time to put another token
        await peer.sync()
        connection.tick(now + 0.06)
        error = await peer.until_closed()
        assert error is not None
        assert error.condition == "amqp:connection:forced"


class TestVanished:
    @pytest.fixture
    def options(self) -> ServerOptions:
        return ServerOptions(vanished_s=0.05)

    async def test_a_vanished_epoch_reader_lingers(
        self, hub: EmbeddedHub, connect: Connect
    ) -> None:
        peer = await connect()
        await peer.receiver(properties={Symbol("com.microsoft:epoch"): 1})
        await peer.drop()
        await eventually(lambda: not hub.server.connections)
        readers = hub.namespace.hub(HUB).partitions[0].readers
        await eventually(lambda: not readers, "the lingering reader to be forgotten")


class TestRetention:
    async def test_retention_follows_the_clock(self) -> None:
        clock = Clock()
        retention = Retention(seconds=60)
        async with EmbeddedHub({HUB: 1}, clock=clock, retention=retention) as hub:
            partition = hub.namespace.hub(HUB).partitions[0]
            hub.namespace.publish(partition, batch_of([b"old"]), None, lambda failed: None)
            clock.time += 61
            hub.namespace.publish(partition, batch_of([b"new"]), None, lambda failed: None)
            hub.namespace.expire()
            assert (partition.log.begin, partition.log.next_sequence) == (1, 2)

    async def test_the_tick_follows_an_advance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(server, "TICK_S", 0.02)
        monkeypatch.setattr(server, "RETENTION_EVERY_S", 3600.0)
        clock = MovableClock()
        async with EmbeddedHub({HUB: 1}, clock=clock, retention=Retention(seconds=60)) as hub:
            partition = hub.namespace.hub(HUB).partitions[0]
            for _ in range(2):
                hub.namespace.publish(partition, batch_of([b"old"]), None, lambda failed: None)
                clock.advance(61)
                await eventually(lambda: partition.log.empty, "the event to expire")


async def test_a_stop_closes_connections_within_its_time(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer, silent = await connect(), await connect()
    stopping = asyncio.create_task(hub.stop())
    error = await peer.until_closed()
    assert error is not None
    assert error.condition == "amqp:connection:forced"
    async with asyncio.timeout(DEADLINE_S):
        await stopping  # one peer does not respond
    with pytest.raises((HubClosed, ConnectionError)):
        await silent.until(lambda: False)
    await hub.start()  # for the fixture, which checks what remains


@pytest.mark.parametrize("turns", range(5))  # of the loop, between their connect and the stop
async def test_connections_accepted_during_the_stop_are_closed(turns: int) -> None:
    hub = EmbeddedHub({"sensors": 1}, http_port=0)
    await hub.start()
    ports = (hub.server.port, hub.http_port)
    with ExitStack() as stack:
        for port in ports:
            for _ in range(3):
                stack.enter_context(socket.create_connection(("127.0.0.1", port or 0), 30))
        for _ in range(turns):
            await asyncio.sleep(0)
        await hub.stop()
    del hub
    gc.collect()  # a transport that was not closed warns now, which fails the test


# -- log lines about clients ----------------------------------------------------------------------


def counts(caplog: pytest.LogCaptureFixture, event: str) -> list[object]:
    """The field `count` of the lines of an event."""
    logged = [record.args[0] for record in caplog.records if isinstance(record.args, tuple)]
    lines = [entry for entry in logged if isinstance(entry, line)]
    return [entry.fields["count"] for entry in lines if entry.event == event]


async def refuse(peer: Peer, times: int) -> None:
    for number in range(times):
        with pytest.raises(Refused):
            await peer.receiver("missing", f"{number}")


async def test_refused_links_of_anonymous_clients_do_not_fill_the_log(
    hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pumphouse.hub")
    await refuse(await connect(ANONYMOUS), 50)
    assert counts(caplog, "link_refused") == [1] * server.LINES_PER_MINUTE
    await refuse(await connect(), 1)  # it is not suppressed with them
    assert counts(caplog, "link_refused") == [1] * (server.LINES_PER_MINUTE + 1)
    caplog.clear()
    hub.server.throttle.period_s = 0.0  # the minute is over
    await refuse(await connect(ANONYMOUS), 1)
    assert counts(caplog, "link_refused") == [50 - server.LINES_PER_MINUTE + 1]


async def test_refused_links_of_a_client_do_not_fill_the_log(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pumphouse.hub")
    await refuse(await connect(), server.AUTHENTICATED_LINES_PER_MINUTE + 5)
    assert len(counts(caplog, "link_refused")) == server.AUTHENTICATED_LINES_PER_MINUTE


async def test_connections_without_a_login_do_not_fill_the_log(
    hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "pumphouse.hub")
    for _ in range(server.LINES_PER_MINUTE + 5):
        await connect(ANONYMOUS)
    for connection in list(hub.server.connections):
        connection.tick(connection.login_deadline + 1)
    assert counts(caplog, "connection_unauthenticated") == [1] * server.LINES_PER_MINUTE


async def test_errors_of_the_hub_do_not_fill_the_log(
    hub: EmbeddedHub, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(server.LINES_PER_MINUTE + 5):
        await connect(ANONYMOUS)
    for connection in list(hub.server.connections):
        close_after_bug(connection, LocalProtocolError("no such type"))
    assert counts(caplog, "connection_failed") == [1] * server.LINES_PER_MINUTE
