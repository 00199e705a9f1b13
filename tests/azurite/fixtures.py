"""Fixtures of a storage account: Azurite, and an empty container in it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from tests.azurite.proxy import Proxy, proxy_to
from tests.azurite.server import Azurite


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """One Azurite per test process. Without its packages tests fail rather than being skipped."""
    with Azurite() as azurite:
        yield azurite


@dataclass(frozen=True, slots=True)
class Storage:
    """A container that does not exist yet, in an account whose requests are counted."""

    azurite: Azurite
    proxy: Proxy
    container: str = field(default_factory=lambda: f"c-{uuid.uuid4()}")

    @property
    def connection_string(self) -> str:
        """Through the proxy, which counts the requests."""
        return self.azurite.connection_string(self.proxy.port)

    @property
    def direct(self) -> str:
        """Without the proxy."""
        return self.azurite.connection_string()


@pytest.fixture
async def storage(azurite: Azurite) -> AsyncIterator[Storage]:
    async with proxy_to(azurite.port) as proxy:
        yield Storage(azurite, proxy)
