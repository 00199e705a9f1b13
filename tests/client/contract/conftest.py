"""One hub for the whole run with all its doors open, one event hub in it for each test."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from pumphouse.client.base import HubClient
from pumphouse.clock import MovableClock
from pumphouse.hub.embedded import EmbeddedHub
from tests.client.contract.support import DRIVERS, Place

HERE = Path(__file__).parent
# aiohttp says so, of how azure-eventhub calls it.
NOT_OURS = [
    "ignore:ssl=None is deprecated:DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
]

numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The official SDK leaves what belongs to a broken connection to the garbage collector."""
    for item in items:
        if HERE in item.path.parents and "[azure" in item.name:
            for ignored in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def clock() -> MovableClock:
    """The hub's clock. It may only be moved by less than the hour that tokens are good for."""
    return MovableClock()


@pytest.fixture(scope="session")
def hub(clock: MovableClock) -> Iterator[EmbeddedHub]:
    """The hub, on a thread of its own, as a user's test would run it."""
    with EmbeddedHub(clock=clock, tls_port=0, ws_port=0) as hub:
        yield hub


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def door() -> str:
    """Plain AMQP, unless a test says that it is about doors."""
    return "plain"


@pytest.fixture
def place(hub: EmbeddedHub, driver: str, door: str) -> Iterator[Place]:
    """An event hub that no other test has seen, with four partitions."""
    name = f"eh-{next(numbers)}"
    hub.create_hub(name, 4)
    yield Place(hub, name, driver, door)
    hub.faults.clear()
    if driver == "azure":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
async def client(place: Place) -> AsyncIterator[HubClient]:
    async with place.client() as client:
        yield client
