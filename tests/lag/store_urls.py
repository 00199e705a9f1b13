"""The URL of an empty store of each kind that several processes can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.leases.store_url import STORE_KINDS
from tests.azurite.fixtures import Storage
from tests.postgres.server import PostgresServer
from tests.redis.server import RedisServer

SHARED_KINDS = sorted(STORE_KINDS.keys() - {"memory"})


@pytest.fixture(params=SHARED_KINDS)
def store_url(request: pytest.FixtureRequest, tmp_path: Path, storage: Storage) -> str:
    """A test that uses it runs for each kind. The container of blobs does not exist yet."""
    kind = request.param
    if kind == "sqlite":
        return str(tmp_path / "leases.db")
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.database()
    if kind == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        return redis.url(database=5)
    return f"{kind}:{storage.direct};Container={storage.container}"
