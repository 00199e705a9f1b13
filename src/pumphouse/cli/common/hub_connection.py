"""From a command to a hub: one connection, one conversation, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pumphouse.cli.common.options import ca_file, need_connection
from pumphouse.client.base import HubClient, ManagementClient, RetryOptions
from pumphouse.client.factory import open_client

T = TypeVar("T")

# Whoever types wants to hear at once that nobody is there. A connection that breaks later is mended
# if that takes a few seconds; after that, somebody should look.
CONNECT_RETRY = RetryOptions(attempts=0)
RECONNECT_RETRY = RetryOptions(attempts=5, most_s=2.0)


def with_client(
    connection: str | None, hub: str | None, say: Callable[[HubClient], Awaitable[T]]
) -> T:
    """Connect, let `say` do the talking, hang up."""
    client = open_client(
        need_connection(connection),
        hub or "",
        driver="native",
        ca_file=ca_file(),
        retry=RECONNECT_RETRY,
        first_retry=CONNECT_RETRY,
    )

    async def run() -> T:
        async with client:
            return await say(client)

    return asyncio.run(run())


def with_management(
    connection: str | None, hub: str | None, ask: Callable[[ManagementClient, str], Awaitable[T]]
) -> T:
    """A call about one hub: the one named, or that of the connection string."""

    async def say(client: HubClient) -> T:
        return await ask(await client.management(), client.hub)

    return with_client(connection, hub, say)
