"""Fixtures for whoever tests with a storage account: Azurite, and an empty container of it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import pytest

from tests.azurite.proxy import Proxy, proxy_to
from tests.azurite.server import Azurite


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    """One for each process that runs tests; never skipped, it says what it lacks."""
    with Azurite() as azurite:
        yield azurite


@dataclass(frozen=True, slots=True)
class Storage:
    """A container that is not there yet, of an account whose requests are counted."""

    azurite: Azurite
    proxy: Proxy
    container: str = field(default_factory=lambda: f"c-{uuid.uuid4()}")

    @property
    def connection_string(self) -> str:
        """Through the proxy: everything asked this way is counted."""
        return self.azurite.connection_string(self.proxy.port)

    @property
    def direct(self) -> str:
        """Past the proxy."""
        return self.azurite.connection_string()


@pytest.fixture
async def storage(azurite: Azurite) -> AsyncIterator[Storage]:
    async with proxy_to(azurite.port) as proxy:
        yield Storage(azurite, proxy)
