"""What hubs and partitions there are, asked over $management; and creating and deleting them.

READ is the service's own operation. The rest is understood by the embedded hub only (see
hub/links/management.py): the service does that over HTTP, in its control plane.

    NativeClient -> NativeManagement -> ReconnectingConnection -> RequestClient
              ^^^^^^^^^^ this module

A question is asked again if the connection broke before it was answered. A change is not: nobody
knows whether it was made.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from pumphouse.amqp.types import Array, Int
from pumphouse.client.base import HubProperties, PartitionProperties
from pumphouse.client.native.reconnect import (
    MANAGEMENT,
    AuthorizedConnection,
    ReconnectingConnection,
)
from pumphouse.errors import RemoteProtocolError

HUB, PARTITION = "com.microsoft:eventhub", "com.microsoft:partition"
GROUP = "com.microsoft:consumergroup"
FAULT = "pumphouse:fault"

NAMESPACE = ""  # the path that all hubs lie below


QUESTIONS = ("READ", "QUERY")


class NativeManagement:
    """The calls that a client makes to $management."""

    def __init__(self, line: ReconnectingConnection) -> None:
        self.line = line

    async def hub(self, name: str) -> HubProperties:
        return hub_from(await self.ask("READ", HUB, name, name=name))

    async def partition(self, hub: str, partition: str) -> PartitionProperties:
        return await self.line.persist(lambda contact: ask_partition(contact, hub, partition))

    async def hubs(self) -> list[HubProperties]:
        found = await self.ask("QUERY", HUB, NAMESPACE)
        return [hub_from(one) for one in items(found)]

    async def create_hub(self, name: str, partitions: int) -> HubProperties:
        asked = {"name": name, "partition_count": Int(partitions)}
        return hub_from(await self.ask("CREATE", HUB, NAMESPACE, **asked))

    async def grow_hub(self, name: str, partitions: int) -> HubProperties:
        """Give a hub more partitions."""
        asked = {"name": name, "partition_count": Int(partitions)}
        return hub_from(await self.ask("UPDATE", HUB, name, **asked))

    async def delete_hub(self, name: str) -> None:
        await self.ask("DELETE", HUB, NAMESPACE, name=name)

    async def groups(self, hub: str) -> list[str]:
        return [str(name) for name in items(await self.ask("QUERY", GROUP, hub, name=hub))]

    async def create_group(self, hub: str, group: str) -> None:
        await self.ask("CREATE", GROUP, hub, name=hub, group=group)

    async def delete_group(self, hub: str, group: str) -> None:
        await self.ask("DELETE", GROUP, hub, name=hub, group=group)

    async def faults(self) -> list[dict[str, Any]]:
        return [dict(one) for one in items(await self.ask("QUERY", FAULT, NAMESPACE))]

    async def plan_fault(self, **fault: Any) -> int:
        """Plan a fault on an embedded hub; the number returned takes it away again."""
        return int(await self.ask("CREATE", FAULT, NAMESPACE, **fault))

    async def cancel_fault(self, number: int | None = None) -> None:
        """Take one fault away, or all of them."""
        await self.ask("DELETE", FAULT, NAMESPACE, **({} if number is None else {"id": number}))

    async def ask(self, operation: str, kind: str, path: str, **asked: Any) -> Any:
        def once(contact: AuthorizedConnection) -> Awaitable[Any]:
            return ask_once(contact, operation, kind, path, **asked)

        if operation in QUESTIONS:
            return await self.line.persist(once)
        return await once(await self.line.contact())


async def ask_once(
    contact: AuthorizedConnection, operation: str, kind: str, path: str, **asked: Any
) -> Any:
    """One call, with a token for the path that the hub will check it against."""
    await contact.tokens.cover(path)
    calls = await contact.calls(MANAGEMENT)
    return await calls.ask({"operation": operation, "type": kind, **asked})


async def ask_partition(
    contact: AuthorizedConnection, hub: str, partition: str
) -> PartitionProperties:
    found = await ask_once(contact, "READ", PARTITION, hub, name=hub, partition=partition)
    return partition_from(found)


def items(found: Any) -> list[Any]:
    """A list, whichever of AMQP's two kinds it came as."""
    if isinstance(found, Array):
        return list(found.items)
    if not isinstance(found, list):
        raise unexpected(found)
    return found


def hub_from(found: Any) -> HubProperties:
    try:
        ids = tuple(str(item) for item in items(found["partition_ids"]))
        return HubProperties(str(found["name"]), int(found["created_at"]), ids)
    except (KeyError, TypeError, ValueError):
        raise unexpected(found) from None


def partition_from(found: Any) -> PartitionProperties:
    try:
        return PartitionProperties(
            hub=str(found["name"]),
            partition=str(found["partition"]),
            first_sequence=int(found["begin_sequence_number"]),
            last_sequence=int(found["last_enqueued_sequence_number"]),
            last_offset=str(found["last_enqueued_offset"]),
            last_enqueued_ms=int(found["last_enqueued_time_utc"]),
            empty=bool(found["is_partition_empty"]),
        )
    except (KeyError, TypeError, ValueError):
        raise unexpected(found) from None


def unexpected(found: Any) -> RemoteProtocolError:
    return RemoteProtocolError(f"$management answered with {found!r:.100}", "amqp:invalid-field")
