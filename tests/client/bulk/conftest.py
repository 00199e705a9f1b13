"""A hub on a thread, for blocking readers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pumphouse.hub.embedded import EmbeddedHub
from tests.client.bulk.hub_entity import Entity


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedHub]:
    with EmbeddedHub() as hub:
        yield hub


@pytest.fixture
def eh(server: EmbeddedHub) -> Entity:
    return Entity(server)
