"""One hub per variant, one event hub per test, and both clients of the SDK."""

from __future__ import annotations

import gc
import logging
import shutil
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, nullcontext
from itertools import chain, count
from pathlib import Path

import pytest
import pytest_asyncio

from pumphouse.hub.embedded import EmbeddedHub
from tests.conformance.entity import Entity, Refusals
from tests.conformance.readers import BackgroundCloser, OpenLink, PartitionCounter
from tests.conformance.sdks import SDKS, Sdk
from tests.conformance.variants import (
    DURABLE,
    IGNORED_WARNINGS,
    PLAIN,
    TLS,
    UNCLOSED,
    VARIANTS,
    WEBSOCKET,
    WITHOUT_RESTARTS,
    WSS,
    HubUnderTest,
    HubVariant,
)

HERE = Path(__file__).parent
numbers = count(1)

# Besides plain, every variant runs every sixth test, starting with this one.
FIRST_TEST = {TLS: 0, WEBSOCKET: 2, WSS: 2, DURABLE: 4}
STEP = 6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that needs a hub variant with each of the requested ones."""
    if "variant" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--variants").split(",")
        unknown = [name for name in chosen if name not in VARIANTS]
        if unknown:
            raise pytest.UsageError(f"--variants: unknown {unknown}; use {', '.join(VARIANTS)}")
        # A module may replace a variant by another one, or skip it (None).
        replacements: dict[str, str | None] = getattr(metafunc.module, "OWN_VARIANTS", {})
        names = [replacements.get(name, name) for name in chosen]
        metafunc.parametrize("variant", [*filter(None, names)], indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            for warning in IGNORED_WARNINGS.get(variant_of(item), [UNCLOSED]):
                item.add_marker(pytest.mark.filterwarnings(warning))
    if PLAIN in config.getoption("--variants") and not config.getoption("--every-variant"):
        deselected = [
            *chain.from_iterable(not_selected(items, variant) for variant in VARIANTS[1:])
        ]
        config.hook.pytest_deselected(items=deselected)
        unwanted = set(deselected)
        items[:] = [item for item in items if item not in unwanted]


def variant_of(item: pytest.Item) -> str:
    """The hub variant of a test; "" if it uses none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("variant", "")) if callspec is not None else ""


def not_selected(items: list[pytest.Item], variant: str) -> list[pytest.Item]:
    """The tests of one variant that do not run: all but every sixth."""
    candidates = [item for item in items if variant_of(item) == variant]
    chosen = set(candidates[FIRST_TEST[variant] :: STEP])
    return [item for item in candidates if item not in chosen]


@pytest.fixture(scope="session")
def variant(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HubVariant]:
    folder = tmp_path_factory.mktemp("variant")
    yield HubVariant(request.param, folder)
    shutil.rmtree(folder)  # segments are preallocated: many runs would fill a disk


@pytest.fixture(autouse=True)
def allow_or_suppress_restarts(request: pytest.FixtureRequest) -> Iterator[None]:
    """Suppress restarts for tests that would fail with them; variants.py lists the reasons."""
    if "variant" not in request.fixturenames:
        yield
        return
    variant: HubVariant = request.getfixturevalue("variant")
    for hub in variant.hubs.values():
        hub.restarts.reset_count()
    names = {request.node.originalname, request.module.__name__.rpartition(".")[2]}
    with variant.without_restarts() if names & WITHOUT_RESTARTS.keys() else nullcontext():
        yield


@pytest.fixture(scope="session")
def hub(variant: HubVariant) -> Iterator[EmbeddedHub]:
    """The hub under test, on a thread of its own, as a user's test would run it."""
    with variant.hub(steady=True) as hub:
        yield hub


def new_entity(hub: EmbeddedHub, partitions: int) -> Entity:
    name = f"eh-{next(numbers)}"
    hub.create_hub(name, partitions)
    return Entity(hub, name)


def hub_for_test(variant: HubVariant, shared: EmbeddedHub, opened: ExitStack) -> EmbeddedHub:
    """A separate hub for a variant with restarts, else the shared hub."""
    return opened.enter_context(variant.hub()) if variant.is_durable else shared


