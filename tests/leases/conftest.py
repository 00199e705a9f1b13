"""Fixtures of the contract suite: a place for every store in stores.STORES, and handles on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pumphouse.leases.store import CheckpointStore
from tests.leases.contract.stores import STORES, Place, ready


@pytest.fixture(params=STORES.values(), ids=list(STORES))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with ready(request.param, request)(tmp_path) as place:
        yield place


@pytest.fixture
async def store(place: Place) -> AsyncIterator[CheckpointStore]:
    async with place.open() as store:
        yield store


@pytest.fixture
async def stores(place: Place) -> AsyncIterator[list[CheckpointStore]]:
    """Eight handles on the same rows."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(place.open()) for _ in range(8)]
