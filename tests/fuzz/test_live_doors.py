"""Spoilt bytes to the other doors of a hub, on real sockets: TLS, WebSocket and HTTP.

Each is spoken to as far as it goes (its first byte, behind a handshake, inside a frame) and then
spoilt. The hub hangs up or answers, nothing is logged as an error, and the next client is served.
"""

from __future__ import annotations

import base64
import logging
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from urllib.request import urlopen

import pytest
from websockets.frames import Frame, Opcode

from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.embedded import EmbeddedHub
from tests.fuzz.conversation import HUB, KEY, RULE, Wiretap
from tests.fuzz.corpus import corpus
from tests.fuzz.test_mutations import spoil

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


# -- speaking -------------------------------------------------------------------------------------


def hear(sock: socket.socket, data: bytes) -> bytes:
    """Send all, then listen until the hub hangs up, which it must."""
    heard = bytearray()
    try:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        while piece := sock.recv(1 << 16):
            heard += piece
    except ConnectionError:
        pass  # it hung up while we were still speaking
    return bytes(heard)


def plainly(port: int | None, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port or 0), DEADLINE_S) as sock:
        return hear(sock, data)


def securely(hub: EmbeddedHub, data: bytes, wanted: int = 0) -> bytes:
    """Behind a proper handshake: say it, hear so many bytes, and say good-bye as TLS does."""
    heard = bytearray()
    trust = ssl.create_default_context(cafile=str(hub.ca_file))
    with (
        socket.create_connection(("127.0.0.1", hub.tls_port or 0), DEADLINE_S) as sock,
        trust.wrap_socket(sock, server_hostname="127.0.0.1") as tls,
        suppress(ConnectionError, ssl.SSLError),
    ):
        tls.sendall(data)
        while len(heard) < wanted and (piece := tls.recv(1 << 16)):
            heard += piece
        tls.unwrap()  # this waits for the hub's own good-bye
    return bytes(heard)


def framed(data: bytes, opcode: Opcode = Opcode.BINARY) -> bytes:
    return Frame(opcode, data).serialize(mask=True)


def client_hello() -> bytes:
    """The first words of a TLS client."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


# -- what is said ---------------------------------------------------------------------------------

Attack = Callable[[EmbeddedHub, Random], bytes]


def tls_noise(hub: EmbeddedHub, rng: Random) -> bytes:
    return plainly(hub.tls_port, rng.randbytes(rng.choice([1, 5, 300, 20_000])))


def tls_hello(hub: EmbeddedHub, rng: Random) -> bytes:
    hello = client_hello()
    return plainly(hub.tls_port, spoil(hello, rng, [hello]))


def tls_inside(hub: EmbeddedHub, rng: Random) -> bytes:
    good = corpus()["session"]
    return securely(hub, Wiretap.ATTACHED + spoil(rng.choice(good), rng, good))


def ws_noise(hub: EmbeddedHub, rng: Random) -> bytes:
    # Not 22: with that byte TLS begins, which has its own turn.
    return plainly(hub.ws_port, b"\x01" + rng.randbytes(rng.choice([1, 300, 20_000])))


def ws_upgrade(hub: EmbeddedHub, rng: Random) -> bytes:
    return plainly(hub.ws_port, spoil(UPGRADE, rng, [UPGRADE]))


def ws_frames(hub: EmbeddedHub, rng: Random) -> bytes:
    opcodes = [Opcode.BINARY, Opcode.TEXT, Opcode.PING, Opcode.CLOSE, Opcode.CONT]
    frames = [framed(rng.randbytes(rng.choice([0, 2, 100])), rng.choice(opcodes)) for _ in range(3)]
    said = b"".join(frames)
    return plainly(
        hub.ws_port, UPGRADE + (spoil(said, rng, frames) if rng.random() < 0.7 else said)
    )


def ws_inside(hub: EmbeddedHub, rng: Random) -> bytes:
    good = corpus()["session"]
    said = Wiretap.ATTACHED + spoil(rng.choice(good), rng, good)
    cut = rng.randrange(len(said))
    return plainly(hub.ws_port, UPGRADE + framed(said[:cut]) + framed(said[cut:]))


def http_noise(hub: EmbeddedHub, rng: Random) -> bytes:
    return plainly(hub.http_port, rng.randbytes(rng.choice([1, 300, 100_000])))


def http_requests(hub: EmbeddedHub, rng: Random) -> bytes:
    said = b"".join(rng.choices(REQUESTS, k=rng.randrange(1, 4)))
    return plainly(hub.http_port, spoil(said, rng, REQUESTS))


ATTACKS = [tls_noise, tls_hello, tls_inside, ws_noise, ws_upgrade, ws_frames, ws_inside,
           http_noise, http_requests]  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: str(attack.__name__))
def test_spoilt_bytes_at_a_door(
    hub: EmbeddedHub, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    rng = Random(attack.__name__)
    with caplog.at_level(logging.ERROR):
        for _ in range(PEERS):
            attack(hub, rng)
    assert caplog.records == []  # neither a crash that asyncio caught, nor a fault of our own
    serves_the_next(hub)


def serves_the_next(hub: EmbeddedHub) -> None:
    """A client at each door gets what it came for, and nothing is left of those before."""
    assert len(securely(hub, Wiretap.ATTACHED, 500)) >= 500
    answer = plainly(hub.ws_port, UPGRADE + framed(Wiretap.ATTACHED))
    assert answer.startswith(b"HTTP/1.1 101")
    assert len(answer) > 700
    with urlopen(f"http://127.0.0.1:{hub.http_port}/health", timeout=DEADLINE_S) as health:
        assert health.status == 200
    assert hub.hubs == {HUB: 2}
    assert len(hub.server.connections) <= 1  # the last may be on its way out
