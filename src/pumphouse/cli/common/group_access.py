"""Opens the hub and the checkpoint store of a consumer group for a command.

--connection, --hub, --store -> GroupAccess -> overview, checkpoints
                                ^^^^^^^^^^^ this module
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pumphouse.cli.common import console
from pumphouse.cli.common.options import ca_file, need_connection
from pumphouse.client.base import HubClient, PartitionProperties, RetryOptions
from pumphouse.client.factory import open_client
from pumphouse.errors import OptionError, PumphouseError, StoreError
from pumphouse.leases.model import Checkpoint, Group, Listing
from pumphouse.leases.store import CheckpointStore
from pumphouse.leases.store_url import open_store, parse_store_url

T = TypeVar("T")
REQUESTS_AT_ONCE = 16  # concurrent requests for partition properties
CHECK_STORE = "check --store; the first host that uses a store creates its file"
NAMES_MAX = 10  # consumer groups that a warning names


@dataclass(frozen=True, slots=True)
class GroupAccess:
    """The hub client and the checkpoint store of one consumer group."""

    client: HubClient
    store: CheckpointStore
    group: Group

    async def partitions(self, names: Sequence[str] = ()) -> list[PartitionProperties]:
        """The properties of the named partitions, or of all."""
        existing = (await self.client.properties()).partitions
        if unknown := [name for name in names if name not in existing]:
            raise OptionError(
                f"hub {self.group.hub} has no partition {unknown[0]}; it has {', '.join(existing)}"
            )
        slots = asyncio.Semaphore(REQUESTS_AT_ONCE)

        async def request(partition: str) -> PartitionProperties:
            async with slots:
                return await self.client.partition_properties(partition)

        return list(await asyncio.gather(*map(request, names or existing)))

    async def listing(self) -> Listing:
        return await self.store.list_ownership(self.group)

    async def checkpoints(self) -> dict[str, Checkpoint]:
        checkpoints = await self.store.list_checkpoints(self.group)
        return {checkpoint.partition: checkpoint for checkpoint in checkpoints}


@asynccontextmanager
async def open_group(
    connection: str, hub: str | None, group: str, store: str
) -> AsyncIterator[GroupAccess]:
    # No retries: a hub that is not running is reported at once.
    opened = open_client(connection, hub or "", ca_file=ca_file(), retry=RetryOptions(attempts=0))
    async with opened as client, open_store(store) as opened_store:
        yield GroupAccess(client, opened_store, Group(client.namespace, client.hub, group))


def with_group(
    connection: str | None,
    hub: str | None,
    group: str,
    store: str,
    work: Callable[[GroupAccess], Awaitable[T]],
    *,
    reads: bool = False,
    warn: bool = True,
) -> T:
    """Open hub and store, run `work`, close both; returns the result of `work`.

    A group that the hub does not have is only a warning: checkpoints may be written before it is
    created, or kept after it was deleted. Without `warn`, `work` checks this. If `work` only
    `reads`, a store whose file does not exist is refused: opening it would create the file.
    """
    string = need_connection(connection)
    if reads and (file := missing_file(store)) is not None:
        raise StoreError(f"no store at {file}: {CHECK_STORE}")

    async def run() -> T:
        async with open_group(string, hub, group, store) as access:
            if warn:
                await warn_if_unknown(access)
            return await work(access)

    return asyncio.run(run())


def missing_file(store: str) -> Path | None:
    """The file of a SQLite store if it does not exist."""
    url = parse_store_url(store)
    if url.kind != "sqlite":
        return None
    try:
        Path(url.path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return Path(url.path)
    except OSError:
        pass  # the store reports it
    return None


async def warn_if_unknown(access: GroupAccess) -> None:
    """Warn if the hub does not have the group. It does nothing if the key may not list groups."""
    try:
        groups = await (await access.client.management()).groups(access.group.hub)
    except PumphouseError:
        return
    name = access.group.name
    if name.lower() not in (group.lower() for group in groups):
        shown = ", ".join(sorted(groups)[:NAMES_MAX])
        more = ", …" if len(groups) > NAMES_MAX else ""
        console.message(
            f"WARNING: hub {access.group.hub} has no consumer group {name}; it has {shown}{more}"
        )
