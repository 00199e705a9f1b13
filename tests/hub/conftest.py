"""A hub with one event hub of two partitions, and peers that are put away after each test."""

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
    """A test module may have its own."""
    return ServerOptions()


@pytest.fixture
async def hub(clock: Clock, options: ServerOptions) -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({HUB: 2}, clock=clock, options=options) as hub:
        yield hub
        # Whatever a test did: once its peers are gone, nothing of them is left.
        await eventually(lambda: not left_behind(hub), "the hub to forget its peers")


def left_behind(hub: EmbeddedHub) -> list[Any]:
    """Conversations, producers and consumers that the hub still knows of."""
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
