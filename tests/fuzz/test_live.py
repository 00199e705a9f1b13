"""Spoilt bytes to a hub on a real socket: it hangs up or answers, and goes on serving others."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from random import Random

import pytest

from pumphouse.hub.access.auth import AccessRule
from pumphouse.hub.embedded import EmbeddedHub
from tests.fuzz.conversation import HUB, KEY, RULE, Wiretap
from tests.fuzz.corpus import corpus
from tests.fuzz.test_mutations import spoil

DEADLINE_S = 30.0
PEERS = 150


@pytest.fixture(scope="module")
def hub() -> Iterator[EmbeddedHub]:
    with EmbeddedHub({HUB: 2}, rules=[AccessRule(RULE, KEY)]) as hub:
        yield hub


def talk(hub: EmbeddedHub, data: bytes) -> bytes:
    """Send all, then listen until the hub hangs up, which it must."""
    with socket.create_connection(("127.0.0.1", hub.port), DEADLINE_S) as sock:
        heard = bytearray()
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while piece := sock.recv(1 << 16):
                heard += piece
        except (ConnectionResetError, BrokenPipeError):
            pass  # it hung up while we were still speaking
        return bytes(heard)


@pytest.mark.parametrize("start", [b"", Wiretap.ATTACHED], ids=["login", "session"])
def test_spoilt_bytes_on_a_socket(
    hub: EmbeddedHub, start: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    good = corpus()["session" if start else "login"]
    random = Random(f"live {len(start)}")
    with caplog.at_level(logging.ERROR):
        for _ in range(PEERS):
            talk(hub, start + spoil(random.choice(good), random, good))
    assert caplog.records == []  # neither a crash that asyncio caught, nor a fault of our own
    assert len(talk(hub, Wiretap.ATTACHED)) > 500
    assert len(hub.server.connections) <= 1  # the last may be on its way out
    entity = hub.namespace.hub(HUB)
    assert len(entity.senders) + len([*entity.readers()]) <= 2
