"""Fixtures of the page: a hub with the homes' hubs, and a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pumphouse.homes.schema import HUBS
from pumphouse.hub.embedded import EmbeddedHub


@pytest.fixture
async def hub() -> AsyncIterator[EmbeddedHub]:
    async with EmbeddedHub(dict.fromkeys(HUBS, 4)) as running:
        for name in HUBS:
            running.create_group(name, "page")
        running.create_group("sensors", "counters")
        yield running


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "leases.db")
