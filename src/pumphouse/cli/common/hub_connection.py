"""Runs a coroutine of a command with a connected client or management client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pumphouse.cli.common.options import ca_file, need_connection
from pumphouse.client.base import HubClient, ManagementClient, RetryOptions
from pumphouse.client.factory import open_client

T = TypeVar("T")

# A hub that is not running is reported at once. A connection that breaks later is re-opened for a
# few seconds; then the command fails.
CONNECT_RETRY = RetryOptions(attempts=0)
RECONNECT_RETRY = RetryOptions(attempts=5, most_s=2.0)


def with_client(
    connection: str | None, hub: str | None, work: Callable[[HubClient], Awaitable[T]]
) -> T:
    """Connect, run `work` with the client, disconnect; the result of `work`."""
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
            return await work(client)

    return asyncio.run(run())


def with_management(
    connection: str | None, hub: str | None, work: Callable[[ManagementClient, str], Awaitable[T]]
) -> T:
    """Run `work` with the management client and a hub: the named one, or the EntityPath."""

    async def run(client: HubClient) -> T:
        return await work(await client.management(), client.hub)

    return with_client(connection, hub, run)
