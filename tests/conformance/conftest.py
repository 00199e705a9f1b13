"""One hub for the whole run, one event hub in it for each test, and both faces of the SDK."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count

import pytest
import pytest_asyncio

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.support import FACES, Entity, Reaper, Refusals, Sdk

numbers = count(1)


@pytest.fixture(scope="session")
def hub() -> Iterator[EmbeddedHub]:
    """The hub under test, on a thread of its own, as a user's test would run it."""
    with EmbeddedHub() as hub:
        yield hub


@pytest.fixture(scope="session")
def make_entity(hub: EmbeddedHub) -> Callable[[int], Entity]:
    def make(partitions: int) -> Entity:
        name = f"eh-{next(numbers)}"
        hub.create_hub(name, partitions)
        return Entity(hub, name)

    return make


@pytest.fixture
def eh(make_entity: Callable[[int], Entity]) -> Entity:
    """An event hub that no other test has seen, with four partitions."""
    return make_entity(4)


@pytest.fixture
def single(make_entity: Callable[[int], Entity]) -> Entity:
    """One with a single partition: what is sent to it, wherever, is found in partition 0."""
    return make_entity(1)


@pytest.fixture
def refusals() -> Iterator[Refusals]:
    """The links that are refused during a test."""
    log, refusals = logging.getLogger("pumphouse.hub"), Refusals()
    before = log.level
    log.setLevel(logging.INFO)
    log.addHandler(refusals)
    yield refusals
    log.removeHandler(refusals)
    log.setLevel(before)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reaper() -> AsyncIterator[Reaper]:
    reaper = Reaper()
    yield reaper
    await reaper.finish()


@pytest.fixture(params=FACES)
def sdk(request: pytest.FixtureRequest, reaper: Reaper) -> Sdk:
    """The official client: blocking, then asyncio."""
    return FACES[request.param](reaper)
