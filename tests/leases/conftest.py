"""Fixtures of the contract suite: a backend for every store in STORES, and handles on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.stores import STORES, StoreBackend, ready


@pytest.fixture(params=STORES.values(), ids=list(STORES))
async def backend(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreBackend]:
    async with ready(request.param, request)(tmp_path) as backend:
        yield backend


@pytest.fixture
async def store(backend: StoreBackend) -> AsyncIterator[CheckpointStore]:
    async with backend.open() as store:
        yield store


@pytest.fixture
async def stores(backend: StoreBackend) -> AsyncIterator[list[CheckpointStore]]:
    """Eight handles on the same rows."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(backend.open()) for _ in range(8)]
