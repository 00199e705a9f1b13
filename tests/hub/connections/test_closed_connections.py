"""Nothing survives a closed connection: its memory is free without a run of the garbage collector.

A reference cycle would keep a connection with its buffers until the collector runs, which may take
long in a process with few allocations.
"""

from __future__ import annotations

import asyncio
import gc
import ssl
import weakref
from asyncio import sslproto
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect as connect_websocket
from websockets.typing import Subprotocol

from pumphouse.amqp.connection import Login
from pumphouse.amqp.frames import AMQP_HEADER, SASL_FRAME, SASL_HEADER, encode_frame
from pumphouse.amqp.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    Begin,
    Close,
    Detach,
    End,
    Flow,
    Open,
    SaslInit,
    Source,
    Target,
    Transfer,
)
from pumphouse.amqp.sasl import PLAIN, plain_response
from pumphouse.hub.connection import HubConnection
from pumphouse.hub.embedded import ROOT_RULE, EmbeddedHub
from pumphouse.hub.listeners import http, websocket
from pumphouse.hub.options import ServerOptions
from tests.hub.conftest import Connect
from tests.hub.connections.test_misbehaving_clients import connection_of, fill, slow_peer
from tests.hub.listeners.http_client import HttpClient
from tests.hub.peer import HUB, READ_FROM, SEND_TO, Peer, event, eventually, root_key


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def options() -> ServerOptions:
    return ServerOptions(stop_s=0.1)


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    options = ServerOptions(stop_s=0.1)
    async with EmbeddedHub(
        {HUB: 2}, ws_port=0, tls_port=0, http_port=0, options=options, root_key="k"
    ) as hub:
        yield hub


def parts_of(connection: HubConnection) -> list[Any]:
    """All objects of a connection, but the transport of asyncio, which refers to itself.

    The transport holds no bytes after its end, and does not refer to the connection.
    """
    sessions = list(connection.amqp.sessions.values())
    links = [link for session in sessions for link in session.links.values()]
    hub_links = [link.user for link in links if link.user is not None]
    return [connection, connection.amqp, connection.guard, connection.slot,
            *sessions, *links, *hub_links]  # fmt: skip


def watch(parts: list[Any]) -> dict[str, weakref.ref[Any]]:
    return {f"{type(each).__name__} {n}": weakref.ref(each) for n, each in enumerate(parts)}


def alive(watched: dict[str, weakref.ref[Any]]) -> list[str]:
    return [name for name, reference in watched.items() if reference() is not None]


async def check_freed(watched: dict[str, weakref.ref[Any]], at_least: int) -> None:
    assert len(watched) >= at_least
    with suppress(AssertionError):
        await eventually(lambda: not alive(watched))
    assert alive(watched) == []


async def busy_peer(hub: EmbeddedHub, connect: Connect) -> Peer:
    """A peer with links of every kind, an incomplete delivery, and replies that wait."""
    peer = await connect()
    await peer.receiver(credit=100)
    out = await peer.sender()
    await peer.send(out, event(b"x"))
    await peer.receiver("$management", "replies")
    requests = await peer.sender("$management", "requests")
    await peer.send(requests, event(b"not a request"))
    part = Transfer(handle=out.handle, delivery_id=99, more=True)
    peer.writer.write(encode_frame(part, payload=bytes(1000)))
    await eventually(lambda: connection_of(hub, peer).amqp.held_bytes, "the incomplete delivery")
    return peer


