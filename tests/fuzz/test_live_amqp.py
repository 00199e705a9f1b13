"""Mutated bytes to the AMQP port: the hub closes or responds, and serves other clients."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from random import Random

import pytest

from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.embedded import EmbeddedHub
from tests.fuzz.corpus import corpus
from tests.fuzz.offline_connection import HUB, KEY, RULE, OfflineConnection
from tests.fuzz.test_mutations import mutate

DEADLINE_S = 30.0
PEERS = 150


@pytest.fixture(scope="module")
def hub() -> Iterator[EmbeddedHub]:
    with EmbeddedHub({HUB: 2}, rules=[AccessRule(RULE, KEY)]) as hub:
        yield hub


def exchange(hub: EmbeddedHub, data: bytes) -> bytes:
    """Send all bytes, then receive until the hub closes, which it must."""
    with socket.create_connection(("127.0.0.1", hub.port), DEADLINE_S) as sock:
        received = bytearray()
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(1 << 16):
                received += piece
        except (ConnectionResetError, BrokenPipeError):
            pass  # the hub closed while we were sending
        return bytes(received)


@pytest.mark.parametrize("start", [b"", OfflineConnection.ATTACHED], ids=["login", "session"])
def test_mutated_bytes_to_the_amqp_port(
    hub: EmbeddedHub, start: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    valid = corpus()["session" if start else "login"]
    random = Random(f"live {len(start)}")
    with caplog.at_level(logging.ERROR):
        for _ in range(PEERS):
            exchange(hub, start + mutate(random.choice(valid), random, valid))
    assert caplog.records == []  # no exception in asyncio, and no error of the hub
    assert len(exchange(hub, OfflineConnection.ATTACHED)) > 500
    assert len(hub.server.connections) <= 1  # the last one may be closing
    entity = hub.namespace.hub(HUB)
    assert len(entity.senders) + len([*entity.readers()]) <= 2
