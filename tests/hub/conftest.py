"""A hub with one event hub of two partitions, and peers that are dropped after each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from pumphouse.hub.options import ServerOptions
from tests.hub.peer import HUB, Clock, Peer, eventually

Connect = Callable[..., Awaitable[Peer]]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def options() -> ServerOptions:
    """A test module may override this."""
    return ServerOptions()


@pytest.fixture
async def hub(clock: Clock, options: ServerOptions) -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({HUB: 2}, clock=clock, options=options) as hub:
        yield hub
        # After its peers are gone, the hub must have forgotten them.
        await eventually(lambda: not remaining(hub), "the hub to forget its peers")


def remaining(hub: EmbeddedHub) -> list[Any]:
    """The connections, producers and consumers that the hub still has."""
    entity = hub.namespace.hub(HUB)
    return [*hub.server.connections, *entity.senders, *entity.readers()]


@pytest.fixture
async def connect(hub: EmbeddedHub) -> AsyncIterator[Connect]:
    peers: list[Peer] = []

    async def connect(*args: Any, **options: Any) -> Peer:
        peers.append(await Peer.connect(hub, *args, **options))
        return peers[-1]

    yield connect
    for peer in peers:
        await peer.drop()
