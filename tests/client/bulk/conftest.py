"""A hub on a thread, for readers that block."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.entity import Entity


@pytest.fixture(scope="module")
def house() -> Iterator[EmbeddedHub]:
    with EmbeddedHub() as hub:
        yield hub


@pytest.fixture
def eh(house: EmbeddedHub) -> Entity:
    return Entity(house)
