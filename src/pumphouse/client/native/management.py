"""The management calls of the native client: properties, hubs, consumer groups and faults.

READ is an operation of the service. The embedded hub alone supports the others (see
hub/links/management.py); the service offers them over HTTP, in its control plane.

    NativeClient -> NativeManagement -> ReconnectingConnection -> RequestClient
                    ^^^^^^^^^^^^^^^^ this module

A read is retried if the connection breaks before the reply. A change is not, because its outcome is
unknown.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable
from reprlib import repr as short
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

NAMESPACE = ""  # the path of the whole namespace
# Several times what the service allows. Callers open a reader for each partition.
PARTITIONS_MAX = 10_000
# The service has the numbers from 0 as ids.
ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
SEQUENCE_MAX = 2**63 - 1
# From the beginning of year 1, which the service reports for an empty partition, to that of 10,000.
DATES_MS = (-62_135_596_800_000, 253_402_300_799_999)
OFFSET_CHARS_MAX = 1024
# The exceptions that a reply with missing or wrong fields can cause.
READ_ERRORS = (KeyError, TypeError, ValueError, OverflowError)
READ_OPERATIONS = ("READ", "QUERY")


class NativeManagement:
    """Sends management requests to $management."""

    def __init__(self, connection: ReconnectingConnection) -> None:
        self.connection = connection

    @property
    def address(self) -> str:
        return self.connection.settings.route.address

    async def hub(self, name: str) -> HubProperties:
        return parse_hub(await self.request("READ", HUB, name, name=name), self.address)

    async def partition(self, hub: str, partition: str) -> PartitionProperties:
        return await self.connection.run_with_retries(
            lambda authorized: request_partition(authorized, hub, partition)
        )

    async def hubs(self) -> list[HubProperties]:
        reply = await self.request("QUERY", HUB, NAMESPACE)
        return [parse_hub(item, self.address) for item in list_items(reply, self.address)]

    async def create_hub(self, name: str, partitions: int) -> HubProperties:
        fields = {"name": name, "partition_count": Int(partitions)}
        return parse_hub(await self.request("CREATE", HUB, NAMESPACE, **fields), self.address)

    async def grow_hub(self, name: str, partitions: int) -> HubProperties:
        """Raise the number of partitions of a hub."""
        fields = {"name": name, "partition_count": Int(partitions)}
        return parse_hub(await self.request("UPDATE", HUB, name, **fields), self.address)

    async def delete_hub(self, name: str) -> None:
        await self.request("DELETE", HUB, NAMESPACE, name=name)

    async def groups(self, hub: str) -> list[str]:
        reply = await self.request("QUERY", GROUP, hub, name=hub)
        return [str(name) for name in list_items(reply, self.address)]

    async def create_group(self, hub: str, group: str) -> None:
        await self.request("CREATE", GROUP, hub, name=hub, group=group)

    async def delete_group(self, hub: str, group: str) -> None:
        await self.request("DELETE", GROUP, hub, name=hub, group=group)

    async def faults(self) -> list[dict[str, Any]]:
        reply = await self.request("QUERY", FAULT, NAMESPACE)
        try:
            return [dict(item) for item in list_items(reply, self.address)]
        except READ_ERRORS:
            raise unexpected_reply(reply, self.address) from None

    async def plan_fault(self, **fault: Any) -> int:
        """Plan a fault on an embedded hub; returns the number that `cancel_fault` takes."""
        reply = await self.request("CREATE", FAULT, NAMESPACE, **fault)
        try:
            return int(reply)
        except READ_ERRORS:
            raise unexpected_reply(reply, self.address) from None

    async def cancel_fault(self, number: int | None = None) -> None:
        """Cancel one fault, or all of them."""
        await self.request("DELETE", FAULT, NAMESPACE, **({} if number is None else {"id": number}))

    async def request(self, operation: str, kind: str, path: str, **fields: Any) -> Any:
        def attempt(authorized: AuthorizedConnection) -> Awaitable[Any]:
            return request_once(authorized, operation, kind, path, **fields)

        if operation in READ_OPERATIONS:
            return await self.connection.run_with_retries(attempt)
        return await attempt(await self.connection.connect())


async def request_once(
    authorized: AuthorizedConnection, operation: str, kind: str, path: str, **fields: Any
) -> Any:
    """One request, with a token for the path that the hub checks."""
    await authorized.tokens.ensure(path)
    requests = await authorized.request_client(MANAGEMENT)
    return await requests.request({"operation": operation, "type": kind, **fields})


async def request_partition(
    authorized: AuthorizedConnection, hub: str, partition: str
) -> PartitionProperties:
    reply = await request_once(authorized, "READ", PARTITION, hub, name=hub, partition=partition)
    return parse_partition(reply, authorized.connection.address)


def list_items(reply: Any, address: str) -> list[Any]:
    """The items of an AMQP list or array in a reply of the hub at this address."""
    if isinstance(reply, Array):
        return list(reply.items)
    if not isinstance(reply, list):
        raise unexpected_reply(reply, address)
    return reply


def parse_hub(reply: Any, address: str) -> HubProperties:
    try:
        items = list_items(reply["partition_ids"], address)
        if len(items) > PARTITIONS_MAX:
            raise too_many_partitions(len(items), address)
        ids = partition_ids(items)
        return HubProperties(str(reply["name"]), time_ms(reply["created_at"]), ids)
    except READ_ERRORS:
        raise unexpected_reply(reply, address) from None


def parse_partition(reply: Any, address: str) -> PartitionProperties:
    try:
        return PartitionProperties(
            hub=str(reply["name"]),
            partition=str(reply["partition"]),
            first_sequence=whole(reply["begin_sequence_number"], -1, SEQUENCE_MAX),
            last_sequence=whole(reply["last_enqueued_sequence_number"], -1, SEQUENCE_MAX),
            last_offset=offset(reply["last_enqueued_offset"]),
            last_enqueued_ms=time_ms(reply["last_enqueued_time_utc"]),
            empty=bool(reply["is_partition_empty"]),
        )
    except READ_ERRORS:
        raise unexpected_reply(reply, address) from None


# -- values of replies; ValueError for one that no hub has ----------------------------------------


def partition_ids(items: list[Any]) -> tuple[str, ...]:
    """The ids of the partitions of a hub. Stores and logs use them as names."""
    if not items or len({*items}) < len(items) or not all(map(is_partition_id, items)):
        raise ValueError("these are not ids of partitions")
    return tuple(items)


def is_partition_id(value: Any) -> bool:
    return isinstance(value, str) and ID.fullmatch(value) is not None


def whole(value: Any, lowest: int, highest: int) -> int:
    number = int(value)
    if lowest <= number <= highest:
        return number
    raise ValueError(f"{number} is not between {lowest} and {highest}")


def time_ms(value: Any) -> int:
    return whole(value, *DATES_MS)


def offset(value: Any) -> str:
    text = str(value)
    if len(text) > OFFSET_CHARS_MAX:
        raise ValueError(f"an offset of {len(text)} characters")
    return text


def unexpected_reply(reply: Any, address: str) -> RemoteProtocolError:
    text = f"invalid reply of {address}/$management: {short(reply)}"
    return RemoteProtocolError(text, "amqp:invalid-field")


def too_many_partitions(count: int, address: str) -> RemoteProtocolError:
    text = f"{address} reports a hub with {count} partitions; the limit is {PARTITIONS_MAX}"
    return RemoteProtocolError(text, "amqp:resource-limit-exceeded")
