"""ObservedStore: a store that is only read, and the names of the consumer groups with rows in it.

    StoreUrl -> ObservedStore -> rows and checkpoints, names of groups
                ^^^^^^^^^^^^^ this module

A store keeps names in lower case, so the groups are shown in lower case, except for `$Default`. The
Event Processor Host does not write the hub into the names of its blobs. It has a container for each
hub, so all groups of the container are groups of the hub.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pumphouse.client.base import DEFAULT_GROUP
from pumphouse.errors import StoreError, StoreUnavailable
from pumphouse.leases.store import CheckpointStore, SupportsGroups
from pumphouse.leases.store_url import StoreUrl, open_store
from pumphouse.leases.stores.blob import names
from pumphouse.leases.stores.sqlite.file import open_file, store_error

if TYPE_CHECKING:
    from pumphouse.leases.stores.blob.container import Container

DEADLINE_S = 10.0
# Each group has six series, and four more for each partition.
GROUPS_MAX = 1000


class ObservedStore:
    """A store, and the names of the groups with rows in it. `async with` opens and closes it.

    It must exist: an observer creates no file and no container.
    """

    def __init__(self, url: StoreUrl) -> None:
        self._url, self._stack = url, AsyncExitStack()
        self._container: Container | None = None
        if url.kind in ("sqlite", "redis"):
            self.store = open_store(url)
        elif url.kind == "postgres":
            self.store = open_store(url, create=False)
        else:
            self._container, self.store = container_and_store(url)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            if self._url.kind == "sqlite":
                need_file(Path(self._url.path))
            if self._container is not None:
                await self._container.open()
                stack.push_async_callback(self._container.close)
            await stack.enter_async_context(self.store)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    async def groups(self, namespace: str, hub: str) -> tuple[str, ...]:
        """The groups of a hub, sorted; `$Default` if the store has none."""
        groups = await self._find(namespace, hub)
        if len(groups) > GROUPS_MAX:
            raise StoreError(
                f"the store has {len(groups)} consumer groups of hub {hub}, the limit is "
                f"{GROUPS_MAX}: name the important ones with --group"
            )
        return tuple(sorted(map(shown, groups))) or (DEFAULT_GROUP,)

    async def _find(self, namespace: str, hub: str) -> set[str]:
        if isinstance(self.store, SupportsGroups):
            return await self.store.groups(namespace, hub)
        if self._container is None:
            return await asyncio.to_thread(groups_in_file, Path(self._url.path), namespace, hub)
        if self._url.kind == "bloblease":
            return groups_of_leased_blobs([blob.name async for blob in self._container.list("")])
        prefix = f"{namespace}/{hub}/".lower()
        return groups_of_blobs([blob.name async for blob in self._container.list(prefix)], prefix)


def container_and_store(url: StoreUrl) -> tuple[Container, CheckpointStore]:
    """A container and a store with the same credential, so that one token is enough."""
    from pumphouse.leases.stores.blob.container import Container, client_maker
    from pumphouse.leases.stores.blob.machine_identity import MachineIdentity

    credential = None if url.connection_string else MachineIdentity()
    address = (url.account_url or None, url.connection_string or None)
    container = Container(client_maker(*address, url.container, credential))
    return container, open_store(url, credential=credential, create_container=False)


def shown(group: str) -> str:
    return DEFAULT_GROUP if group == DEFAULT_GROUP.lower() else group


def need_file(path: Path) -> None:
    """StoreUnavailable if the file is missing: opening it as a store would create an empty file."""
    if not path.exists():
        raise StoreUnavailable(
            f"lease file {path} does not exist: check the path; the first consumer creates the file"
        )


def groups_in_file(path: Path, namespace: str, hub: str) -> set[str]:
    need_file(path)
    tables = ("ownership", "checkpoint")
    of_hub = "WHERE namespace = ? AND hub = ?"
    query = " UNION ".join(f"SELECT consumer_group FROM {table} {of_hub}" for table in tables)
    try:
        with closing(open_file(path, time.monotonic() + DEADLINE_S)) as db:
            key = (namespace.lower(), hub.lower())
            return {str(row[0]) for row in db.execute(query, key * len(tables))}
    except sqlite3.Error as error:
        raise store_error(path, error) from None


def groups_of_blobs(blobs: Iterable[str], prefix: str) -> set[str]:
    """The groups in blob names such as {prefix}GROUP/checkpoint/0."""
    groups = set()
    for blob in blobs:
        group = blob.removeprefix(prefix).partition("/")[0]
        kind, _ = names.kind_and_name(blob, f"{prefix}{group}/")
        if kind in (names.OWNERSHIP, names.CHECKPOINT):
            groups.add(group)
    return groups


def groups_of_leased_blobs(blobs: Iterable[str]) -> set[str]:
    """The groups in blob names such as GROUP/0. Names with `~` are member records, not groups."""
    pairs = (blob.split("/") for blob in blobs)
    return {pair[0] for pair in pairs if len(pair) == 2 and "~" not in pair[0]}