@pytest.fixture(scope="session")
def make_shared_entity(variant: HubVariant, hub: EmbeddedHub) -> Iterator[Callable[[int], Entity]]:
    """Creates event hubs that several tests share."""
    with ExitStack() as opened:
        yield lambda partitions: new_entity(hub_for_test(variant, hub, opened), partitions)


@pytest_asyncio.fixture(loop_scope="session")
async def make_entity(
    variant: HubVariant, hub: EmbeddedHub, closer: BackgroundCloser
) -> AsyncIterator[Callable[[int], Entity]]:
    """Creates event hubs for one test."""
    opened: list[HubUnderTest] = []

    def make(partitions: int) -> Entity:
        if variant.is_durable:
            opened.append(variant.hub().__enter__())
        return new_entity(opened[-1] if opened else hub, partitions)

    yield make
    for hub_of_test in opened:
        closer.close_later(hub_of_test)


@pytest.fixture
def eh(make_entity: Callable[[int], Entity]) -> Entity:
    """A new event hub with four partitions."""
    return make_entity(4)


@pytest.fixture
def single(make_entity: Callable[[int], Entity]) -> Entity:
    """A new event hub with one partition: every event goes to partition 0."""
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
async def closer(
    hub: EmbeddedHub, make_shared_entity: Callable[[int], Entity]
) -> AsyncIterator[BackgroundCloser]:
    """Depends on the hubs, so that it finishes before they stop."""
    closer = BackgroundCloser()
    yield closer
    await closer.finish()


def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Free what the SDK has not closed before a test of another folder would be blamed for it."""
    if nextitem is None or nextitem.path.parent != item.path.parent:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(autouse=True, scope="module")
def unclosed_sockets_of_the_variant(request: pytest.FixtureRequest) -> None:
    """On some variants the SDK always leaves sockets open."""
    if "variant" in request.fixturenames:
        variant: HubVariant = request.getfixturevalue("variant")
        if UNCLOSED in IGNORED_WARNINGS[variant.name] and "closer" in request.fixturenames:
            request.getfixturevalue("unclosed_sockets")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def unclosed_sockets(closer: BackgroundCloser) -> AsyncIterator[None]:
    """For tests that drop connections: the SDK does not close their sockets.

    The garbage collector frees them here, so that Python's warning does not appear in another test.
    """
    yield
    await closer.finish()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(scope="session")
def sdks(closer: BackgroundCloser, variant: HubVariant) -> dict[str, Sdk]:
    """The official clients: blocking and asyncio."""
    return {name: client(closer, variant) for name, client in SDKS.items()}


@pytest.fixture(params=SDKS)
def sdk(request: pytest.FixtureRequest, sdks: dict[str, Sdk]) -> Sdk:
    """Each of the two clients in turn."""
    return sdks[request.param]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def open_links(
    sdks: dict[str, Sdk], make_shared_entity: Callable[[int], Entity]
) -> AsyncIterator[dict[str, OpenLink]]:
    async with AsyncExitStack() as stack:
        links = {}
        for name, sdk in sdks.items():
            eh = make_shared_entity(1)
            producer = await stack.enter_async_context(sdk.producer(eh.connection))
            reader = await stack.enter_async_context(sdk.read(eh, prefetch=5000))
            links[name] = OpenLink(eh, producer, reader)
        yield links


@pytest.fixture
def open_link(sdk: Sdk, open_links: dict[str, OpenLink]) -> OpenLink:
    """An open producer and an open reader."""
    open_links[sdk.name].start()
    return open_links[sdk.name]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def partition_counters(
    sdks: dict[str, Sdk], make_shared_entity: Callable[[int], Entity]
) -> AsyncIterator[dict[str, PartitionCounter]]:
    async with AsyncExitStack() as stack:
        counters = {}
        for name, sdk in sdks.items():
            eh = make_shared_entity(32)
            producer = await stack.enter_async_context(sdk.producer(eh.connection))
            counters[name] = PartitionCounter(eh, producer)
        yield counters


@pytest.fixture
def partition_counter(
    sdk: Sdk, partition_counters: dict[str, PartitionCounter]
) -> PartitionCounter:
    """An open producer to a hub with 32 partitions."""
    partition_counters[sdk.name].start()
    return partition_counters[sdk.name]
