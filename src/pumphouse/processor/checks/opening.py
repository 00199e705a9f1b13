"""Opens the store and the client of a host that starts, each within a limit.

Without the limits, a start at a hub that accepts connections and does not respond would take
minutes: the client retries each of its steps.

    Engine -> open_store, open_hub -> store, client
              ^^^^^^^^^^^^^^^^^^^^ this module
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from pumphouse.client.base import HubClient
from pumphouse.errors import OptionError
from pumphouse.leases.store import CheckpointStore
from pumphouse.processor.checks.access import readable_partitions
from pumphouse.processor.term import hub_within, store_within

# A client gives up a closed port after half of this: then its own error is raised.
START_S = 60.0
ADVICE = "check the connection string, and that the hub is running"


async def open_store(undo: AsyncExitStack, store: CheckpointStore) -> None:
    """Open a store, and close it with `undo`. StoreUnavailable if it does not respond."""
    async with store_within(START_S, "the host could not start"):
        await undo.enter_async_context(store)


async def open_hub(undo: AsyncExitStack, client: HubClient, group: str) -> tuple[str, ...]:
    """Connect a client, and close it with `undo`; the partitions of its hub."""
    where = name_of(client)
    async with hub_within(START_S, f"the host could not start; {ADVICE}", where):
        await undo.enter_async_context(client)
        return await readable_partitions(client, group)


def name_of(client: HubClient) -> str:
    """The hub and its address, if the client knows them before it is open."""
    try:
        return f"hub {client.hub!r} at {client.namespace}"
    except OptionError:
        return "the hub"
