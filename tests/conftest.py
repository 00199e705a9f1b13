"""For all tests: no property fails because the machine is busy; and by which doors judges come."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.azurite.fixtures import azurite, storage
from tests.groups import pytest_xdist_make_scheduler

__all__ = ["azurite", "pytest_xdist_make_scheduler", "storage"]

settings.register_profile("house", deadline=None, print_blob=True)
settings.load_profile("house")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes each runs only when it is asked for."""
    for marker in ("cluster", "soak"):
        if marker not in str(config.getoption("-m")):
            slow = {item for item in items if item.get_closest_marker(marker)}
            config.hook.pytest_deselected(items=[item for item in items if item in slow])
            items[:] = [item for item in items if item not in slow]


def pytest_addoption(parser: pytest.Parser) -> None:
    # Here and not beside the judges: pytest reads options only from the folders it is started in.
    parser.addoption(
        "--doors",
        default="plain,tls,websocket,durable",
        help="how the official clients reach the hub; durable: restarts between sends; also: wss",
    )
    parser.addoption(
        "--every-door",
        action="store_true",
        help="every test by each of the doors; without it, plain and by one of the others",
    )
