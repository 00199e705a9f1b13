"""A Redis server for the tests of leases; each test uses a prefix of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis.server import RedisServer


@pytest.fixture(scope="session")
def redis() -> Iterator[RedisServer]:
    """One server per test process. Without its program tests fail rather than being skipped."""
    with RedisServer() as server:
        yield server
