"""A PostgreSQL server for the tests of leases. Tests create their databases in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres.server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server per test process. If PostgreSQL is not installed, tests fail."""
    with PostgresServer() as server:
        yield server
