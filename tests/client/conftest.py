"""A hub and a client on the same event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from pumphouse.client.native.client import NativeClient
from pumphouse.hub.embedded import EmbeddedHub


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub({"eh": 2}) as hub:
        yield hub


@pytest.fixture
async def client(hub: EmbeddedHub) -> AsyncIterator[NativeClient]:
    async with NativeClient(hub.connection_string("eh")) as client:
        yield client
