"""One hub for the whole run with all listeners, and one event hub in it for each test."""

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
from tests.client.contract.support import DRIVERS, DriverTarget

HERE = Path(__file__).parent
# aiohttp warns about a call of azure-eventhub.
NOT_OURS = [
    "ignore:ssl=None is deprecated:DeprecationWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
]

numbers = count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore warnings of the official SDK, which leaves broken connections to the collector."""
    for item in items:
        if HERE in item.path.parents and "[azure" in item.name:
            for ignored in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(ignored))


@pytest.fixture(scope="session")
def clock() -> MovableClock:
    """The clock of the hub. Advance it by less than an hour, the lifetime of tokens."""
    return MovableClock()


@pytest.fixture(scope="session")
def hub(clock: MovableClock) -> Iterator[EmbeddedHub]:
    """The hub, on its own thread, as in a test of a user."""
    with EmbeddedHub(clock=clock, tls_port=0, ws_port=0) as hub:
        yield hub


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def listener() -> str:
    """Plain AMQP, unless a test chooses another listener."""
    return "plain"


@pytest.fixture
def target(hub: EmbeddedHub, driver: str, listener: str) -> Iterator[DriverTarget]:
    """An event hub with four partitions that no other test uses."""
    name = f"eh-{next(numbers)}"
    hub.create_hub(name, 4)
    yield DriverTarget(hub, name, driver, listener)
    hub.faults.clear()
    if driver == "azure":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture
async def client(target: DriverTarget) -> AsyncIterator[HubClient]:
    async with target.client() as client:
        yield client
