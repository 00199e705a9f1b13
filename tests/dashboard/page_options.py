"""The options of the page in the tests, and the first message of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from pumphouse.dashboard.options import DashboardOptions, HomesFeed, WatchedGroup
from pumphouse.homes.schema import HUBS
from pumphouse.hub.embedded import EmbeddedHub
from tests.dashboard.page_client import (
    PageClient,
)

LEASE_S = 4.0


def options(hub: EmbeddedHub, store: str, **more: Any) -> DashboardOptions:
    connection = hub.connection_string()
    given: dict[str, Any] = {
        "port": 0,
        "connection": connection,
        "hubs": HUBS,
        "groups": (WatchedGroup(connection, "sensors", "counters", store, LEASE_S),),
        "homes": HomesFeed(connection, 100),
        "events_group": "page",
        "write": True,
        "update_s": 0.1,
    }
    return DashboardOptions(**given | more)


async def first(
    client: PageClient, path: str, name: str, matches: Callable[[Any], object] = lambda data: True
) -> Any:
    """The first message with this name that matches."""
    async with asyncio.timeout(60), aclosing(client.messages(path)) as messages:
        async for event, data in messages:
            if event == name and matches(data):
                return data
    raise AssertionError("the stream ended without such a message")
