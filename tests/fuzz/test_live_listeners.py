"""Mutated bytes to the other listeners of a hub, on real sockets: TLS, WebSocket and HTTP.

Each protocol is followed up to some point (the first byte, after the handshake, inside a frame),
then the bytes are mutated. The hub closes or responds, logs no error, and serves the next client.
"""

from __future__ import annotations

import base64
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from random import Random
from urllib.request import urlopen

import pytest
from websockets.frames import Frame, Opcode

from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.embedded import EmbeddedHub
from tests.fuzz.corpus import corpus
from tests.fuzz.offline_connection import HUB, KEY, RULE, OfflineConnection
from tests.fuzz.test_mutations import mutate

DEADLINE_S = 30.0
PEERS = 60

UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\n"
    b"Host: 127.0.0.1\r\n"
    b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\n"
    b"Sec-WebSocket-Key: " + base64.b64encode(bytes(16)) + b"\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: amqp\r\n\r\n"
)
REQUESTS = [
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /hubs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"PUT /hubs/new HTTP/1.1\r\nHost: localhost\r\nContent-Length: 17\r\n\r\n"
    + b'{"partitions": 4}',
    b"PUT /hubs/new HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"11\r\n" + b'{"partitions": 4}' + b"\r\n0\r\n\r\n",
    b"DELETE /hubs/a%2Fb/groups/c HTTP/1.0\r\nAuthorization: SharedAccessSignature sr=x\r\n\r\n",
]


@pytest.fixture(scope="module")
def hub() -> Iterator[EmbeddedHub]:
    rules = [AccessRule(RULE, KEY)]
    with EmbeddedHub({HUB: 2}, rules=rules, tls_port=0, ws_port=0, http_port=0) as hub:
        yield hub


# -- exchanges ------------------------------------------------------------------------------------


def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send all bytes, then receive until the hub closes, which it must."""
    received = bytearray()
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while piece := sock.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass  # the hub closed while we were sending
    return bytes(received)


def over_tcp(port: int | None, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port or 0), DEADLINE_S) as sock:
        return exchange(sock, data)


def over_tls(hub: EmbeddedHub, data: bytes, count: int = 0) -> bytes:
    """After a valid handshake: send, receive `count` bytes, and end the TLS session."""
    received = bytearray()
    trust = ssl.create_default_context(cafile=str(hub.ca_file))
    with (
        socket.create_connection(("127.0.0.1", hub.tls_port or 0), DEADLINE_S) as sock,
        trust.wrap_socket(sock, server_hostname="127.0.0.1") as tls,
        suppress(ConnectionError, ssl.SSLError),
    ):
        tls.sendall(data)
        while len(received) < count and (piece := tls.recv(1 << 16)):
            received += piece
        tls.unwrap()  # this waits for the hub's end of the session
    return bytes(received)


def framed(data: bytes, opcode: Opcode = Opcode.BINARY) -> bytes:
    return Frame(opcode, data).serialize(mask=True)


@cache
def client_hello() -> bytes:
    """The first record of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


# -- mutated exchanges ----------------------------------------------------------------------------

Attack = Callable[[EmbeddedHub, Random], bytes]


def tls_noise(hub: EmbeddedHub, rng: Random) -> bytes:
    return over_tcp(hub.tls_port, rng.randbytes(rng.choice([1, 5, 300, 20_000])))


def tls_hello(hub: EmbeddedHub, rng: Random) -> bytes:
    hello = client_hello()
    return over_tcp(hub.tls_port, mutate(hello, rng, [hello]))


def tls_inside(hub: EmbeddedHub, rng: Random) -> bytes:
    valid = corpus()["session"]
    return over_tls(hub, OfflineConnection.ATTACHED + mutate(rng.choice(valid), rng, valid))


def ws_noise(hub: EmbeddedHub, rng: Random) -> bytes:
    # Not 22: TLS starts with that byte, and is tested separately.
    return over_tcp(hub.ws_port, b"\x01" + rng.randbytes(rng.choice([1, 300, 20_000])))


def ws_upgrade(hub: EmbeddedHub, rng: Random) -> bytes:
    return over_tcp(hub.ws_port, mutate(UPGRADE, rng, [UPGRADE]))


def ws_frames(hub: EmbeddedHub, rng: Random) -> bytes:
    opcodes = [Opcode.BINARY, Opcode.TEXT, Opcode.PING, Opcode.CLOSE, Opcode.CONT]
    frames = [framed(rng.randbytes(rng.choice([0, 2, 100])), rng.choice(opcodes)) for _ in range(3)]
    data_sent = b"".join(frames)
    return over_tcp(
        hub.ws_port, UPGRADE + (mutate(data_sent, rng, frames) if rng.random() < 0.7 else data_sent)
    )


def ws_inside(hub: EmbeddedHub, rng: Random) -> bytes:
    valid = corpus()["session"]
    data_sent = OfflineConnection.ATTACHED + mutate(rng.choice(valid), rng, valid)
    cut = rng.randrange(len(data_sent))
    return over_tcp(hub.ws_port, UPGRADE + framed(data_sent[:cut]) + framed(data_sent[cut:]))


def http_noise(hub: EmbeddedHub, rng: Random) -> bytes:
    return over_tcp(hub.http_port, rng.randbytes(rng.choice([1, 300, 100_000])))


def http_requests(hub: EmbeddedHub, rng: Random) -> bytes:
    data_sent = b"".join(rng.choices(REQUESTS, k=rng.randrange(1, 4)))
    return over_tcp(hub.http_port, mutate(data_sent, rng, REQUESTS))


ATTACKS = [tls_noise, tls_hello, tls_inside, ws_noise, ws_upgrade, ws_frames, ws_inside,
           http_noise, http_requests]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack.__name__))
def test_mutated_bytes_to_a_listener(
    hub: EmbeddedHub, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    rng = Random(attack.__name__)
    with caplog.at_level(logging.ERROR):
        for _ in range(PEERS):
            attack(hub, rng)
    assert caplog.records == []  # no exception in asyncio, and no error of the hub
    check_next_client(hub)


def check_next_client(hub: EmbeddedHub) -> None:
    """A client of each listener is served, and nothing is left of the earlier ones."""
    assert len(over_tls(hub, OfflineConnection.ATTACHED, 500)) >= 500
    response = over_tcp(hub.ws_port, UPGRADE + framed(OfflineConnection.ATTACHED))
    assert response.startswith(b"HTTP/1.1 101")
    assert len(response) > 700
    with urlopen(f"http://127.0.0.1:{hub.http_port}/health", timeout=DEADLINE_S) as health:
        assert health.status == 200
    assert hub.hubs == {HUB: 2}
    assert len(hub.server.connections) <= 1  # the last one may be closing
