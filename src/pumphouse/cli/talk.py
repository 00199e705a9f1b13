"""From a command to a hub: one connection, one conversation, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from pumphouse.cli.options import need_connection
from pumphouse.client.management import Management
from pumphouse.client.native import Client

T = TypeVar("T")


def talk(connection: str | None, hub: str | None, say: Callable[[Client], Awaitable[T]]) -> T:
    """Connect, let `say` do the talking, hang up."""
    client = Client(need_connection(connection), hub or "")

    async def run() -> T:
        async with client:
            return await say(client)

    return asyncio.run(run())


def manage(
    connection: str | None, hub: str | None, ask: Callable[[Management, str], Awaitable[T]]
) -> T:
    """A call about one hub: the one named, or that of the connection string."""

    async def say(client: Client) -> T:
        return await ask(await client.management(), client.hub)

    return talk(connection, hub, say)