@pytest.mark.parametrize("ending", ["close", "drop", "violate", "end", "detach", "stop"])
async def test_nothing_survives_a_connection(
    ending: str, hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await busy_peer(hub, connect)
    watched = watch(parts_of(connection_of(hub, peer)))
    match ending:
        case "close":
            await peer.close()
        case "drop":
            await peer.drop()
        case "violate":
            peer.writer.write(bytes(8))
            await peer.until_closed()
        case "end":
            peer.session.end()
            await peer.sync()
            await peer.close()
        case "detach":
            for link in list(peer.session.links.values()):
                link.detach()
            await peer.sync()
            await peer.close()
        case "stop":
            connection_of(hub, peer).shut("a test")
    await check_freed(watched, at_least=10)


async def test_a_detached_link_and_an_ended_session_are_freed_before_the_connection(
    hub: EmbeddedHub, connect: Connect
) -> None:
    peer = await busy_peer(hub, connect)
    connection = connection_of(hub, peer)
    session = connection.amqp.sessions[0]
    watched = watch([*session.links.values(), *[link.user for link in session.links.values()]])
    for link in list(peer.session.links.values()):
        link.detach()
    await peer.sync()
    await check_freed(watched, at_least=8)
    watched = watch([session])
    del session
    peer.session.end()
    await peer.sync()
    await check_freed(watched, at_least=1)


async def test_nothing_survives_a_client_that_does_not_read(
    hub: EmbeddedHub, connect: Connect
) -> None:
    for _ in range(5):
        fill(hub, 16, 64 * 1024)
    peer = await slow_peer(hub, connect)
    await peer.receiver(credit=1000)
    await eventually(lambda: not connection_of(hub, peer).writable, "the hub to stop writing")
    peer.writer.write(encode_frame(Flow(incoming_window=9, next_outgoing_id=0, outgoing_window=9)))
    watched = watch(parts_of(connection_of(hub, peer)))
    await peer.drop()
    await check_freed(watched, at_least=6)


async def test_an_anonymous_connection_is_freed(hub: EmbeddedHub, connect: Connect) -> None:
    peer = await connect(Login())
    watched = watch(parts_of(connection_of(hub, peer)))
    await peer.drop()
    await check_freed(watched, at_least=5)


# -- other listeners ------------------------------------------------------------------------------


def script(hub: EmbeddedHub) -> bytes:
    """A login with links of several kinds, and an incomplete delivery."""
    login = plain_response(ROOT_RULE, root_key(hub))
    frames = (
        Open(container_id="c"),
        Begin(next_outgoing_id=0, incoming_window=9, outgoing_window=9),
        Attach(name="a", handle=0, role=SENDER, target=Target(address=SEND_TO)),
        Attach(name="b", handle=1, role=RECEIVER, source=Source(address=READ_FROM)),
        Attach(name="c", handle=2, role=RECEIVER, source=Source(address="$cbs")),
        Transfer(handle=0, delivery_id=0, more=True),
    )
    return (
        SASL_HEADER
        + encode_frame(SaslInit(mechanism=PLAIN, initial_response=login), kind=SASL_FRAME)
        + AMQP_HEADER
        + b"".join(map(encode_frame, frames))
    )


async def the_connection(hub: EmbeddedHub) -> HubConnection:
    await eventually(lambda: [c for c in hub.server.connections if c.amqp.held_bytes])
    (connection,) = hub.server.connections
    return connection


@pytest.mark.parametrize("clean", [True, False])
async def test_nothing_survives_a_tls_connection(clean: bool, hub: EmbeddedHub) -> None:
    context = ssl.create_default_context(cafile=hub.ca_file)
    _, writer = await asyncio.open_connection(
        "127.0.0.1", hub.tls_port, ssl=context, server_hostname="localhost"
    )
    writer.write(script(hub))
    watched = watch(parts_of(await the_connection(hub)))
    if clean:
        writer.write(encode_frame(End()) + encode_frame(Close()))
        await writer.drain()
    else:
        writer.transport.abort()
    await eventually(lambda: not hub.server.connections)
    writer.transport.abort()
    await check_freed(watched, at_least=10)


@pytest.mark.parametrize("data", [b"", b"not TLS", b"\x16\x03\x01\x00"])
@pytest.mark.parametrize("evicted", [False, True])
async def test_nothing_survives_a_failed_tls_handshake(
    data: bytes, evicted: bool, hub: EmbeddedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """asyncio's own objects hold 256 KiB of each TLS connection."""
    watched: dict[str, weakref.ref[Any]] = {}
    made = sslproto.SSLProtocol.connection_made

    def connection_made(self: sslproto.SSLProtocol, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        watched.update(watch([self, *hub.server.admission.slots]))

    monkeypatch.setattr(sslproto.SSLProtocol, "connection_made", connection_made)
    _, writer = await asyncio.open_connection("127.0.0.1", hub.tls_port)
    writer.write(data)
    await eventually(lambda: watched, "the handshake to begin")
    assert hub.server.admission.total.held > 256 * 1024
    if evicted:
        hub.server.admission.evict(None, "a test")
    writer.transport.abort()
    await check_freed(watched, at_least=2)
    assert hub.server.admission.total.held == 0


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("ending", ["close", "abort", "violate"])
async def test_nothing_survives_a_websocket(tls: bool, ending: str, hub: EmbeddedHub) -> None:
    client = await connect_websocket(
        f"{'wss' if tls else 'ws'}://localhost:{hub.ws_port}{websocket.PATH}",
        subprotocols=[Subprotocol("amqp")],
        ssl=ssl.create_default_context(cafile=hub.ca_file) if tls else None,
        host="127.0.0.1",
        proxy=None,
    )
    await client.send(script(hub))
    connection = await the_connection(hub)
    adapter = connection.transport.adapter  # type: ignore[attr-defined]
    watched = watch([*parts_of(connection), connection.transport, adapter, adapter.protocol])
    del connection, adapter
    if ending == "close":
        await client.send(encode_frame(Detach(handle=1)) + encode_frame(Close()))
        await client.close()
    elif ending == "abort":
        client.transport.abort()
    else:
        await client.send("text")
    await check_freed(watched, at_least=12)
    await client.close()


@pytest.mark.parametrize("request_bytes", [b"", b"GET /"])
async def test_nothing_survives_an_http_connection(
    request_bytes: bytes, hub: EmbeddedHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: dict[str, weakref.ref[Any]] = {}
    made = http.HttpConnection.connection_made

    def connection_made(self: http.HttpConnection, transport: asyncio.BaseTransport) -> None:
        made(self, transport)
        watched.update(watch([self, self.http, self.slot]))

    monkeypatch.setattr(http.HttpConnection, "connection_made", connection_made)
    async with HttpClient(hub) as client:
        await client.get("/hubs")
        client.writer.write(request_bytes)
    await check_freed(watched, at_least=3)
