"""One hub for the whole run, one event hub in it for each test, and both faces of the SDK."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count

import pytest
import pytest_asyncio

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.support import FACES, Entity, Reaper, Refusals, Sdk, Spreader, Wire

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
async def reaper(hub: EmbeddedHub) -> AsyncIterator[Reaper]:
    """Asks for the hub, so that it is done before the hub goes."""
    reaper = Reaper()
    yield reaper
    await reaper.finish()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def forgotten_sockets(reaper: Reaper) -> AsyncIterator[None]:
    """For tests that break connections: the SDK forgets to close the sockets of those.

    Python warns of that when it finds them, and that should not be during some other test.
    """
    yield
    await reaper.finish()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(params=FACES)
def sdk(request: pytest.FixtureRequest, reaper: Reaper) -> Sdk:
    """The official client: blocking, then asyncio."""
    return FACES[request.param](reaper)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def wires(
    reaper: Reaper, make_entity: Callable[[int], Entity]
) -> AsyncIterator[dict[str, Wire]]:
    async with AsyncExitStack() as stack:
        made = {}
        for name, face in FACES.items():
            eh = make_entity(1)
            producer = await stack.enter_async_context(face(reaper).producer(eh.connection))
            reader = await stack.enter_async_context(face(reaper).read(eh, prefetch=5000))
            made[name] = Wire(eh, producer, reader)
        yield made


@pytest.fixture
def wire(sdk: Sdk, wires: dict[str, Wire]) -> Wire:
    """A producer and a reader that are open already."""
    wires[sdk.name].start()
    return wires[sdk.name]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spreaders(
    reaper: Reaper, make_entity: Callable[[int], Entity]
) -> AsyncIterator[dict[str, Spreader]]:
    async with AsyncExitStack() as stack:
        made = {}
        for name, face in FACES.items():
            eh = make_entity(32)
            producer = await stack.enter_async_context(face(reaper).producer(eh.connection))
            made[name] = Spreader(eh, producer)
        yield made


@pytest.fixture
def spreader(sdk: Sdk, spreaders: dict[str, Spreader]) -> Spreader:
    """A producer that is open already, to a hub of 32 partitions."""
    spreaders[sdk.name].start()
    return spreaders[sdk.name]
