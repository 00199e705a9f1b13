"""A PostgreSQL server for the tests of leases; each test gets a database of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per test process. Without its programs tests fail rather than being skipped."""
    with PostgresServer() as server:
        yield server
