"""Runs a coroutine of a command with a connected client or management client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pumphouse.cli.common.options import ca_file, need_connection
from pumphouse.client.base import HubClient, ManagementClient, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import HubNotFound

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


@contextmanager
def advice_if_not_found(advice: str) -> Iterator[None]:
    """Add advice to the error for a missing hub or consumer group, before its tracking id."""
    try:
        yield
    except HubNotFound as error:
        text, mark, tracking = str(error).partition(" TrackingId:")
        ending = f"{mark}{tracking}".strip()
        suffix = f" ({ending})" if ending else ""
        raise HubNotFound(f"{text.rstrip('.')}: {advice}{suffix}") from None


def with_management(
    connection: str | None, hub: str | None, work: Callable[[ManagementClient, str], Awaitable[T]]
) -> T:
    """Run `work` with the management client and the name of the hub: `hub`, or the EntityPath."""

    async def run(client: HubClient) -> T:
        return await work(await client.management(), client.hub)

    return with_client(connection, hub, run)
