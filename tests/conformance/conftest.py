"""One hub for each door, one event hub in it for each test, and both faces of the SDK."""

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
from tests.conformance.doors import (
    DOORS,
    DURABLE,
    FORGIVEN,
    FORGOTTEN,
    PLAIN,
    TLS,
    UNDISTURBED,
    WEBSOCKET,
    WSS,
    Door,
    JudgedHub,
)
from tests.conformance.entity import Entity, Refusals
from tests.conformance.faces import FACES, Sdk
from tests.conformance.readers import Reaper, Spreader, Wire

numbers = count(1)

# Which sixth of the tests goes by a door, besides the plain one, when time is short.
SHARES = {TLS: 0, WEBSOCKET: 2, WSS: 2, DURABLE: 4}
SIXTH = 6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Whatever needs a door runs with each of those that were chosen, one after the other."""
    if "door" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--doors").split(",")
        unknown = [name for name in chosen if name not in DOORS]
        if unknown:
            raise pytest.UsageError(f"--doors: {unknown}; there are {', '.join(DOORS)}")
        # A module may have another word for a door, or None: it does not come by that one.
        own: dict[str, str | None] = getattr(metafunc.module, "OWN_DOORS", {})
        names = [own.get(name, name) for name in chosen]
        metafunc.parametrize("door", [*filter(None, names)], indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            for warning in FORGIVEN.get(door_of(item), [FORGOTTEN]):
                item.add_marker(pytest.mark.filterwarnings(warning))
    if PLAIN in config.getoption("--doors") and not config.getoption("--every-door"):
        passed_by = [*chain.from_iterable(not_this_time(items, door) for door in DOORS[1:])]
        config.hook.pytest_deselected(items=passed_by)
        items[:] = [item for item in items if item not in set(passed_by)]


def door_of(item: pytest.Item) -> str:
    """By which door a test goes; "" if it knows of none."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("door", "")) if callspec is not None else ""


def not_this_time(items: list[pytest.Item], door: str) -> list[pytest.Item]:
    """All but an even share of the tests by one door; each door has another share."""
    mine = [
        item
        for item in items
        if door_of(item) == door and not hasattr(getattr(item, "module", None), "OWN_DOORS")
    ]
    chosen = mine[SHARES[door] :: SIXTH]
    return [item for item in mine if item not in set(chosen)]


@pytest.fixture(scope="session")
def door(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    yield Door(request.param, folder)
    shutil.rmtree(folder)  # segments are allocated ahead: they would fill a disk by and by


@pytest.fixture(autouse=True)
def disturbance(request: pytest.FixtureRequest) -> Iterator[None]:
    """Some tests cannot have the hub started anew under them; doors.py says which and why."""
    if "door" not in request.fixturenames:
        yield
        return
    door: Door = request.getfixturevalue("door")
    for hub in door.hubs.values():
        hub.restarts.forget()
    names = {request.node.originalname, request.module.__name__.rpartition(".")[2]}
    with door.undisturbed() if names & UNDISTURBED.keys() else nullcontext():
        yield


@pytest.fixture(scope="session")
def hub(door: Door) -> Iterator[EmbeddedHub]:
    """The hub under test, on a thread of its own, as a user's test would run it."""
    with door.hub(steady=True) as hub:
        yield hub


def new_entity(hub: EmbeddedHub, partitions: int) -> Entity:
    name = f"eh-{next(numbers)}"
    hub.create_hub(name, partitions)
    return Entity(hub, name)


def hub_for_one(door: Door, shared: EmbeddedHub, opened: ExitStack) -> EmbeddedHub:
    """Nobody else can use a hub that is started anew; all others share one."""
    return opened.enter_context(door.hub()) if door.keeps else shared


@pytest.fixture(scope="session")
def make_lasting_entity(door: Door, hub: EmbeddedHub) -> Iterator[Callable[[int], Entity]]:
    """For event hubs that several tests share."""
    with ExitStack() as opened:
        yield lambda partitions: new_entity(hub_for_one(door, hub, opened), partitions)


@pytest_asyncio.fixture(loop_scope="session")
async def make_entity(
    door: Door, hub: EmbeddedHub, reaper: Reaper
) -> AsyncIterator[Callable[[int], Entity]]:
    """For event hubs that no other test has seen."""
    opened: list[JudgedHub] = []

    def make(partitions: int) -> Entity:
        if door.keeps:
            opened.append(door.hub().__enter__())
        return new_entity(opened[-1] if opened else hub, partitions)

    yield make
    for one in opened:
        reaper.take_hub(one)


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
async def reaper(
    hub: EmbeddedHub, make_lasting_entity: Callable[[int], Entity]
) -> AsyncIterator[Reaper]:
    """Asks for the hubs, so that it is done before they go."""
    reaper = Reaper()
    yield reaper
    await reaper.finish()


@pytest.fixture(autouse=True, scope="module")
def forgotten_by_the_door(request: pytest.FixtureRequest) -> None:
    """Behind some doors the SDK always forgets something."""
    if "door" in request.fixturenames:
        door: Door = request.getfixturevalue("door")
        if FORGOTTEN in FORGIVEN[door.name] and "reaper" in request.fixturenames:
            request.getfixturevalue("forgotten_sockets")


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


@pytest.fixture(scope="session")
def faces(reaper: Reaper, door: Door) -> dict[str, Sdk]:
    """The official client, blocking and asyncio."""
    return {name: face(reaper, door) for name, face in FACES.items()}


@pytest.fixture(params=FACES)
def sdk(request: pytest.FixtureRequest, faces: dict[str, Sdk]) -> Sdk:
    """First the one, then the other."""
    return faces[request.param]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def wires(
    faces: dict[str, Sdk], make_lasting_entity: Callable[[int], Entity]
) -> AsyncIterator[dict[str, Wire]]:
    async with AsyncExitStack() as stack:
        made = {}
        for name, sdk in faces.items():
            eh = make_lasting_entity(1)
            producer = await stack.enter_async_context(sdk.producer(eh.connection))
            reader = await stack.enter_async_context(sdk.read(eh, prefetch=5000))
            made[name] = Wire(eh, producer, reader)
        yield made


@pytest.fixture
def wire(sdk: Sdk, wires: dict[str, Wire]) -> Wire:
    """A producer and a reader that are open already."""
    wires[sdk.name].start()
    return wires[sdk.name]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def spreaders(
    faces: dict[str, Sdk], make_lasting_entity: Callable[[int], Entity]
) -> AsyncIterator[dict[str, Spreader]]:
    async with AsyncExitStack() as stack:
        made = {}
        for name, sdk in faces.items():
            eh = make_lasting_entity(32)
            producer = await stack.enter_async_context(sdk.producer(eh.connection))
            made[name] = Spreader(eh, producer)
        yield made


@pytest.fixture
def spreader(sdk: Sdk, spreaders: dict[str, Spreader]) -> Spreader:
    """A producer that is open already, to a hub of 32 partitions."""
    spreaders[sdk.name].start()
    return spreaders[sdk.name]
